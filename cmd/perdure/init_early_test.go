package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestInitModelStopped: a run that starts from a given model, and ends before it has saved anything itself, reports
// that it resumes from clock 0, and does.
func TestInitModelStopped(t *testing.T) {
	t.Parallel()
	_, model := trained(t, small("--clocks", "5", "--recovery", "none")...)
	calm, _ := trained(t, small("--clocks", "20", "--recovery", "none", "--init", model)...)
	for _, recovery := range []string{"checkpoint:100000", "scar:100000,1/2"} {
		dir := newFolder(t)
		args := small("--clocks", "1000000", "--recovery", recovery, "--grace", "0s", "--init", model, "--fault",
			"slow*1.01:worker:0@clock:3", "--out", dir)
		p := start(t, append(args[:1:1], args[2:]...)...) // not --quiet
		p.Says("fault: slow")
		_, _, errs := p.Stop()
		if !regexp.MustCompile(`; resuming starts at clock 0.*: perdure train --resume \S+run\n`).MatchString(errs) {
			t.Fatalf("unexpected error output under %s: %s", recovery, errs)
		}
		s, to := trained(t, "train", "--quiet", "--resume", dir, "--clocks", "20")
		sameModel(t, s, *calm.ModelSHA256, to)
		wantRefused(t, exitUsage, "--workers 4: the run is at clock 0; start a new run with that many workers, with "+
			"--init",
			"train", "--resume", dir, "--workers", "4")
	}
}

// TestInitModelStoppedLog: resuming from an update log requires a clock of each worker in it. Before that, the error
// says how to start over.
func TestInitModelStoppedLog(t *testing.T) {
	t.Parallel()
	_, model := trained(t, small("--clocks", "5", "--recovery", "none")...)
	dir := newFolder(t)
	p := start(t, small("--recovery", "stateless", "--compute-ms", "60000", "--init", model, "--out", dir)...)
	awaitEvent(t, dir, "6 shards on 2 servers", 1)
	if _, _, errs := p.Stop(); !strings.Contains(errs, "nothing to resume: start over with perdure train --from") {
		t.Errorf("unexpected error output: %s", errs)
	}
	// Servers that have reached the log have created their streams, which contain no clock yet.
	wantRefused(t, exitError, "nothing to resume from|the run ended before creating it", "train", "--resume", dir)
}

// TestInitModelStore: the initial model of a run is in its checkpoint store. Servers that die before the first
// checkpoint start from it, and so does a resumed run.
func TestInitModelStore(t *testing.T) {
	t.Parallel()
	_, model := trained(t, small("--clocks", "5", "--recovery", "none")...)
	calm, _ := trained(t, small("--clocks", "20", "--recovery", "none", "--init", model)...)
	more, _ := trained(t, small("--clocks", "30", "--recovery", "none", "--init", model)...)
	for _, recovery := range []string{"resend:10", "scar:100,1/2", "stateless"} {
		place := filepath.Join(t.TempDir(), "store")
		at := "file://" + filepath.ToSlash(place)
		args := small("--clocks", "20", "--recovery", recovery, "--init", model, "--store", at)
		kill := "kill:server:0@clock:3"
		if recovery == "scar:100,1/2" { // a server loses rows
			kill = "kill:worker:0@clock:3"
		}
		s, dir := trained(t, append(args, "--fault", kill)...)
		sameModel(t, s, *calm.ModelSHA256, dir)
		if files, err := os.ReadDir(filepath.Join(dir, "checkpoint")); err != nil || len(files) > 0 {
			t.Errorf("under %s the run's checkpoint directory contains %v (%v)", recovery, files, err)
		}
		wantRefused(t, exitUsage, "taken: it belongs to job", append(args, "--out", newFolder(t))...)
		if recovery == "stateless" {
			continue
		}
		s, to := trained(t, "train", "--quiet", "--resume", dir, "--clocks", "30", "--store", at+"2")
		sameModel(t, s, *more.ModelSHA256, to)
	}
}

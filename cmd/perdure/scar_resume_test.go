package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

// rowsSaved waits until the run in dir has published a running checkpoint whose number is at least number and that
// contains all 4 slots of the job.
func rowsSaved(t *testing.T, dir string, number uint64) {
	t.Helper()
	await(t, func() bool {
		m, err := checkpoint.LatestRunning(store.NewDir(disk.OS(), filepath.Join(dir, "checkpoint")))
		return err == nil && m.Number >= number && len(m.Slots) == 4
	}, func() string { return "there is no running checkpoint\n" + logs(dir) })
}

// savesRows returns the settings of an endless job under scar, which saves its rows separately.
func savesRows(dir string) []string {
	return append(endless(dir), "--recovery", "scar:8,1/4", "--consistency", "ssp:1", "--scale", "4@clock:20")
}

// killedScar runs the job of savesRows until it has published at least 6 running checkpoints, and then kills its
// supervisor together with all its processes. It returns the run's directory and the newest complete running checkpoint
// in it.
func killedScar(t *testing.T) (dir string, m checkpoint.Running) {
	t.Helper()
	dir = newFolder(t)
	p := start(t, savesRows(dir)...)
	p.Says("fault: slow")
	rowsSaved(t, dir, 6)
	p.Kill()
	folder := filepath.Join(dir, "checkpoint")
	var err error
	await(t, func() bool { // its coordinator may live for a moment longer
		m, _, err = checkpoint.LatestCompleteRunning(store.NewDir(disk.OS(), folder))
		again, _, _ := checkpoint.LatestCompleteRunning(store.NewDir(disk.OS(), folder))
		return err == nil && again.Number == m.Number
	}, func() string { return fmt.Sprint(err) })
	return dir, m
}

// TestScarResumed: after all processes are gone, the next run resumes with the last saved rows, on another number of
// servers and with all active slots. Nothing is counted twice. A damaged checkpoint is skipped by name in favour of the
// previous one. If all are damaged, the run is rejected.
func TestScarResumed(t *testing.T) {
	t.Parallel()
	dir, m := killedScar(t)
	to := newFolder(t)
	end := int64(m.Clock) + 400 // servers may have reached this clock
	p := start(t, "train", "--resume", dir, "--servers", "3", "--recovery", "scar:4,1/2,round", "--clocks",
		fmt.Sprint(end), "--fault", fmt.Sprintf("kill:server:2@clock:%d", m.Clock+10), "--out", to)
	p.Says(`\d+ rows start as last saved, .* updates are lost completely, and \d+ partly`)
	s := p.succeeds(to)
	want := int64(s.Shards) * (4*end - 20)
	if got := *s.UpdatesApplied + *s.UpdatesLost; int64(s.Clocks) != end || s.Servers != 3 || got != want {
		t.Errorf("%d clocks, %d servers, %d updates applied and %d lost, of %d", s.Clocks, s.Servers, *s.UpdatesApplied,
			*s.UpdatesLost, want)
	}
	wantRefused(t, exitUsage, "only scar can resume from that", "train", "--resume", dir, "--recovery", "resend:5")

	folder := filepath.Join(dir, "checkpoint")
	manifests, err := filepath.Glob(filepath.Join(folder, "*.running"))
	must(t, err)
	if len(manifests) < 2 {
		t.Fatalf("too few manifests: %v", manifests)
	}
	for i := len(manifests) - 1; i >= 0; i-- {
		must(t, os.WriteFile(manifests[i], []byte("no manifest"), 0o666))
		s, err := clocks(end).Resume(dir)
		if i == 0 {
			if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), folder) {
				t.Errorf("with all manifests damaged: %v", err)
			}
			break
		}
		if err != nil || s.Saved == nil || !regexp.MustCompile(`skipped damaged checkpoints .*: r\d+\.running`).
			MatchString(s.Saved.Note) {
			t.Errorf("with the newest manifest damaged: %+v, %v", s.Saved, err)
		}
	}
	wantRefused(t, exitError, "holds no checkpoint that can be read: .*running", "train", "--resume", dir)
}

// TestScarStoppedExact: a bsp run under scar that ends gracefully and is resumed has the model of a run that was not
// interrupted.
func TestScarStoppedExact(t *testing.T) {
	t.Parallel()
	dir := newFolder(t)
	p := start(t, append(endless(dir), "--recovery", "scar:8,1/4")...)
	p.Says("fault: slow")
	_, _, errs := p.Stop()
	m := regexp.MustCompile(`resuming starts at clock (\d+): perdure train`).FindStringSubmatch(errs)
	if m == nil {
		t.Fatalf("unexpected error output: %s", errs)
	}
	clocks := m[1] + "0"
	s, _ := trained(t, "train", "--quiet", "--resume", dir, "--clocks", clocks)
	want, _ := trained(t, small("--clocks", clocks, "--recovery", "none")...)
	if *s.ModelSHA256 != *want.ModelSHA256 || *s.UpdatesLost != 0 {
		t.Errorf("it ends with model %s and %d updates lost; without the interruption the model is %s", *s.ModelSHA256,
			*s.UpdatesLost, *want.ModelSHA256)
	}
}

// looksIntoRows inspects the running checkpoints of a run that has ended. It expects the newest at the given clock,
// exports a model from it, and deletes the older one.
func looksIntoRows(t *testing.T, dir, clock string) {
	t.Helper()
	look := func(command string, more ...string) []string {
		return append([]string{"checkpoint", command}, more...)
	}
	wantOut(t, 0, look("ls", dir), " "+clock+" ", "  scar:8,1/4,priority  complete, newest\n")
	wantOut(t, 0, look("show", dir+"@"+clock), "running checkpoint of clock "+clock+", ", " clocks old on average, "+
		"", "\nshard")
	wantOut(t, 0, look("verify", dir), "clock "+clock+": complete: ", " files of rows\n")
	wantOut(t, 0, look("export", dir, "--to", filepath.Join(t.TempDir(), "model")), "clock "+clock+" of job ")
	wantOut(t, 0, look("prune", dir, "--keep", "1"), "keep clock "+clock+": complete: ")
	if m, err := filepath.Glob(filepath.Join(dir, "checkpoint", "*.running")); err != nil || len(m) != 1 {
		t.Errorf("want one manifest, have %v (%v)", m, err)
	}
}

// TestScarStopped: a run that ends gracefully saves all rows once more, reports the clock from which it resumes, and
// resumes there without loss. Its checkpoints can be inspected.
func TestScarStopped(t *testing.T) {
	t.Parallel()
	dir := newFolder(t)
	p := start(t, savesRows(dir)...)
	p.Says("fault: slow")
	rowsSaved(t, dir, 3)
	_, _, errs := p.Stop()
	says := regexp.MustCompile(`resuming starts at clock (\d+): perdure train`)
	m := says.FindStringSubmatch(errs)
	if m == nil || strings.Count(errs, "\n") != 1 {
		t.Fatalf("unexpected error output: %s", errs)
	}
	looksIntoRows(t, dir, m[1])
	q := start(t, "train", "--resume", dir, "--clocks", m[1]+"0", "--out", newFolder(t))
	q.Says(`rows start as last saved, on average 0.0 and at most 0 clocks earlier; 0 updates are lost completely`)
	if code, out, errs := q.Wait(); code != 0 {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}

package main

import (
	"fmt"
	"path/filepath"
	"testing"
)

// layers returns the settings of a network that is partitioned by layer. The tables conv1 and fc2 are on server 0,
// conv2 and bias on server 1, and fc1, with 512 rows, is alone on server 2.
func layers(more ...string) []string {
	return append([]string{
		"train", "cnn", "--quiet", "--partition", "layer", "--workers", "2", "--servers", "3", "--shards", "5",
		"--clocks", "8", "--batch", "4", "--eval-every", "0", "--compute-ms", "20",
	}, more...)
}

// TestLayersLost: under scar a dying server takes a layer with it. The layer is restored as a whole: all of its rows
// are either as last saved or initial. The checkpoint can be inspected.
func TestLayersLost(t *testing.T) {
	t.Parallel()
	for every, initial := range map[string]bool{"1": false, "100": true} {
		s, dir := trained(t, layers("--recovery", "scar:"+every+",1/4,round", "--fault", "kill:server:2@clock:5")...)
		if s.Saving == nil || s.Saving.Rows == nil || len(s.Failures) != 1 {
			t.Fatalf("%+v", s)
		}
		r := s.Saving.Rows
		// on a slow disk the rows may not be saved when the server dies
		if r.Restored+r.Initial != 512 || min(r.Restored, r.Initial) != 0 || initial && r.Initial == 0 {
			t.Errorf("under %s %d rows are as last saved and %d are initial; want all 512 initial: %t", s.Recovery,
				r.Restored, r.Initial, initial)
		}
		if initial {
			continue // nothing was saved
		}
		look := func(command string, more ...string) []string {
			return append([]string{"checkpoint", command}, more...)
		}
		wantOut(t, 0, look("verify", dir), ": complete: ")
		wantOut(t, 0, look("show", dir), "\nfc1.weight", "all on shard 4")
		wantOut(t, 0, look("export", dir, "--to", filepath.Join(t.TempDir(), "model")), " of job ")
		layersGoOn(t, dir)
	}
}

// layersGoOn resumes and forks such a job on another number of servers. In both runs layers are lost and restored as
// last saved.
func layersGoOn(t *testing.T, dir string) {
	t.Helper()
	for _, how := range []string{"--resume", "--fork"} {
		s, to := trained(t, "train", "--quiet", how, dir, "--servers", "5", "--clocks", "12", "--fault",
			"kill:server:4@clock:10") // holds fc1
		if r := s.Saving.Rows; s.Clocks != 12 || r.Restored < 512 {
			t.Errorf("%s: %d clocks, rows %+v", how, s.Clocks, r)
		}
		wantOut(t, 0, []string{"checkpoint", "verify", to}, ": complete: ")
	}
}

// TestLayersResumed: a job that is partitioned by layer resumes with another number of servers. It ends with the model
// of an uninterrupted job and of a job that is partitioned by row.
func TestLayersResumed(t *testing.T) {
	t.Parallel()
	_, dir := trained(t, layers("--recovery", "checkpoint:4")...)
	model := filepath.Join(t.TempDir(), "model")
	wantOut(t, 0, []string{"checkpoint", "export", dir, "--to", model}, "clock 8 of job ")
	if fileOf(t, model) != fileOf(t, dir, "model.safetensors") {
		t.Error("the last checkpoint's model differs from the run's")
	}
	rows, _ := trained(t, layers("--partition", "row", "--clocks", "12")...)
	for _, servers := range []int{1, 5} {
		s, to := trained(t, "train", "--quiet", "--resume", dir, "--servers", fmt.Sprint(servers), "--clocks", "12",
			"--fault", "kill:server:0@clock:10")
		if *s.ModelSHA256 != *rows.ModelSHA256 || s.Clocks != 12 {
			t.Errorf("on %d servers the job ends at clock %d with model %s; partitioned by row the model is %s",
				servers, s.Clocks, *s.ModelSHA256, *rows.ModelSHA256)
		}
		wantOut(t, 0, []string{"checkpoint", "show", to}, "\nfc1.weight", "all on shard 4")
	}
	wantRefused(t, exitUsage, "cannot be changed with --resume", "train", "cnn", "--resume", dir, "--partition", "row")
	wantRefused(t, exitUsage, "is a run of cnn, not of mf; leave the workload out", "train", "mf", "--resume", dir)
}

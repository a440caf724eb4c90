package main

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"

	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

// keptBy returns the checkpoints of a run, oldest first. It fails the test unless all are intact.
func keptBy(t *testing.T, dir string) []checkpoint.Info {
	t.Helper()
	wantOut(t, 0, []string{"checkpoint", "verify", dir}, ": complete: ")
	found, err := checkpoint.List(store.NewDir(disk.OS(), filepath.Join(dir, "checkpoint")))
	must(t, err)
	slices.Reverse(found.Checkpoints)
	return found.Checkpoints
}

// TestKeepCheckpoints: the requested number of checkpoints is kept, or all of them, with the earlier segments that they
// need. A resumed run copies only the checkpoint that it resumes from.
func TestKeepCheckpoints(t *testing.T) {
	t.Parallel()
	for keep, most := range map[string]int{"3": 3, "0": 6} { // under resend a cut may be skipped
		_, dir := trained(t, small("--recovery", "resend:10", "--keep-checkpoints", keep)...)
		kept := keptBy(t, dir)
		if n := len(kept); n < 3 || n > most || kept[n-1].Cut != 60 || most == 6 && kept[0].Cut != 10 {
			t.Errorf("--keep-checkpoints %s keeps %d, from clock %d to %d", keep, n, kept[0].Cut, kept[n-1].Cut)
		}
		if keep != "0" {
			continue
		}
		_, to := trained(t, "train", "--quiet", "--resume", dir, "--clocks", "80", "--keep-checkpoints", "2")
		if k := keptBy(t, to); len(k) != 2 || k[0].Cut != 70 || k[1].Cut != 80 {
			t.Errorf("the resumed run keeps %v", k)
		}
		var run struct{ Checkpoints struct{ Keep int } }
		must(t, json.Unmarshal([]byte(fileOf(t, to, "run.json")), &run))
		if run.Checkpoints.Keep != 2 {
			t.Errorf("run.json contains %+v", run)
		}
	}
}

// TestKeepRunning: the same holds for running checkpoints, of which at least two are kept.
func TestKeepRunning(t *testing.T) {
	t.Parallel()
	for keep, most := range map[string]int{"1": 2, "4": 4, "0": 1 << 30} {
		dir := newFolder(t)
		p := start(t, append(endless(dir), "--recovery", "scar:4,1/4", "--keep-checkpoints", keep)...)
		p.Says("fault: slow")
		await(t, func() bool {
			m, err := checkpoint.LatestRunning(store.NewDir(disk.OS(), filepath.Join(dir, "checkpoint")))
			return err == nil && m.Number > 6
		}, func() string { return logs(dir) })
		p.Stop()
		kept := keptBy(t, dir)
		if newest := kept[len(kept)-1].Number; len(kept) != min(most, int(newest)) {
			t.Errorf("--keep-checkpoints %s keeps %d; the newest has number %d", keep, len(kept), newest)
		}
	}
}

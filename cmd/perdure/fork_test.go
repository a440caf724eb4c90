package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

// TestFork: another run can start from any checkpoint that a run has kept, under any strategy. It ends with the same
// model, and the first run's files stay unchanged. Under scar the fork has a running checkpoint from its first clock
// on, so a replacement server starts with the rows of the cut.
func TestFork(t *testing.T) {
	t.Parallel()
	first, dir := trained(t, small("--keep-checkpoints", "0")...)
	before := listing(t, dir)
	kept := keptBy(t, dir) // of clocks 10, 20 and so on; some may be missing
	strategies := []string{"scar:8,1/4", "resend:5", "none", "chain:2", "stateless"}
	for i, recovery := range strategies[:len(kept)-1] {
		at := kept[i].Cut
		s, to := trained(t, "train", "--quiet", "--fork", fmt.Sprintf("%s@%d", dir, at), "--recovery", recovery)
		if *s.ModelSHA256 != *first.ModelSHA256 || s.Clocks != first.Clocks || *s.UpdatesLost != 0 {
			t.Errorf("from clock %d under %s the fork ends at clock %d with model %s, %d updates lost; the first "+
				"run's model is %s",
				at, recovery, s.Clocks, *s.ModelSHA256, *s.UpdatesLost, *first.ModelSHA256)
		}
		if recovery == "scar:8,1/4" {
			wantOut(t, 0, []string{"checkpoint", "verify", to}, ": complete: ")
			again, _ := trained(t, "train", "--quiet", "--fork", to, "--clocks", "90")
			if again.Clocks != 90 {
				t.Errorf("a fork of the fork ends at clock %d", again.Clocks)
			}
		}
	}
	if after := listing(t, dir); after != before {
		t.Errorf("the first run's directory was\n%s\nand is now\n%s", before, after)
	}
	s, _ := trained(t, "train", "--quiet", "--fork", fmt.Sprintf("%s@%d", dir, kept[0].Cut),
		"--recovery", fmt.Sprintf("scar:%d,1", kept[0].Cut), "--fault",
		fmt.Sprintf("kill:server:0@clock:%d", kept[0].Cut+5))
	if lost := *s.UpdatesLost; s.Clocks != 60 || s.Saving == nil || s.Saving.Rows.Initial != 0 || lost < 1 {
		t.Errorf("after a server's death in a fork: %d clocks, %d updates lost, %+v", s.Clocks, lost, s.Saving)
	}
	wantRefused(t, exitUsage, "holds no checkpoint of clock 25; it holds those of clocks 60, ", "train", "--fork",
		dir+"@25")
	wantRefused(t, exitUsage, "--seed cannot be changed with --fork", "train", "--fork", dir, "--seed", "9")
	wantRefused(t, exitUsage, "is already at clock 60; set a larger --clocks", "train", "--fork", dir)
	wantRefused(t, exitUsage, "is not in a run's directory", "train", "--fork", filepath.Join(dir, "logs"))
}

// listing returns the names and lengths of all files in a directory.
func listing(t *testing.T, dir string) (text string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			info, err := d.Info()
			must(t, err)
			text += fmt.Sprintln(path, info.Size())
		}
		return err
	}))
	return text
}

// TestForkAlive: a running job can be forked from a running checkpoint that it keeps, and continues. The fork starts
// with each row as last saved.
func TestForkAlive(t *testing.T) {
	t.Parallel()
	dir := newFolder(t)
	p := start(t, append(savesRows(dir), "--keep-checkpoints", "0")...)
	p.Says("fault: slow")
	rowsSaved(t, dir, 3)
	folder := filepath.Join(dir, "checkpoint")
	var from checkpoint.Running // of several at the same clock the newest is used
	await(t, func() bool {
		found, err := checkpoint.List(store.NewDir(disk.OS(), folder))
		must(t, err)
		for i := 1; i < len(found.Checkpoints); i++ {
			from = found.Checkpoints[i].Running
			if from.Clock < found.Checkpoints[i-1].Running.Clock && len(from.Shards[0].Files) > 0 {
				return true
			}
		}
		return false
	}, func() string { return "all running checkpoints have the same clock or lack a shard" })
	at := fmt.Sprintf("%s@%d", dir, from.Clock)
	wantRefused(t, exitUsage, "only scar can resume from that", "train", "--fork", at, "--recovery", "resend:5")
	furthest, err := checkpoint.MaxClock(store.NewDir(disk.OS(), folder), &from)
	must(t, err)
	wantRefused(t, exitUsage, "is already at clock", "train", "--fork", at, "--clocks",
		fmt.Sprint(max(from.Clock, furthest-1)))
	q := start(t, "train", "--fork", at, "--clocks", fmt.Sprint(from.Clock+400), "--out", newFolder(t))
	q.Says(`\d+ rows start as last saved`)
	if code, out, errs := q.Wait(); code != 0 {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	p.Stop()
	b, err := os.ReadFile(filepath.Join(folder, from.Shards[0].Files[0].File))
	must(t, err)
	b[len(b)/2] ^= 4
	must(t, os.WriteFile(filepath.Join(folder, from.Shards[0].Files[0].File), b, 0o666))
	to := filepath.Join(t.TempDir(), "out")
	wantRefused(t, exitError, from.Shards[0].Files[0].File, "train", "--fork", at, "--out", to)
	if _, err := os.Stat(to); err == nil {
		t.Error("a rejected fork leaves a directory")
	}
}

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/run/settings"
)

// TestCheckpoint inspects the checkpoint of a real run, in which some segments build on others. Its model equals the
// model that the run has written, byte by byte. Then the test changes one byte.
func TestCheckpoint(t *testing.T) {
	t.Parallel()
	_, dir := trained(t, "train", "mf", "--quiet", "--rank", "8", "--whole-users", "--clock-fraction", "0.001",
		"--workers", "2", "--shards", "4", "--recovery", "resend:1", "--eval-every", "0", "--clocks", "6")
	folder := filepath.Join(dir, "checkpoint")
	look := func(command string, more ...string) []string {
		return append([]string{"checkpoint", command}, more...)
	}
	wantOut(t, 0, look("ls", dir), folder+"\n", "  resend:1  complete, newest\n")
	wantOut(t, 0, look("show", dir+"@6"), "checkpoint of clock 6, generation 1: complete, the newest\n", "\nusers ",
		"follows")
	wantOut(t, 0, look("verify", folder), "clock 6: complete: 4 shards, ", " rows in 2 tables\nread ")
	model := filepath.Join(t.TempDir(), "model")
	wantOut(t, 0, look("export", dir, "--to", model), "clock 6 of job ", ": "+model+"\n")
	if fileOf(t, model) != fileOf(t, dir, "model.safetensors") {
		t.Error("the last checkpoint's model differs from the run's")
	}
	wantRefused(t, exitUsage, "already exists; choose another name, or add --force",
		look("export", dir, "--to", model)...)
	wantOut(t, 0, look("prune", dir, "--keep", "1", "--dry-run"), "keep clock 6: complete: ", "nothing to delete\n")

	m, err := checkpoint.Latest(store.NewDir(disk.OS(), folder))
	must(t, err)
	name := m.Segments[0].File
	b, err := os.ReadFile(filepath.Join(folder, name))
	must(t, err)
	b[len(b)/2] ^= 4
	must(t, os.WriteFile(filepath.Join(folder, name), b, 0o666))
	wantOut(t, 0, look("ls", dir), "  complete, newest\n")
	wantOut(t, 1, look("verify", dir), "clock 6: damaged\n  "+name+", bytes ",
		"perdure: "+folder+": 1 checkpoint, 1 damaged, 1 defect\n")
	wantRefused(t, exitError, name, look("export", dir, "--to", model, "--force")...)
	wantOut(t, 1, look("prune", dir, "--keep", "1"),
		"perdure: "+folder+" holds no complete checkpoint; nothing was deleted\n")
	wantRefused(t, exitUsage, "it holds that of clock 6\n", look("show", dir+"@7")...)
}

// TestCheckpointAlive: the checkpoints of an active run can be inspected, but not deleted. After its end they can be
// deleted, and it can resume from the newest.
func TestCheckpointAlive(t *testing.T) {
	t.Parallel()
	dir := newFolder(t)
	p := start(t, small("--clocks", "1000000", "--out", dir)...)
	awaitCheckpoint(t, dir)
	for _, command := range []string{"ls", "show", "verify"} {
		wantOut(t, 0, []string{"checkpoint", command, dir}, "complete")
	}
	prune := []string{"checkpoint", "prune", dir, "--keep", "1"}
	wantRefused(t, exitUsage, fmt.Sprintf("still running, in pid %d since .*; end it first", p.Process.Pid), prune...)
	p.Stop()
	wantOut(t, 0, prune, "keep clock ")
	if _, err := (&settings.Flags{}).Resume(dir); err != nil {
		t.Errorf("resume after pruning: %v", err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "checkpoint", "*"))
	if err != nil || len(names) != 7 {
		t.Errorf("the files are %v; want a manifest and a segment of each of 6 shards", names)
	}
}

package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFullFolder fills the disk of a job's whole directory. A server, the coordinator and a worker are killed before
// space is freed. The job waits, and its model is that of an undisturbed job.
func TestFullFolder(t *testing.T) {
	t.Parallel()
	for _, recovery := range brief(1, []string{"resend:10", "chain:2,checkpoint:10", "stateless"}) {
		t.Run(recovery, func(t *testing.T) {
			t.Parallel()
			fillFolder(t, recovery)
		})
	}
}

func fillFolder(t *testing.T, recovery string) {
	t.Helper()
	where, size, more := t.TempDir(), "size=32m", []string(nil)
	if recovery == "stateless" { // a log has a minimum size
		size, more = "size=256m", []string{"--log", "file:?mb=192"}
	}
	if err := unix.Mount("tmpfs", where, "tmpfs", 0, size); err != nil {
		t.Skipf("cannot mount a small file system on this machine: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(where, unix.MNT_DETACH)) })
	dir, filler := filepath.Join(where, "run"), filepath.Join(where, "filler")
	args := slices.DeleteFunc(small(append(more, "--recovery", recovery, "--compute-ms", "50", "--out", dir,
		"--fault", "kill:server:0@2s", "--fault", "kill:worker:1@2.2s", "--fault", "kill:coordinator@2.5s")...),
		func(arg string) bool { return arg == "--quiet" })
	p := start(t, args...)
	p.Says(`clock +[1-9][0-9]* of `) // training has started
	must(t, fill(filler))
	p.Says("fault: kill:coordinator")
	must(t, os.Remove(filler))
	s := p.succeeds(dir)
	sameModel(t, s, one(t), dir)
	p.Says("cannot (go on|continue)")
	checkFailures(t, s, 3)
}

// fill leaves no space on a file's disk.
func fill(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	for block := make([]byte, 1<<20); len(block) > 0; {
		if _, err = f.Write(block); errors.Is(err, syscall.ENOSPC) {
			block = block[:len(block)/2]
			err = nil
		} else if err != nil {
			block = nil
		}
	}
	return errors.Join(err, f.Close())
}

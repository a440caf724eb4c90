//go:build unix

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
)

// TestTwoCoordinators: one at a time has a run's registry, and a second says which process
// it is, though that one be frozen. What a killed one leaves is no obstacle.
func TestTwoCoordinators(t *testing.T) {
	dir := runFolder(t)
	facts := filepath.Join(dir, "registry", "facts")
	must(t, os.MkdirAll(filepath.Dir(facts), 0o777))
	must(t, os.WriteFile(facts+".lock", []byte("1 elsewhere 2100-01-01T00:00:00Z\n"), 0o666)) // of a dead one
	host, err := os.Hostname()
	must(t, err)
	for range 2 {
		first := coordinate(t, dir)
		first.serves(t)
		before, err := os.ReadFile(facts)
		must(t, err)
		want := fmt.Sprintf(`^perdure: coordinator: registry: in use by another process: pid %d on %s since 20\S+Z `+
			`\(%s\)\n$`,
			first.Process.Pid, regexp.QuoteMeta(host), regexp.QuoteMeta(facts))
		coordinate(t, dir).refused(exitError, want)
		first.Signal(syscall.SIGSTOP)
		coordinate(t, dir).refused(exitError, want)
		first.Signal(syscall.SIGCONT)
		first.serves(t)
		if after, err := os.ReadFile(facts); err != nil || !bytes.Equal(before, after) {
			t.Errorf("the facts were %q, and are %q (%v)", before, after, err)
		}
		first.Kill()
	}
}

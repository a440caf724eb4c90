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

// TestTwoCoordinators: only one coordinator at a time holds a run's registry. A second one reports which process holds
// it, even if that process is suspended. The lock file of a killed coordinator is no obstacle.
func TestTwoCoordinators(t *testing.T) {
	dir := runFolder(t)
	record := filepath.Join(dir, "registry", "facts")
	must(t, os.MkdirAll(filepath.Dir(record), 0o777))
	must(t,
		os.WriteFile(record+".lock", []byte("1 elsewhere 2100-01-01T00:00:00Z\n"), 0o666)) // left by a dead coordinator
	host, err := os.Hostname()
	must(t, err)
	for range 2 {
		first := coordinate(t, dir)
		first.serves(t)
		before, err := os.ReadFile(record)
		must(t, err)
		want := fmt.Sprintf(`^perdure: coordinator: registry: in use by another process: pid %d on %s since 20\S+Z `+
			`\(%s\)\n$`,
			first.Process.Pid, regexp.QuoteMeta(host), regexp.QuoteMeta(record))
		coordinate(t, dir).refused(exitError, want)
		first.Signal(syscall.SIGSTOP)
		coordinate(t, dir).refused(exitError, want)
		first.Signal(syscall.SIGCONT)
		first.serves(t)
		if after, err := os.ReadFile(record); err != nil || !bytes.Equal(before, after) {
			t.Errorf("the job record was %q and is now %q (%v)", before, after, err)
		}
		first.Kill()
	}
}

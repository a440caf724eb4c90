package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/data/wire"
)

// stuckAt is an environment variable that names a missing file. The first coordinator to start creates the file, and
// its loop will hang.
const stuckAt = "PERDURE_TEST_STUCK_AT"

// hangLoop makes the loop of a job's first coordinator hang permanently after it has logged a death. It replaces the
// log by a pipe that is no longer read after that. The process's other goroutines keep running, and no other process is
// affected.
func hangLoop() error {
	mark := os.Getenv(stuckAt)
	if mark == "" || len(os.Args) < 2 || os.Args[1] != string(wire.RoleCoordinator) {
		return nil
	}
	f, err := os.OpenFile(mark, os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return nil // a later coordinator
	}
	r, w, piped := os.Pipe()
	if err = errors.Join(err, piped); err != nil {
		return err
	}
	log := stdout.File
	stdout.File = w
	go func() {
		defer r.Close() // never reached, so the pipe keeps its reader
		for lines := bufio.NewScanner(r); lines.Scan(); {
			fmt.Fprintln(log, lines.Text())
			if strings.Contains(lines.Text(), "event=detected") {
				break
			}
		}
		fmt.Fprintln(log, "the log takes no more")
		_, _ = w.Write(make([]byte, 1<<20)) // fills the pipe and never returns
	}()
	return f.Close()
}

// TestStuckLoop: a coordinator's loop hangs when a worker has died and must be replaced. The hang is detected although
// the process still accepts connections and reads messages. The coordinator is killed and replaced, and the job
// continues to the same model.
func TestStuckLoop(t *testing.T) {
	onlyAll(t)
	dir := t.TempDir()
	t.Setenv(stuckAt, filepath.Join(dir, "stuck"))
	s, run := trained(t, small("--fault", "kill:worker:1@clock:20")...)
	log := fileOf(t, run, "logs", "coordinator.log")
	if n := strings.Count(log, "the log takes no more"); n != 1 {
		t.Errorf("%d coordinators hung:\n%s", n, log)
	}
	events := eventsOf(t, run)
	if n := strings.Count(events,
		"coordinator has been silent for too long; it is killed and replaced"); n != 1 {
		t.Errorf("%d events report that the coordinator was silent, want 1:\n%s", n, events)
	}
	must(t, os.Unsetenv(stuckAt))
	sameModel(t, s, one(t), run)
}

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

// stuckAt, in the environment of a job's processes, names a file that is not there: the first
// coordinator makes it, and its loop will hang.
const stuckAt = "PERDURE_TEST_STUCK_AT"

// hangLoop has the loop of a job's first coordinator hang for good, once it has told of a
// death: it tells what it does in its log, which is a pipe that nobody reads any more then. The
// process's other goroutines live on. Nothing is changed in any other process.
func hangLoop() error {
	mark := os.Getenv(stuckAt)
	if mark == "" || len(os.Args) < 2 || os.Args[1] != string(wire.RoleCoordinator) {
		return nil
	}
	f, err := os.OpenFile(mark, os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return nil // this is a later coordinator
	}
	r, w, piped := os.Pipe()
	if err = errors.Join(err, piped); err != nil {
		return err
	}
	log := stdout.File
	stdout.File = w
	go func() {
		defer r.Close() // never: and so the pipe has a reader
		for lines := bufio.NewScanner(r); lines.Scan(); {
			fmt.Fprintln(log, lines.Text())
			if strings.Contains(lines.Text(), "event=detected") {
				break
			}
		}
		fmt.Fprintln(log, "the log takes no more")
		_, _ = w.Write(make([]byte, 1<<20)) // it fills the pipe, and does not return
	}()
	return f.Close()
}

// TestStuckLoop: a coordinator whose loop hangs for good, when a worker has died and is to
// be replaced, is noticed, though its process takes connections, and reads what comes, as
// always. It is killed and replaced, and the job goes on to the same model.
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
		t.Errorf("it is said %d times that the coordinator was silent:\n%s", n, events)
	}
	must(t, os.Unsetenv(stuckAt))
	sameModel(t, s, one(t), run)
}

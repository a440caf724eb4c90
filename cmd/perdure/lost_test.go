package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	perdurelib "github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/reach"
	"github.com/perdure/perdure/internal/run/secrets"
	"github.com/perdure/perdure/worker"
)

// TestOutlivesItsJob kills a user's job with all its processes: the user's own worker,
// which waits for the others to finish, ends soon, and says what it has lost.
func TestOutlivesItsJob(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "run")
	cmd, match, end := begin(t, `coordinator is at (\S+):`, "up", "--workers", "2", "--servers", "2", "--shards", "2",
		"--clocks", "1", "--out", dir)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	finished := make(chan error, 1)
	for range 2 {
		c, err := worker.Dial(ctx, worker.Config{
			Network: transport.TCP{}, Coordinator: match[1], SecretFile: filepath.Join(dir, secrets.File),
			Slot:    perdurelib.NoSlot,
			Process: reach.ProcessName(), LostAfter: 3 * time.Second,
		})
		must(t, err)
		defer c.Close()
		if c.Slot() == 0 {
			go func() {
				if _, err := c.Clock(ctx); err != nil {
					finished <- err
					return
				}
				finished <- c.Finish(ctx) // the other slot does nothing
			}()
		}
	}
	must(t, cmd.Process.Kill())
	_, _ = end()
	if err := <-finished; !errors.Is(err, perdurelib.ErrLost) || !strings.Contains(err.Error(), match[1]) {
		t.Errorf("the worker ended with: %v", err)
	}
}

// A worker that comes when a job is over hears so, and ends well.
func TestWorkerComesLate(t *testing.T) {
	_, dir := trained(t, small()...)
	control, err := os.ReadFile(filepath.Join(dir, "control"))
	must(t, err)
	code, out, errs := invoke(t, "worker", "--join", strings.TrimSpace(string(control)), "--run", dir)
	if code != 0 || !strings.Contains(out, "the job is done") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
}

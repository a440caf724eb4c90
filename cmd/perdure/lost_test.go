package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	perdurelib "github.com/perdure/perdure"
	"github.com/perdure/perdure/worker"
)

// TestOutlivesItsJob kills a user's job with all its processes. The user's own worker, which waits for the others to
// finish, ends soon with an error that names the lost job.
func TestOutlivesItsJob(t *testing.T) {
	t.Parallel()
	dir := newFolder(t)
	job, coordinator := up(t, dir, "--workers", "2", "--servers", "2", "--shards", "2", "--clocks", "1")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	finished := make(chan error, 1)
	for range 2 {
		c, err := joins(ctx, dir, coordinator, perdurelib.NoSlot,
			func(cfg *worker.Config) { cfg.LostAfter = 3 * time.Second })
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
	job.Kill()
	if err := <-finished; !errors.Is(err, perdurelib.ErrLost) || !strings.Contains(err.Error(), coordinator) {
		t.Errorf("the worker ended with: %v", err)
	}
}

// TestWorkerComesLate: a worker that joins after the end of a job is notified and exits successfully.
func TestWorkerComesLate(t *testing.T) {
	_, dir := trained(t, small()...)
	wantOut(t, 0, []string{"worker", "--join", controlOf(t, dir), "--run", dir}, "the job is done")
}

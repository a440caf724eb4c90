package coordinator

import (
	"context"
	"time"
)

// task is work for the loop.
type task struct {
	do func()
	// saved tasks read the core and may send its state to other processes, so that state is saved before they run. The
	// results of other tasks are saved together, after all messages that arrived with them.
	saved bool
}

// inbox is the loop's queue of tasks.
type inbox chan task

// doSaved runs f in the loop after the effects of all earlier tasks are saved.
func (in inbox) doSaved(ctx context.Context, f func()) { in.post(ctx, task{f, true}) }

// doUnsaved runs f in the loop. f may update the core, but must not send its state to any process, because that state
// may not be saved yet.
func (in inbox) doUnsaved(ctx context.Context, f func()) { in.post(ctx, task{f, false}) }

func (in inbox) post(ctx context.Context, d task) {
	select {
	case in <- d:
	case <-ctx.Done():
	}
}

// read runs a task and all tasks that have arrived by then, as far as time permits until the next tick. Saving takes as
// long for one message as for hundreds, and more messages arrive while the loop waits for its disk.
func (c *Coordinator) read(ctx context.Context, d task) error {
	began := time.Now()
	for waiting := len(c.inbox); ; waiting-- {
		if d.saved {
			if err := c.carryOut(ctx); err != nil {
				return err
			}
		}
		d.do()
		c.monitor.recordUnread(len(c.inbox))
		if waiting <= 0 || d.saved || c.endErr != nil || time.Since(began) >= c.cfg.Tick {
			return nil
		}
		d = <-c.inbox
	}
}

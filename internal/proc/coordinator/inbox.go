package coordinator

import (
	"context"
	"time"
)

// deed is something that the loop is to do.
type deed struct {
	do func()
	// exact says that it tells somebody what the core knows: all of that is recorded
	// before. What only tells the core something is recorded together with what came
	// with it.
	exact bool
}

// inbox is what the loop is to do, in order.
type inbox chan deed

// do runs f in the loop, when all that came before it is carried out.
func (in inbox) do(ctx context.Context, f func()) { in.post(ctx, deed{f, true}) }

// gather runs f in the loop, where it may tell the core something, and nobody what the
// core knows: that may not be recorded yet.
func (in inbox) gather(ctx context.Context, f func()) { in.post(ctx, deed{f, false}) }

func (in inbox) post(ctx context.Context, d deed) {
	select {
	case in <- d:
	case <-ctx.Done():
	}
}

// read does what is to be done, and all that has come by then, or as much of it as there is
// time for until the next tick: to record what follows from it takes as long for one
// message as for hundreds, and while the loop waits for its disk others come.
func (c *Coordinator) read(ctx context.Context, d deed) error {
	began := time.Now()
	for waiting := len(c.inbox); ; waiting-- {
		if d.exact {
			if err := c.carryOut(ctx); err != nil {
				return err
			}
		}
		d.do()
		c.attention.reads(len(c.inbox))
		if waiting <= 0 || d.exact || c.ended != nil || time.Since(began) >= c.cfg.Tick {
			return nil
		}
		d = <-c.inbox
	}
}

package worker

import (
	"context"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// ProposeEnd is EndJob for a goal that only the final model can prove: without two-step clocks, updates in flight
// change the model after its evaluation. The end is therefore tentative, and every slot must call SettleEnd at that
// clock before Finish.
func (c *Client) ProposeEnd(ctx context.Context) error { return askForEnd(ctx, c, true) }

// SettleEnd waits until a tentative end at or before the current clock is confirmed or taken back. It returns
// immediately if there is no such end.
//
// SettleEnd calls reached in the first participating slot, and calls it again in another process if that process dies.
// It confirms the end if reached returns true. The context of reached ends if the job is rolled back, since reached may
// wait for updates that its own slot must then repeat.
//
// Afterwards End may be later than Now; training then continues. If the job is rolled back meanwhile, SettleEnd returns
// perdure.ErrRolledBack.
func (c *Client) SettleEnd(ctx context.Context, reached func(context.Context) (bool, error)) error {
	l := c.lock()
	defer c.mu.Unlock()
	if err := l.requireSlot(ends); err != nil {
		return err
	}
	at := l.out.Clock()
	settled := func() (bool, error) { return !l.view.Tentative || l.view.End > at, l.usable() }
	first := func() bool { rank, _ := l.view.Rank(l.slot, at); return rank == 0 && l.view.End == at }
	err := l.waits.Until(ctx, func() (bool, error) {
		over, err := settled()
		return over || first(), err
	})
	if over, _ := settled(); err != nil || over {
		return err
	}
	c.mu.Unlock()
	same, end := c.ContextUntilRollback(ctx)
	ok, err := reached(same)
	end()
	c.mu.Lock()
	if rolled := l.usable(); err != nil && rolled != nil {
		return rolled
	}
	if err != nil {
		return err
	}
	return repeat(ctx, l, settled, func() wire.Report {
		return wire.Report{Clock: at, EndAfter: ok, Continue: !ok}
	})
}

// ContextUntilRollback returns a context that ends with ctx, or as soon as the job is rolled back. Use it to wait for
// updates that the slot must repeat after a rollback. The caller must call end.
func (c *Client) ContextUntilRollback(ctx context.Context) (same context.Context, end context.CancelFunc) {
	same, end = context.WithCancel(ctx)
	c.done.Go(func() {
		l := c.lock()
		defer c.mu.Unlock()
		_ = l.waits.Until(same, func() (bool, error) { return l.usable() != nil, nil })
		end()
	})
	return same, end
}

// askForEnd asks for the job's end, which may be tentative, until the coordinator has recorded it.
func askForEnd(ctx context.Context, c *Client, tentative bool) error {
	l := c.lock()
	defer c.mu.Unlock()
	if err := l.requireSlot(ends); err != nil {
		return err
	}
	conn, asked := l.session.conn, l.pauses
	over := func() (bool, error) {
		// A pause that began after the request ends only with the coordinator's answer.
		stays := conn == l.session.conn && l.pauses > asked && !l.view.Pause && !l.job.TwoStep(l.view.Tables)
		end := l.view.End
		if l.view.Tentative && !tentative {
			return false, l.usable() // that end may be taken back
		}
		return end > 0 && (end <= l.out.Clock() || end != l.job.Clocks || stays), l.usable()
	}
	return repeat(ctx, l, over, func() wire.Report {
		if conn != l.session.conn { // a report sent on the previous connection may be lost
			conn, asked = l.session.conn, l.pauses
		}
		return wire.Report{Clock: l.out.Clock(), EndAfter: true, Tentative: tentative}
	})
}

// repeat reports to the coordinator until it has acted on the report.
func repeat(ctx context.Context, l *locked, acted func() (bool, error), report func() wire.Report) error {
	for ctx.Err() == nil {
		if done, err := acted(); err != nil || done {
			return err
		}
		l.report(report())
		again, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		_ = l.waits.Until(again, acted) // on timeout, report again
		cancel()
	}
	return ctx.Err()
}

package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/outbox"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/wire"
)

// Clock ends the iteration: everything Inc'd since the last Clock becomes this
// slot's updates of the clock. It returns the clock now to work on: one more
// than before; an earlier one if the job was rolled back (then what was Inc'd is
// dropped, and LoadState gives what had been saved by then); the same one if the
// job ends here.
//
// Under a model with two-step clocks it returns once the updates are staged on
// all shards; otherwise as soon as they are queued, unless more than the window
// of unacknowledged bytes is; what a shard that is out is to get may be more (see
// perdure.JobSpec.OnOutage). Under vap it first waits until the updates that not
// every slot can see are small enough to send them. If it returns ctx's error it can be called again
// and goes on where it was.
func (c *Client) Clock(ctx context.Context) (perdure.Clock, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.mayClock(); err != nil {
		return c.out.Clock(), err
	}
	if c.out.Phase().Ended() {
		return c.turn(), nil
	}
	begin := time.Now()
	defer c.stats.clocked(begin, c.stats.stale)
	err := c.wait(ctx, func() (bool, error) {
		return c.out.Phase().Ended() || !c.view.Pause && c.out.Within() && c.out.HasRoom(), nil
	})
	c.waited(begin)
	if err != nil {
		return c.out.Clock(), err
	}
	if c.out.Phase() == outbox.Open {
		if err := c.buildUpdates(); err != nil {
			return c.out.Clock(), err
		}
	}
	if c.out.Phase() == outbox.Built {
		if err := c.sendBounded(ctx); err != nil {
			return c.out.Clock(), err
		}
	}
	if c.out.TwoStep() {
		err := c.wait(ctx, func() (bool, error) { return c.out.Phase().Ended() || c.out.Stage() && !c.view.Pause, nil })
		if err != nil {
			return c.out.Clock(), err
		}
	}
	if c.out.Phase().Ended() {
		return c.turn(), nil
	}
	if c.out.TwoStep() {
		c.tick()
	}
	c.out.Next()
	c.setMoment()
	c.clockedOut()
	c.reads.Tidy()
	c.carryOut()
	if slices.Contains(c.job.Alarms, c.out.Clock()) || c.out.Begins() {
		c.notify()
	}
	return c.out.Clock(), nil
}

// mayClock needs c.mu.
func (c *Client) mayClock() error {
	if c.err == nil && c.slot < 0 {
		return fmt.Errorf("%w: an observer has no clocks to end and no state to save", perdure.ErrUsage)
	}
	return c.err
}

// turn takes the clock that a roll-back or the job's end dictates. It needs c.mu.
func (c *Client) turn() perdure.Clock {
	rolled := c.out.Phase() == outbox.Rolled
	if c.out.Turn(); rolled {
		c.setMoment()
		c.notify()
	} else {
		c.reads.Forget() // what was Inc'd is not shown any more
	}
	return c.out.Clock()
}

// tick lets the shards apply this clock, which is staged on all of them. It needs c.mu.
func (c *Client) tick() {
	c.out.Tick()
	for _, sh := range c.shards {
		f := c.out.TickFrame(c.header(sh))
		switch {
		case c.logs():
			c.appendFrame(sh, f, nil)
		case sh.headOpen && !sh.out.Behind():
			sh.head.batch = append(sh.head.batch, f)
		}
	}
	c.flush()
}

// buildUpdates turns what was Inc'd into one update for every shard, and sends them, as soon
// as vap lets it. It needs c.mu.
func (c *Client) buildUpdates() error {
	if err := c.out.CheckFinite(); err != nil {
		return err
	}
	for _, sh := range c.shards {
		for _, t := range c.tables {
			if t != nil {
				t.showLoans(t.parts[sh.id])
			}
		}
		if err := sh.out.Fill(c.reads.Origin(sh.rows)); err != nil {
			return err
		}
	}
	c.reads.Built()
	c.out.Seal()
	c.reads.Renew()
	if c.out.Phase() != outbox.Built {
		c.sendUpdates()
	}
	return nil
}

// sendUpdates sends this clock's updates, as far as they have not left. It needs c.mu.
func (c *Client) sendUpdates() {
	for _, sh := range c.shards {
		c.sendParts(sh, true)
		if sh.open {
			c.reads.Renewals(sh.rows)
			c.gather()
		}
	}
	c.flush()
}

// Flush sends what was Inc'd to the table so far in this clock, while the program
// goes on computing, so that a large update is on its way before Clock. (What
// fills a message leaves by itself, unless rows were Inc'd twice in the last
// clock.) It changes nothing else: nothing is applied before Clock, and rows that
// are Inc'd again are sent again, with all that was Inc'd to them in the clock.
func (t *Table) Flush() error {
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.mayInc(); err != nil {
		return err
	}
	if err := t.out.CheckFinite(); err != nil {
		return err
	}
	for _, p := range t.parts {
		if err := t.send(p, true); err != nil {
			return err
		}
	}
	c.flush()
	return nil
}

// send puts a part's deltas into the update of the present clock, and makes them ready to
// leave. It needs c.mu.
func (t *Table) send(p *part, loans bool) error {
	c, sh := t.c, t.c.shards[p.shard]
	if !p.deltas.Due(loans, sh.headOpen) {
		return nil
	}
	if loans {
		t.showLoans(p)
	}
	leaves, err := p.deltas.Fill(loans, sh.headOpen)
	if leaves && err == nil {
		c.sendParts(sh, false)
	}
	return err
}

// sendParts sends those parts of a shard's updates that have not left, if they may go
// now. mayHold says that the newest update may wait for the next one. It needs c.mu.
func (c *Client) sendParts(sh *shardLink, mayHold bool) {
	if c.logs() {
		c.appendParts(sh, mayHold)
		return
	}
	c.feed(sh)
}

// Settle waits until all updates of the clocks that this client has ended are
// applied. Under bsp that needs the other slots to end them, too. If the job is
// rolled back meanwhile it returns ErrRolledBack.
func (c *Client) Settle(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usable(); err != nil || c.slot < 0 {
		return err
	}
	c.out.Prompt() // the next clock's updates ask by themselves
	if !c.out.AllApplied() {
		for _, sh := range c.shards {
			if sh.out.Await() && sh.open {
				sh.reader.batch = append(sh.reader.batch, c.syncFrame(sh))
			}
		}
		c.letAllGo()
		c.flush()
	}
	return c.wait(ctx, func() (bool, error) { return c.out.AllApplied(), c.usable() })
}

// SaveState gives what the program itself must keep (a position in the data, a
// random state). It travels with the slot's next update and is staged, ticked
// and saved with it: the slot's next process gets it from LoadState. It must not
// be larger than wire.PartBytes.
func (c *Client) SaveState(state []byte) error {
	if len(state) > wire.PartBytes {
		return fmt.Errorf("%w: saved state of %d bytes; at most %d fit in one message", perdure.ErrUsage, len(state), wire.PartBytes)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := cmp.Or(c.mayClock(), c.usable()); err != nil {
		return err
	}
	c.out.SaveState(append([]byte{}, state...))
	return nil
}

// SaveDue reports whether a checkpoint will be of the end of the present clock. A
// program to which it costs much to save its state may call SaveState in such clocks
// only, before Clock, if its Config says SavesAtCuts. Then the death of its process
// takes the whole job back to the last checkpoint, of which LoadState gives the state;
// and a job that keeps no checkpoints refuses it.
func (c *Client) SaveDue() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.SaveDue()
}

// LoadState returns what the slot's program had saved before the present clock,
// nil if nothing.
func (c *Client) LoadState(ctx context.Context) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := cmp.Or(c.mayClock(), c.usable()); err != nil {
		return nil, err
	}
	if saved := c.out.SavedState(); saved != nil { // the replica that would be asked may not have it yet
		return slices.Clone(saved), nil
	}
	call := c.reads.Load(c.shards[placement.Home(c.slot, len(c.shards))].rows, c.out.Clock())
	if err := c.await(ctx, call, c.usable); err != nil {
		return nil, err
	}
	defer call.Free()
	return call.State(), nil
}

// usable returns why Get, Inc and the like cannot be done now. It needs c.mu.
func (c *Client) usable() error {
	if c.err != nil {
		return c.err
	}
	if c.out.Phase() == outbox.Rolled {
		return perdure.ErrRolledBack
	}
	return nil
}

// Finish says that this slot has done its last clock and waits until the whole
// job is done, or, of a slot that leaves before, until it may go. If the job is rolled back meanwhile it returns ErrRolledBack:
// call Clock and go on from there.
func (c *Client) Finish(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.Last(true)
	c.letAllGo()
	c.notify()
	c.stats.over = time.Now()
	defer c.out.Last(false)
	over := func() bool { return c.view.Done || c.view.Slots[c.slot].Left }
	err := c.wait(ctx, func() (bool, error) { return over(), c.usable() })
	if over() || errors.Is(err, perdure.ErrDone) {
		return nil // whatever became of the connections since; or it was away when the others were told
	}
	if err != nil {
		c.stats.over = time.Time{} // it goes on
	}
	return err
}

// AwaitSlots waits until a process speaks for every slot of the present clock, so that all begin
// together: who came first would else be ahead from the start, by as much as its
// tables allow. If the job is rolled back meanwhile it returns ErrRolledBack.
func (c *Client) AwaitSlots(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wait(ctx, func() (bool, error) {
		vacant := slices.ContainsFunc(c.view.Slots, func(s perdure.SlotView) bool {
			return s.Has(c.out.Clock()) && (s.Incarnation == 0 || !s.Settled)
		})
		return !vacant, c.usable()
	})
}

// EndJob asks that the job end as soon as every slot can, because its goal is
// reached at this clock, and waits until that is recorded.
func (c *Client) EndJob(ctx context.Context) error {
	for {
		c.mu.Lock()
		r := wire.Report{Clock: c.out.Clock(), EndAfter: true}
		before := c.view.End
		err := c.usable()
		planned := c.job.Clocks > 0 && before == c.job.Clocks
		ended := before > 0 && (before <= c.out.Clock() || !planned)
		c.mu.Unlock()
		if err != nil || ended {
			return err
		}
		c.Report(r)
		pause, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		c.mu.Lock()
		err = c.wait(pause, func() (bool, error) { return c.view.End != before, c.usable() })
		c.mu.Unlock()
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && pause.Err() == nil {
			return err
		}
	}
}

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
	"github.com/perdure/perdure/internal/core/protocol"
)

// Clock ends the iteration: all deltas added since the last Clock become this slot's updates of the clock. It returns
// the clock to work on next:
//
//   - the next clock;
//   - an earlier clock, if the job was rolled back: the deltas are dropped, and LoadState returns the
//     state saved by that clock;
//   - the same clock, if the job ends here, or the slot leaves here.
//
// Under a model with two-step clocks (bsp), Clock returns once the updates are staged on all shards. Under all other
// models it returns as soon as they are queued. Before that, Clock waits while the kept updates exceed
// Config.WindowBytes, RetainBytes or OutageBytes. Under vap it also waits until the updates that some slot cannot see
// are small enough.
//
// If Clock returns ctx's error it may be called again, and resumes. perdure.ErrNonFinite reports a delta that contains
// NaN or Inf.
//
// Under asp with atomic clocks, slots may be far apart. If the job ends early, Clock ends all clocks that a slot still
// has to do, so that no slot waits for it.
func (c *Client) Clock(ctx context.Context) (perdure.Clock, error) { return SkipTo(ctx, c, 0) }

// SkipTo is Clock for all clocks below to, under asp with atomic clocks. The deltas become one update of these clocks,
// which a death or a rollback never divides. But if a part was sent, because of its size or by Flush, the deltas are
// the update of the current clock, and those of the later clocks are empty. Under other models SkipTo is Clock.
func SkipTo(ctx context.Context, c *Client, to perdure.Clock) (perdure.Clock, error) {
	l := c.lock()
	defer c.mu.Unlock()
	if err := l.requireSlot(clocks); err != nil {
		return l.out.Clock(), err
	}
	if l.out.Phase().IsOver() {
		return l.resetClock(), nil
	}
	start := l.outages.waits()
	stale := l.time.calls.stale
	defer func() { l.time.AddClockTime(time.Since(start), stale) }()
	err := l.waits.Until(ctx, func() (bool, error) {
		return l.out.Phase().IsOver() ||
			!l.view.Pause && l.out.WithinLimits() && l.out.CanRetain() && l.saving.Ready(), nil
	})
	l.outages.waited(start)
	if err != nil {
		return l.out.Clock(), err
	}
	if l.out.Phase() == outbox.Open {
		if err := l.saving.Failed(); err != nil {
			return l.out.Clock(), fmt.Errorf("worker: %w", err)
		}
		if packed := l.saving.Packed(); packed != nil {
			l.out.SaveState(packed)
		}
		to = l.out.SkipTo(to)
		if err := l.buildUpdates(); err != nil {
			return l.out.Clock(), err
		}
	}
	if l.out.Phase() == outbox.Built {
		if err := l.sendBounded(ctx); err != nil {
			return l.out.Clock(), err
		}
	}
	if l.out.Mode() == perdure.ClockTwoStep {
		err := l.waits.Until(ctx, func() (bool, error) {
			return !l.out.Phase().InFlight() || l.out.Stage() && !l.view.Pause, nil
		})
		if err != nil {
			return l.out.Clock(), err
		}
	}
	switch phase := l.out.Phase(); {
	case phase.IsOver():
		return l.resetClock(), nil
	case phase == outbox.Open:
		return l.out.Clock(), nil // another call has ended the clock in the meantime
	}
	if l.out.Phase() == outbox.Staged { // check the clock's phase: the view may no longer say two-step
		l.out.Ticks().Current()
		l.sendTicks()
	}
	for l.out.Next(); l.out.Clock() < to && l.out.Phase() == outbox.Open; l.out.Next() {
		l.out.SkipTo(to)
		if err := l.buildUpdates(); err != nil {
			return l.out.Clock(), err
		}
	}
	l.setReadProgress()
	l.outages.CountClock(l.out.Queued())
	l.reads.StartClock()
	l.carryOut()
	if slices.Contains(l.job.Alarms, l.out.Clock()) || l.out.SlotJoinsNext() {
		l.notify()
	}
	return l.out.Clock(), nil
}

// resetClock moves to the clock that a rollback or the end of the job dictates.
func (l *locked) resetClock() perdure.Clock {
	l.saving.Drop()
	l.out.ResetClock()
	l.setReadProgress()
	l.reads.Forget() // the dropped deltas must not be visible any longer
	l.notify()
	return l.out.Clock()
}

// sendTicks lets the shards apply the clocks that all have staged. One that is not open gets the ticks later.
func (l *locked) sendTicks() {
	for _, sh := range l.shards {
		f, needed := l.out.Ticks().Frame(sh.out, sh.as)
		switch {
		case !needed:
		case l.traits.UsesLog():
			l.failIf(l.log.append(sh, f, nil))
		case sh.headOpen:
			sh.head.batch = append(sh.head.batch, f)
		}
	}
	l.servers.flush()
}

// buildUpdates turns the deltas into one update per shard, and sends the updates unless vap has to allow it first.
func (l *locked) buildUpdates() error {
	if err := l.out.Check(); err != nil {
		return err
	}
	for _, sh := range l.shards {
		for _, t := range l.tables {
			if t != nil {
				t.showLoans(t.shards[sh.id])
			}
		}
		if err := sh.out.Fill(l.reads.Origin(sh.rows)); err != nil {
			return err
		}
	}
	l.reads.UpdatesBuilt()
	l.out.Seal()
	l.saving.Drop()
	l.reads.PrefetchExpiring()
	if l.out.Phase() != outbox.Built {
		l.sendUpdates()
	}
	return nil
}

// sendUpdates sends the parts of this clock's updates that have not been sent yet.
func (l *locked) sendUpdates() {
	for _, sh := range l.shards {
		l.sendParts(sh, true)
		if sh.open {
			l.reads.SendPrefetches(sh.rows)
			l.gather()
		}
	}
	l.servers.flush()
}

// Flush sends the deltas added to the table so far in this clock while the program continues to compute, so that a
// large update is under way before Clock. (Deltas that fill a message are sent without Flush, unless rows received
// several Incs in the last clock.) Flush has no other effect: nothing is applied before Clock. Rows with further Incs
// are sent again, with all their deltas of the clock. It does not wait.
func (t *Table) Flush() error {
	l := t.c.lock()
	defer t.c.mu.Unlock()
	if err := cmp.Or(l.requireSlot(incs), l.usable()); err != nil {
		return err
	}
	if err := t.out.CheckFinite(); err != nil {
		return err
	}
	for _, p := range t.shards {
		if err := l.send(t, p, true); err != nil {
			return err
		}
	}
	l.servers.flush()
	return nil
}

// send adds a part's deltas to the update of the current clock, and queues them for sending.
func (l *locked) send(t *Table, p *tableShard, loans bool) error {
	sh := l.shards[p.shard]
	if !p.deltas.CanFill(loans, sh.headOpen) {
		return nil
	}
	if loans {
		t.showLoans(p)
	}
	leaves, err := p.deltas.Fill(loans, sh.headOpen)
	if leaves && err == nil {
		l.sendParts(sh, false)
	}
	return err
}

// sendParts sends those parts of a shard's updates that are not sent yet, if that is possible now. mayHold allows the
// newest update to wait for the next one.
func (l *locked) sendParts(sh *shardLink, mayHold bool) {
	switch {
	case l.traits.UsesLog():
		l.failIf(l.log.put(sh, mayHold))
	case sh.headOpen:
		sh.head.batch = sh.out.NextFrames(sh.as, sh.head.batch)
	}
}

// Settle waits until all updates of the clocks that this client has ended are applied. Under bsp that requires the
// other slots to end these clocks also. If the job is rolled back meanwhile, Settle returns perdure.ErrRolledBack.
func (c *Client) Settle(ctx context.Context) error {
	l := c.lock()
	defer c.mu.Unlock()
	if err := l.usable(); err != nil || l.slot < 0 {
		return err
	}
	l.out.Prompt() // updates of the next clock request prompt acknowledgements themselves
	if !l.out.AllApplied() {
		for _, sh := range l.shards {
			if sh.out.Await() && sh.open {
				sh.reader.batch = append(sh.reader.batch, sh.sync(l.out.Clock()))
			}
		}
		l.flushHeld(everyShard)
		l.servers.flush()
	}
	return l.waits.Until(ctx, func() (bool, error) { return l.out.AllApplied(), l.usable() })
}

// SaveDue reports whether a checkpoint will be taken at the end of the current clock. A program that saves its state at
// a high cost may set Config.SavesAtCuts and call SaveState only in such clocks, before Clock. If its process then
// dies, the whole job rolls back to the last checkpoint, whose state LoadState returns, unless the programs have a
// SharedState. A job without checkpoints rejects SavesAtCuts.
func (c *Client) SaveDue() bool {
	l := c.lock()
	defer c.mu.Unlock()
	return l.out.SaveDue()
}

// Finish reports that this slot has ended its last clock, and waits until the whole job is done. If the slot leaves
// earlier, Finish waits until it may leave. If the job is rolled back meanwhile, Finish returns perdure.ErrRolledBack:
// call Clock, and continue from there.
func (c *Client) Finish(ctx context.Context) error {
	l := c.lock()
	defer c.mu.Unlock()
	if l.slot < 0 {
		return l.requireSlot(clocks)
	}
	l.out.SetLast(true)
	l.flushHeld(everyShard)
	l.notify()
	l.time.SetEnd(time.Now())
	defer l.out.SetLast(false)
	over := func() bool { return l.view.Done || l.leftAt > 0 }
	err := l.waits.Until(ctx, func() (bool, error) { return over(), l.usable() })
	if over() || errors.Is(err, perdure.ErrDone) {
		return nil // even if connections broke since, or the client was disconnected when the job ended
	}
	if err != nil {
		l.time.SetEnd(time.Time{})
	}
	return err
}

// AwaitSlots waits until every slot of the current clock has a process, so that all slots start together. Without it,
// the first slot is ahead from the start by as much as its tables allow. If the job is rolled back meanwhile,
// AwaitSlots returns perdure.ErrRolledBack.
func (c *Client) AwaitSlots(ctx context.Context) error {
	l := c.lock()
	defer c.mu.Unlock()
	return l.waits.Until(ctx, func() (bool, error) {
		vacant := slices.ContainsFunc(l.view.Slots, func(s protocol.SlotView) bool {
			return s.Has(l.out.Clock()) && (s.Incarnation == 0 || !s.Settled)
		})
		return !vacant, l.usable()
	})
}

// EndJob asks for the job to end at the earliest clock at which every slot can stop, because its goal is reached at the
// current clock. It waits until the coordinator has recorded the end. If another slot has already reached the planned
// end, it waits until it is decided that all slots continue to that end. An observer has no clock of its own, and gets
// perdure.ErrUsage.
func (c *Client) EndJob(ctx context.Context) error { return askForEnd(ctx, c, false) }

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
	"github.com/perdure/perdure/internal/core/words"
)

// Clock ends the iteration: everything Inc'd since the last Clock becomes this slot's updates
// of the clock. It returns the clock to work on now:
//
//   - one more than before;
//   - an earlier one, if the job was rolled back: then what was Inc'd is dropped, and
//     LoadState gives what had been saved by then;
//   - the same one, if the job ends here, or the slot's part in it.
//
// Under a model with two-step clocks (bsp) it returns once the updates are staged on all shards; otherwise as soon as
// they are queued. Before, it waits while more is kept than Config.WindowBytes, RetainBytes and OutageBytes allow, and
// under vap until the updates that not every slot can see are small enough. If it returns ctx's error it can be called
// again, and goes on where it was. perdure.ErrNonFinite says which value is NaN or Inf.
func (c *Client) Clock(ctx context.Context) (perdure.Clock, error) {
	l := c.lock()
	defer c.mu.Unlock()
	if err := l.asSlot(clocks); err != nil {
		return l.out.Clock(), err
	}
	if l.out.Phase().Ended() {
		return l.turn(), nil
	}
	begin := time.Now()
	stale := l.time.Stale()
	defer func() { l.time.Clocked(time.Since(begin), stale) }()
	err := l.waits.Until(ctx, func() (bool, error) {
		return l.out.Phase().Ended() || !l.view.Pause && l.out.Within() && l.out.HasRoom() && l.saving.Ready(), nil
	})
	l.outages.waited(begin)
	if err != nil {
		return l.out.Clock(), err
	}
	if l.out.Phase() == outbox.Open {
		if err := l.saving.Failed(); err != nil {
			return l.out.Clock(), fmt.Errorf("worker: %w", err)
		}
		if err := l.buildUpdates(); err != nil {
			return l.out.Clock(), err
		}
	}
	if l.out.Phase() == outbox.Built {
		if err := l.sendBounded(ctx); err != nil {
			return l.out.Clock(), err
		}
	}
	if l.out.TwoStep() {
		err := l.waits.Until(ctx, func() (bool, error) {
			return !l.out.Phase().UnderWay() || l.out.Stage() && !l.view.Pause, nil
		})
		if err != nil {
			return l.out.Clock(), err
		}
	}
	switch phase := l.out.Phase(); {
	case phase.Ended():
		return l.turn(), nil
	case phase == outbox.Open:
		return l.out.Clock(), nil // another call has ended the clock meanwhile
	}
	if l.out.Phase() == outbox.Staged { // by the clock, since the view may call clocks another thing by now
		l.tick()
	}
	l.out.Next()
	l.setMoment()
	l.outages.CountClock(l.out.Queued())
	l.reads.Tidy()
	l.carryOut()
	if slices.Contains(l.job.Alarms, l.out.Clock()) || l.out.Begins() {
		l.notify()
	}
	return l.out.Clock(), nil
}

// turn takes the clock that a roll-back or the job's end dictates.
func (l *locked) turn() perdure.Clock {
	rolled := l.out.Phase() == outbox.Rolled
	l.saving.Drop()
	if l.out.Turn(); rolled {
		l.setMoment()
		l.notify()
	} else {
		l.reads.Forget() // what was Inc'd is not shown any more
	}
	return l.out.Clock()
}

// tick lets the shards apply this clock, which is staged on all of them.
func (l *locked) tick() {
	l.out.Tick()
	for _, sh := range l.shards {
		f := l.out.TickFrame(sh.as)
		switch {
		case l.traits.Logged():
			l.failIf(l.log.append(sh, f, nil))
		case sh.headOpen && !sh.out.Behind():
			sh.head.batch = append(sh.head.batch, f)
		}
	}
	l.servers.flush()
}

// buildUpdates turns what was Inc'd into one update for every shard, and sends them, as soon as vap lets it.
func (l *locked) buildUpdates() error {
	if err := l.out.Check(); err != nil {
		return err
	}
	for _, sh := range l.shards {
		for _, t := range l.tables {
			if t != nil {
				t.showLoans(t.parts[sh.id])
			}
		}
		if err := sh.out.Fill(l.reads.Origin(sh.rows)); err != nil {
			return err
		}
	}
	l.reads.Built()
	l.out.Seal()
	l.saving.Drop()
	l.reads.Renew()
	if l.out.Phase() != outbox.Built {
		l.sendUpdates()
	}
	return nil
}

// sendUpdates sends this clock's updates, as far as they have not left.
func (l *locked) sendUpdates() {
	for _, sh := range l.shards {
		l.sendParts(sh, true)
		if sh.open {
			l.reads.Renewals(sh.rows)
			l.gather()
		}
	}
	l.servers.flush()
}

// Flush sends what was Inc'd to the table so far in this clock, while the program goes on computing, so that a large
// update is on its way before Clock. (What fills a message leaves by itself, unless rows were Inc'd twice in the last
// clock.) It changes nothing else: nothing is applied before Clock, and rows that are Inc'd again are sent again, with
// all that was Inc'd to them in the clock. It does not wait.
func (t *Table) Flush() error {
	l := t.c.lock()
	defer t.c.mu.Unlock()
	if err := cmp.Or(l.asSlot(incs), l.usable()); err != nil {
		return err
	}
	if err := t.out.CheckFinite(); err != nil {
		return err
	}
	for _, p := range t.parts {
		if err := l.send(t, p, true); err != nil {
			return err
		}
	}
	l.servers.flush()
	return nil
}

// send puts a part's deltas into the update of the present clock, and makes them ready to
// leave.
func (l *locked) send(t *Table, p *part, loans bool) error {
	sh := l.shards[p.shard]
	if !p.deltas.Due(loans, sh.headOpen) {
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

// sendParts sends those parts of a shard's updates that have not left, if they may go
// now. mayHold says that the newest update may wait for the next one.
func (l *locked) sendParts(sh *shardLink, mayHold bool) {
	switch {
	case l.traits.Logged():
		l.failIf(l.log.put(sh, mayHold))
	case sh.headOpen:
		sh.head.batch = sh.out.Feed(sh.as, sh.head.batch)
	}
}

// Settle waits until all updates of the clocks that this client has ended are applied. Under bsp that needs the other
// slots to end them, too. If the job is rolled back meanwhile it returns perdure.ErrRolledBack.
func (c *Client) Settle(ctx context.Context) error {
	l := c.lock()
	defer c.mu.Unlock()
	if err := l.usable(); err != nil || l.slot < 0 {
		return err
	}
	l.out.Prompt() // the next clock's updates ask by themselves
	if !l.out.AllApplied() {
		for _, sh := range l.shards {
			if sh.out.Await() && sh.open {
				sh.reader.batch = append(sh.reader.batch, sh.sync(l.out.Clock()))
			}
		}
		l.letGo(everyShard)
		l.servers.flush()
	}
	return l.waits.Until(ctx, func() (bool, error) { return l.out.AllApplied(), l.usable() })
}

// SaveDue reports whether a checkpoint will be of the end of the present clock. A program to which it costs much to
// save its state may call SaveState in such clocks only, before Clock, if its Config says SavesAtCuts. Then the death
// of its process takes the whole job back to the last checkpoint, whose state LoadState gives; and a job that keeps no
// checkpoints refuses it.
func (c *Client) SaveDue() bool {
	l := c.lock()
	defer c.mu.Unlock()
	return l.out.SaveDue()
}

// Finish says that this slot has done its last clock, and waits until the whole job is done;
// or, where the slot leaves before, until it may go. If the job is rolled back meanwhile it
// returns perdure.ErrRolledBack: call Clock, and go on from there.
func (c *Client) Finish(ctx context.Context) error {
	l := c.lock()
	defer c.mu.Unlock()
	if l.slot < 0 {
		return l.asSlot(clocks)
	}
	l.out.Last(true)
	l.letGo(everyShard)
	l.notify()
	l.time.Over(time.Now())
	defer l.out.Last(false)
	over := func() bool { return l.view.Done || l.leftAt > 0 }
	err := l.waits.Until(ctx, func() (bool, error) { return over(), l.usable() })
	if over() || errors.Is(err, perdure.ErrDone) {
		return nil // whatever became of the connections since; or it was away when the others were told
	}
	if err != nil {
		l.time.Over(time.Time{})
	}
	return err
}

// AwaitSlots waits until a process speaks for every slot of the present clock, so that all
// begin together: the first that came would else be ahead from the start, by as much as its
// tables allow. If the job is rolled back meanwhile it returns perdure.ErrRolledBack.
func (c *Client) AwaitSlots(ctx context.Context) error {
	l := c.lock()
	defer c.mu.Unlock()
	return l.waits.Until(ctx, func() (bool, error) {
		vacant := slices.ContainsFunc(l.view.Slots, func(s words.SlotView) bool {
			return s.Has(l.out.Clock()) && (s.Incarnation == 0 || !s.Settled)
		})
		return !vacant, l.usable()
	})
}

// EndJob asks that the job end as soon as every slot can, because its goal is reached at this clock, and waits until
// that is recorded; or, where another slot is at the planned end already, until it is clear that all go on to it. An
// observer has no clock of its own, and gets perdure.ErrUsage.
func (c *Client) EndJob(ctx context.Context) error { return askForEnd(ctx, c, false) }

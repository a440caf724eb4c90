package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/recovery"
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
		return c.clock, err
	}
	if c.rolled || c.ended() {
		return c.turn(), nil
	}
	begin := time.Now()
	defer c.stats.clocked(begin, c.stats.stale)
	err := c.wait(ctx, func() (bool, error) {
		return c.rolled || c.ended() || !c.view.Pause && c.within() && c.hasRoom(), nil
	})
	c.waited(begin)
	if err != nil {
		return c.clock, err
	}
	if !c.rolled && !c.ended() && !c.built {
		if err := c.buildUpdates(); err != nil {
			return c.clock, err
		}
	}
	if c.bounds {
		if err := c.sendBounded(ctx); err != nil {
			return c.clock, err
		}
	}
	if c.twoStep() {
		err := c.wait(ctx, func() (bool, error) { return c.rolled || c.ended() || c.staged() && !c.view.Pause, nil })
		if err != nil {
			return c.clock, err
		}
	}
	if c.rolled || c.ended() {
		return c.turn(), nil
	}
	if c.twoStep() {
		c.tick()
	}
	c.clock++
	c.built = false
	c.setMoment()
	c.clockedOut()
	c.reads.Tidy()
	c.carryOut()
	if slices.Contains(c.job.Alarms, c.clock) || slices.ContainsFunc(c.spans, func(s perdure.Span) bool { return s.From == c.clock+1 }) {
		c.notify()
	}
	return c.clock, nil
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
	if c.rolled {
		c.rolled = false
		c.clock = c.view.Begin(c.slot)
		c.setMoment()
		c.notify()
		return c.clock
	}
	end := c.end()
	for _, sh := range c.shards {
		c.forgetFrom(sh, end)
	}
	for _, t := range c.tables {
		if t != nil {
			t.endClock() // what was Inc'd is dropped, and not shown any more
		}
	}
	c.reads.Forget()
	c.stateDirty, c.built, c.held = false, false, false
	return c.clock
}

// ended reports whether this slot has done its last clock, which the job or its own
// span ends.
func (c *Client) ended() bool {
	end := c.end()
	return end > 0 && c.clock >= end
}

func (c *Client) twoStep() bool { return c.job.TwoStep(c.view.Tables) }

// staged reports whether this clock is staged on all shards. It needs c.mu.
func (c *Client) staged() bool {
	return !slices.ContainsFunc(c.shards, func(sh *shardLink) bool {
		staged := sh.counts.Staged
		if c.logs() {
			staged = sh.stream.clocks
		}
		return staged <= c.clock
	})
}

// tick lets the shards apply this clock: it is staged on all of them, so it
// will be applied on all, whatever happens to this process. It needs c.mu.
func (c *Client) tick() {
	for _, sh := range c.shards {
		for _, u := range sh.from(c.clock) {
			u.ticked = true
		}
	}
	for _, sh := range c.shards {
		switch {
		case c.logs():
			c.appendFrame(sh, c.tickFrame(sh, c.clock), nil)
		case sh.headOpen && !sh.behind:
			sh.head.batch = append(sh.head.batch, c.tickFrame(sh, c.clock))
		}
	}
	c.flush()
}

// buildUpdates turns what was Inc'd into one update for every shard, keeps them
// and sends them. It needs c.mu.
func (c *Client) buildUpdates() error {
	for _, t := range c.tables {
		if t == nil {
			continue
		}
		if err := t.checkFinite(); err != nil {
			return err
		}
	}
	for _, sh := range c.shards {
		b := c.builder(sh)
		for _, t := range c.tables {
			if t != nil {
				t.parts[sh.id].encode(&b, t, true)
			}
		}
		if c.stateDirty && sh.id == c.home() {
			b.state(c.state)
		}
		if o := c.reads.Origin(sh.rows); o.Basis >= 0 && c.job.Scales(c.view.Tables) {
			c.tellOrigin(o, &b)
		}
		b.flush()
		if err := b.check(); err != nil {
			return err
		}
	}
	c.reads.Built()
	for _, sh := range c.shards {
		b := c.builder(sh)
		if u := b.u; u.sent == len(u.parts) {
			b.end(nil) // an empty update; or all has left, but not how many parts there are
		}
		b.u.prompt = c.settled == c.clock
		c.keep(sh, b.u.bytes)
		b.u.open, b.u.held, sh.building = false, c.bounds, nil
	}
	for _, t := range c.tables {
		if t != nil {
			t.endClock()
		}
	}
	c.reads.Renew()
	if c.stateDirty {
		c.saved = c.state
	}
	c.stateDirty, c.built = false, true
	c.stats.sent += int64(len(c.shards))
	if c.held = c.bounds; !c.held {
		c.sendUpdates()
	}
	return nil
}

// sendUpdates sends this clock's updates, as far as they have not left. It needs
// c.mu.
func (c *Client) sendUpdates() {
	for _, sh := range c.shards {
		if c.merge(sh); c.holds(sh, sh.kept[len(sh.kept)-1]) {
			c.hold(sh)
		} else {
			c.sendParts(sh)
		}
		if sh.open {
			c.reads.Renewals(sh.rows)
			c.gather()
		}
	}
	c.flush()
}

// builder goes on with a shard's update of the present clock, or begins it.
func (c *Client) builder(sh *shardLink) partBuilder {
	if sh.building == nil {
		sh.building = c.newUpdate(sh)
		sh.kept = append(sh.kept, sh.building)
	}
	return partBuilder{u: sh.building, start: len(sh.building.arena)}
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
	if err := t.checkFinite(); err != nil {
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

// send puts a part's deltas into the update of the present clock, see encode, and
// makes them ready to leave. It needs c.mu.
func (t *Table) send(p *part, loans bool) error {
	c, d := t.c, &p.deltas
	if d.n == d.gone && (!loans || len(d.loans) == 0) || c.ended() || c.built || c.bounds {
		return nil // else Clock will say what becomes of it
	}
	sh := c.shards[p.shard]
	held := c.holdsParts(sh)
	if held && len(d.loans) == 0 {
		return nil
	}
	b := c.builder(sh)
	p.encode(&b, t, loans)
	b.flush()
	if err := b.check(); err != nil {
		return err
	}
	if !held {
		c.sendParts(sh)
	}
	return nil
}

// sendParts sends those parts of a shard's updates that have not left, if they may go
// now. It needs c.mu.
func (c *Client) sendParts(sh *shardLink) {
	if c.logs() {
		c.appendTo(sh, len(sh.kept))
		return
	}
	c.feed(sh)
}

// endClock begins the table's next clock.
func (t *Table) endClock() {
	for _, p := range t.parts {
		p.deltas.reset()
	}
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
	c.settled = c.clock // the next clock's updates ask by themselves
	if !c.allApplied() {
		for _, sh := range c.shards {
			u := sh.lastEnded()
			if u == nil || u.prompt || u.payloadBytes() >= wire.PromptBytes {
				continue // the server will say so by itself
			}
			u.prompt = true // also if it has to be sent again
			if sh.open {
				sh.reader.batch = append(sh.reader.batch, c.syncFrame(sh))
			}
		}
		c.letAllGo()
		c.flush()
	}
	return c.wait(ctx, func() (bool, error) { return c.allApplied(), c.usable() })
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
	c.state, c.stateDirty = append([]byte{}, state...), true
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
	return c.schedule().Has(c.clock + 1)
}

// schedule says of which clocks there are cuts, as far as is known. It needs c.mu.
func (c *Client) schedule() recovery.Schedule {
	s := c.cuts
	s.Named = c.view.Named
	return s
}

// LoadState returns what the slot's program had saved before the present clock,
// nil if nothing.
func (c *Client) LoadState(ctx context.Context) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := cmp.Or(c.mayClock(), c.usable()); err != nil {
		return nil, err
	}
	if c.saved != nil { // the replica that would be asked may not have it yet
		return slices.Clone(c.saved), nil
	}
	call := c.reads.Load(c.shards[c.home()].rows, c.clock)
	if err := c.await(ctx, call, c.usable); err != nil {
		return nil, err
	}
	defer call.Free()
	return call.State(), nil
}

// home is the shard that keeps this slot's saved state.
func (c *Client) home() perdure.ShardID { return placement.Home(c.slot, len(c.shards)) }

// usable returns why Get, Inc and the like cannot be done now. It needs c.mu.
func (c *Client) usable() error {
	if c.err != nil {
		return c.err
	}
	if c.rolled {
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
	c.finished = true
	c.letAllGo()
	c.notify()
	c.stats.over = time.Now()
	defer func() { c.finished = false }()
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
			return s.Has(c.clock) && (s.Incarnation == 0 || !s.Settled)
		})
		return !vacant, c.usable()
	})
}

// EndJob asks that the job end as soon as every slot can, because its goal is
// reached at this clock, and waits until that is recorded.
func (c *Client) EndJob(ctx context.Context) error {
	for {
		c.mu.Lock()
		r := wire.Report{Clock: c.clock, EndAfter: true}
		before := c.view.End
		err := c.usable()
		planned := c.job.Clocks > 0 && before == c.job.Clocks
		ended := before > 0 && (before <= c.clock || !planned)
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

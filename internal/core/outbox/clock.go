package outbox

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/slotstate"
)

// Check returns an error if the clock cannot end, because the program's Incs are not finite, or because a table that
// combines updates by weight has no weight.
func (b *Outbox) Check() error {
	for _, t := range b.tables {
		if t == nil {
			continue
		}
		if err := t.CheckFinite(); err != nil {
			return err
		}
		if t.spec.Combine == perdure.CombineWeighted && t.weight == 0 {
			return fmt.Errorf("%w: table %s combines updates by weight, but no weight was set for clock %d; call "+
				"Table.Weigh before Clock", perdure.ErrUsage, t.spec.Name, b.clock)
		}
	}
	return nil
}

// Fill moves the Incs that have not been sent into the update of one shard. o describes the rows that the update was
// computed from; o.Basis is < 0 if nothing was read. After an error, Fill can be called again.
func (s *Shard) Fill(o consistency.Origin) error {
	b, p := s.outbox, s.begin()
	for _, t := range b.tables {
		if t != nil {
			t.deltas[s.id].encode(&p, true)
		}
	}
	switch home := s.id == b.jobView.home(); {
	case home && b.saving.dirty:
		p.state(b.saving.state)
	case !home && b.saving.note != nil:
		p.state(b.saving.note)
	}
	if o.Basis >= 0 && b.jobView.scales() {
		p.origin(o)
		if o.DuringOutage && b.jobView.job.StaleScale == perdure.ScaleAverage { // other scales depend on other slots
			slots := consistency.NumParticipants(b.jobView.intervals, b.clock)
			p.u.weight = consistency.Scale(perdure.ScaleAverage, o, 0, slots)
		}
	}
	for _, t := range b.tables {
		if t != nil && t.weight != 0 {
			w := tableWeight{t.id, t.weight}
			p.u.weights = append(p.u.weights, w)
			p.weight(w)
		}
	}
	p.flush()
	return p.check()
}

// Seal ends the updates of the current clock, after Fill was called for all shards. They become Built, and immediately
// Sent if no table uses vap.
func (b *Outbox) Seal() {
	b.step(build)
	for _, s := range b.shards {
		p := s.begin()
		if u := p.u; u.sent == len(u.parts) {
			p.end(nil) // an empty update, or one whose parts were all sent without their number
		}
		p.u.prompt = b.prompt == b.clock
		s.keep(p.u.bytes)
		p.u.phase, s.building = Built, nil
	}
	b.endClock()
	if b.saving.dirty {
		b.saving.left = b.saving.state
	}
	b.saving.dirty, b.saving.note = false, nil
	b.Counters.Updates += int64(len(b.shards)) * int64(b.span())
	if !b.bounds {
		b.Send()
	}
}

// Send allows the current clock's updates to be sent. Updates that wait for an unavailable shard may be merged with
// earlier ones.
func (b *Outbox) Send() {
	b.step(send)
	for _, s := range b.shards {
		s.kept[len(s.kept)-1].phase = Sent
		s.merge()
	}
}

// Stage reports whether the current clock is staged on all shards, so that Ticks.Current may be called.
func (b *Outbox) Stage() bool {
	for _, s := range b.shards {
		if b.ticks.staged(s) <= b.clock {
			b.step(unstage)
			return false
		}
	}
	b.step(stage)
	return true
}

// Next ends the clock, and those that its update also covers, and starts the next one.
func (b *Outbox) Next() {
	b.step(next)
	b.clock += b.span()
}

// SkipTo makes the update of the current clock cover all clocks below to, as far as the wire format and the job's end
// allow; 0 stands for an end that became known while the job ran. It returns the clock that the slot may skip to: the
// caller must end the clocks before it without work if the update does not cover them, because a part of it was sent.
//
// Slots may skip clocks under asp with atomic clocks: no read needs any of these clocks, no cut lies between them, and
// a death does not divide them.
func (b *Outbox) SkipTo(to perdure.Clock) perdure.Clock {
	v, job := &b.jobView.view, b.jobView.job
	if b.skipTo = 0; to == 0 && v.End == b.end && v.End != job.Clocks {
		to = b.end
	}
	if b.end > 0 {
		to = min(to, b.end)
	}
	if to <= b.clock+1 || b.jobView.mode != perdure.ClockAtomic || !job.Unbounded(v.Tables) {
		return b.clock + 1
	}
	begun := func(s *Shard) bool { return s.building != nil && s.building.sent > 0 || s.broken == b.clock+1 }
	if slices.ContainsFunc(b.shards, begun) {
		return to
	}
	b.skipTo = min(to, b.clock+maxMergedClocks)
	for _, s := range b.shards {
		s.begin().u.clocks = b.span()
	}
	if b.saving.dirty { // the state of this clock is that of the last one
		slotstate.Advance(b.saving.state, b.clock, b.skipTo-1)
		slotstate.Advance(b.saving.note, b.clock, b.skipTo-1)
	}
	return to
}

// ResetClock starts the clock that a rollback dictates, or drops the updates of a clock at which the job ends.
func (b *Outbox) ResetClock() {
	rolled := b.phase == RolledBack
	b.step(turn)
	if rolled {
		b.clock = b.jobView.begin()
		b.ticks.Start(b.clock)
		return
	}
	for _, s := range b.shards {
		s.forgetFrom(b.end)
	}
	b.endClock() // drops the Incs
	b.saving.dirty, b.saving.note = false, nil
}

// endClock starts the next clock of every table.
func (b *Outbox) endClock() {
	for _, t := range b.tables {
		if t == nil {
			continue
		}
		t.weight = 0
		for _, d := range t.deltas {
			d.reset()
		}
	}
}

// SlotJoinsNext reports whether another slot starts to participate after the next clock.
func (b *Outbox) SlotJoinsNext() bool {
	return slices.ContainsFunc(b.jobView.intervals, func(s protocol.Interval) bool { return s.From == b.clock+1 })
}

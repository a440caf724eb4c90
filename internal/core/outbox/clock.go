package outbox

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/protocol"
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
	b.Counters.Updates += int64(len(b.shards))
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

// Next ends the clock and starts the next one.
func (b *Outbox) Next() {
	b.step(next)
	b.clock++
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

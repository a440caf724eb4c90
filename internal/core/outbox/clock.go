package outbox

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
)

// Check refuses a clock that cannot end: what was Inc'd in it is not finite, or a table that combines updates by
// their weights was given none.
func (b *Box) Check() error {
	for _, t := range b.tables {
		if t == nil {
			continue
		}
		if err := t.CheckFinite(); err != nil {
			return err
		}
		if t.spec.Combine == perdure.CombineWeighted && t.weight == 0 {
			return fmt.Errorf("%w: table %s combines updates by their weights, and that of clock %d has none; call "+
				"Table.Weigh before Clock", perdure.ErrUsage, t.spec.Name, b.clock)
		}
	}
	return nil
}

// Fill moves what was Inc'd, and has not left, into the update of one shard. o is what it was
// computed from; its Basis is < 0 where nothing was read. After an error it can be called again.
func (s *Shard) Fill(o consistency.Origin) error {
	b, p := s.box, s.begin()
	for _, t := range b.tables {
		if t != nil {
			t.parts[s.id].encode(&p, true)
		}
	}
	switch home := s.id == b.terms.home(); {
	case home && b.saving.dirty:
		p.state(b.saving.state)
	case !home && b.saving.note != nil:
		p.state(b.saving.note)
	}
	if o.Basis >= 0 && b.terms.scales() {
		p.origin(o)
		if o.Alone && b.terms.job.StaleScale == perdure.ScaleAverage { // other scales follow from what others do
			p.u.weight = consistency.Scale(perdure.ScaleAverage, o, 0, consistency.SlotsOf(b.terms.spans, b.clock))
		}
	}
	for _, t := range b.tables {
		if t != nil && t.weight != 0 {
			p.weight(t.id, t.weight)
		}
	}
	p.flush()
	return p.check()
}

// Seal ends the updates of the present clock, which all shards have been filled with. They are
// Built; where vap bounds nothing, they are Sent at once.
func (b *Box) Seal() {
	b.step(build)
	for _, s := range b.shards {
		p := s.begin()
		if u := p.u; u.sent == len(u.parts) {
			p.end(nil) // an empty update; or all has left, but not how many parts there are
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

// Send lets the present clock's updates leave. Those that wait for a shard may be merged with
// the ones before.
func (b *Box) Send() {
	b.step(send)
	for _, s := range b.shards {
		s.kept[len(s.kept)-1].phase = Sent
		s.merge()
	}
}

// Stage reports whether the present clock is staged on all shards, and so may be Ticked.
func (b *Box) Stage() bool {
	for _, s := range b.shards {
		staged := s.counts.Staged
		if b.terms.logs() {
			staged = s.stream.clocks
		}
		if staged <= b.clock {
			b.step(unstage)
			return false
		}
	}
	b.step(stage)
	return true
}

// Tick decides that the present clock is applied on all shards: it is staged on all of them,
// so it will be, whatever happens to this process. Each is to be told by TickFrame.
func (b *Box) Tick() {
	b.step(tick)
	for _, s := range b.shards {
		for _, u := range s.kept.from(b.clock) {
			u.phase = Ticked
		}
	}
}

// TickFrame returns what tells a shard, or its stream, of the present clock's Tick.
func (b *Box) TickFrame(as wire.Header) wire.Frame { return tickFrame(as, b.clock) }

// Next ends the clock, and begins the next one.
func (b *Box) Next() {
	b.step(next)
	b.clock++
}

// Turn begins the clock that a roll-back dictates, or ends what was made of one at which the
// job ends.
func (b *Box) Turn() {
	rolled := b.phase == Rolled
	b.step(turn)
	if rolled {
		b.clock = b.terms.begin()
		return
	}
	for _, s := range b.shards {
		s.forgetFrom(b.end)
	}
	b.endClock() // what was Inc'd is dropped
	b.saving.dirty, b.saving.note = false, nil
}

// endClock begins every table's next clock.
func (b *Box) endClock() {
	for _, t := range b.tables {
		if t == nil {
			continue
		}
		t.weight = 0
		for _, d := range t.parts {
			d.reset()
		}
	}
}

// Begins reports whether another slot's part in the job begins after the next clock.
func (b *Box) Begins() bool {
	return slices.ContainsFunc(b.terms.spans, func(s words.Span) bool { return s.From == b.clock+1 })
}

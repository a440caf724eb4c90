package server

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// takeRoster takes over when each slot takes part. It needs sh.mu.
func (sh *shard) takeRoster(roster uint64, spans []perdure.Span) {
	if n := len(sh.intake.Applied()); len(spans) < n || len(spans) > perdure.MaxSlots {
		sh.s.fail(fmt.Errorf("server: shard %d: %w: a roster of %d slots in a job of %d", sh.id, wire.ErrPayload, len(spans), n))
		return
	}
	for slot, n := range sh.intake.Applied() {
		if spans[slot].From > n {
			sh.states[slot] = nil // another worker's
		}
	}
	sh.raise(func() { sh.intake.SetSpans(roster, spans) })
	sh.makeRoom()
	sh.followSlots()
}

// expect lets entries of a roster's slots come.
func (sh *shard) expect(f *wire.Frame) error {
	var spans []perdure.Span
	if err := wire.ParseControl(f, &spans); err != nil {
		return err
	}
	if n := len(spans); n < sh.job.Slots || n > perdure.MaxSlots {
		return fmt.Errorf("%w: a roster of %d slots in a job of %d", wire.ErrPayload, n, sh.job.Slots)
	}
	sh.slots.Store(max(sh.slots.Load(), int32(len(spans))))
	return nil
}

// makeRoom makes room for the slots that the intake has. It needs sh.mu.
func (sh *shard) makeRoom() {
	slots := len(sh.intake.Applied())
	sh.slots.Store(max(sh.slots.Load(), int32(slots)))
	more := slots - len(sh.acks)
	if more <= 0 {
		return
	}
	sh.acks = append(sh.acks, make([]*conn, more)...)
	sh.dirty = append(sh.dirty, make([]bool, more)...)
	sh.staged = append(sh.staged, make([]bool, more)...)
	sh.ticked = append(sh.ticked, make([]perdure.Clock, max(0, slots-len(sh.ticked)))...)
	sh.prompt = append(sh.prompt, make([]perdure.Clock, more)...)
	sh.spoke = append(sh.spoke, make([]perdure.Incarnation, more)...)
	sh.opened = append(sh.opened, make([]perdure.Incarnation, more)...)
	sh.states = append(sh.states, make([][]byte, slots-len(sh.states))...)
	o := &sh.out
	for slot := len(o.to); slot < slots; slot++ {
		o.to = append(o.to, &outflow{sh: sh, slot: perdure.Slot(slot)})
	}
	for _, sub := range o.subs {
		if sub != nil {
			sub.Grow(slots)
		}
	}
	if o.seen != nil {
		o.seen.Grow(sh.intake.Applied(), sh.seq)
		o.told = append(o.told, make([]perdure.Clock, slots-len(o.told))...)
	}
}

// seats reports whether the shard knows the slot of a connection already: one that
// has just joined the job may be ahead of the log. It needs sh.mu.
func (sh *shard) seats(c *conn) bool { return int(c.slot) < len(sh.acks) }

// serves reports whether a connection is the one on which its slot reads. It needs
// sh.mu.
func (sh *shard) serves(c *conn) bool { return c.slot >= 0 && sh.seats(c) && sh.acks[c.slot] == c }

// inLog returns what a slot's updates take in the log. It needs sh.mu.
func (sh *shard) inLog(slot perdure.Slot) int64 {
	if int(slot) >= len(sh.logged) {
		return 0
	}
	return sh.logged[slot]
}

// logs counts what an update takes in the log while it is not in the intake: sign 1
// when it comes, -1 when it has gone there. It needs sh.mu.
func (sh *shard) logs(f *wire.Frame, sign int64) {
	for int(f.Slot) >= len(sh.logged) {
		sh.logged = append(sh.logged, 0)
	}
	sh.logged[f.Slot] += sign * logCost(f)
}

package consistency

import (
	"fmt"
	"maps"
	"slices"

	"github.com/perdure/perdure"
)

// pushShard is a shard as a server makes it of the package's parts.
type pushShard struct {
	in   *Intake
	subs *Subscriptions
	seen *Visibility // nil: not vap

	rows    [mostRows]updateSet
	seq     uint64
	least   perdure.Clock // as of the last push
	waiting []frame       // reads that MinClock does not allow yet
	out     [mostSlots]outflow
}

// outflow is what a shard knows of a slot's connection.
type outflow struct {
	connection int  // 0: none
	round      bool // has begun
	due        bool // another is to follow
	state      label
	told       perdure.Counts
}

func newPushShard(p *plan) pushShard {
	sh := pushShard{in: NewIntake(p.model.TwoStep(), make([]perdure.Clock, p.slots), p.off.Weakened)}
	dense := p.rows
	if p.sparse {
		dense = 0
	}
	sh.subs = NewSubscriptions(p.slots, 0, dense)
	if p.model.Kind == perdure.VAP {
		sh.seen = NewVisibility(sh.in.Applied(), 0)
	}
	return sh
}

func (sh *pushShard) clone() pushShard {
	n := *sh
	n.in, n.subs, n.waiting = sh.in.clone(), sh.subs.clone(), slices.Clone(sh.waiting)
	if sh.seen != nil {
		n.seen = &Visibility{slots: slices.Clone(sh.seen.slots)}
		for i := range n.seen.slots {
			n.seen.slots[i].unseen = slices.Clone(n.seen.slots[i].unseen)
		}
	}
	return n
}

func (s *Subscriptions) clone() *Subscriptions {
	n := *s
	n.places, n.ids, n.wanted, n.free = maps.Clone(s.places), slices.Clone(s.ids), slices.Clone(s.wanted), slices.Clone(s.free)
	n.slots, n.changed, n.shared = slices.Clone(s.slots), slices.Clone(s.changed), slices.Clone(s.shared)
	for i := range n.slots {
		u := &n.slots[i]
		u.rows, u.pending, u.next, u.changed = slices.Clone(u.rows), slices.Clone(u.pending), slices.Clone(u.next), slices.Clone(u.changed)
	}
	return &n
}

func (sh *pushShard) key(k *keyOf, p *plan) {
	k.num(int(sh.seq), int(sh.least), len(sh.waiting))
	k.frames(sh.waiting)
	for i := range p.slots {
		in := &sh.in.slots[i]
		k.num(int(sh.in.applied[i]), len(in.pending))
		for _, u := range in.pending {
			k.num(int(u.Clock))
			k.flags(u.ticked)
		}
		u, o := &sh.subs.slots[i], &sh.out[i]
		k.set(u.rows)
		k.set(u.pending)
		k.set(u.next)
		k.set(u.changed)
		k.num(o.connection, int(o.told.Staged), int(o.told.Seen))
		k.flags(o.round, o.due)
		k.label(&o.state)
		if sh.seen != nil {
			v := &sh.seen.slots[i]
			k.num(int(v.has), int(v.seen), len(v.unseen))
			k.flags(v.inactive, v.empty)
		}
	}
	k.set(sh.subs.changed)
	k.set(sh.subs.shared)
	for _, id := range sh.subs.ids {
		k.num(int(id))
	}
	for row := range p.rows {
		k.num(int(sh.rows[row]))
	}
}

// label is what the shard's rows contain now.
func (sh *pushShard) label() label {
	return label{sh.seq, sh.in.MinClock(), vectorOf(sh.in.Applied())}
}

// toShard brings a shard the next message of a slot.
func (s *system) toShard(slot, shard int) error {
	way := &s.ups[slot][shard]
	f := (*way)[0]
	*way = slices.Delete(*way, 0, 1)
	s.say("shard %d gets from slot %d: %v", shard, slot, &f)
	return s.arrive(slot, shard, f)
}

func (s *system) arrive(slot, shard int, f frame) error {
	sh, p := &s.shards[shard], perdure.Slot(slot)
	o := &sh.out[slot]
	if o.connection != f.connection && f.kind != openFrame && f.kind != updateFrame && f.kind != tickFrame && !s.off.connection {
		return nil
	}
	switch f.kind {
	case openFrame:
		if f.connection <= o.connection {
			return nil
		}
		*o = outflow{connection: f.connection}
		sh.subs.Reset(p)
		sh.waiting = slices.DeleteFunc(sh.waiting, func(g frame) bool { return g.request>>8 == slot })
		if sh.seen != nil {
			sh.seen.Opened(p)
		}
		o.told = sh.counts(p)
		s.toSlot(slot, shard, frame{kind: openFrame, counts: o.told})
	case getFrame:
		if f.clock > sh.in.MinClock() {
			s.say("  it waits for MinClock %d", f.clock)
			sh.waiting = append(sh.waiting, f)
			return nil
		}
		s.answer(slot, shard, f)
	case updateFrame:
		if v := sh.in.Offer(Part{Slot: p, Clock: f.clock, Of: 1, Incarnation: 1}); v == Gap && f.connection == o.connection {
			return fmt.Errorf("a gap at clock %d of slot %d on a connection that lost nothing", f.clock, slot)
		}
	case tickFrame:
		sh.in.Tick(p, 1, f.clock)
	case dropFrame:
		for _, row := range f.rows.ids() {
			sh.subs.Drop(p, row)
		}
		if sh.seen != nil && sh.subs.Rows(p) == 0 {
			sh.seen.Opened(p)
		}
	case sawFrame:
		if f.seq > sh.seq {
			return fmt.Errorf("slot %d saw state %d of %d", slot, f.seq, sh.seq)
		}
		if sh.seen != nil {
			sh.seen.Saw(p, f.seq)
		}
	}
	return s.pump(shard)
}

// counts is what a slot is told of its updates.
func (sh *pushShard) counts(slot perdure.Slot) perdure.Counts {
	n := sh.in.Counts(slot)
	if n.Seen = n.Applied; sh.seen != nil {
		n.Seen = sh.seen.Seen(slot)
	}
	return n
}

// toSlot sends a slot a message on its present connection.
func (s *system) toSlot(slot, shard int, f frame) {
	if f.connection = s.shards[shard].out[slot].connection; f.connection != s.readers[slot].links[shard].connection {
		return // the slot has given that connection up
	}
	s.downs[slot][shard] = append(s.downs[slot][shard], f)
	s.say("  shard %d to slot %d: %v", shard, slot, &f)
}

// answer sends a row that was asked for.
func (s *system) answer(slot, shard int, f frame) {
	sh := &s.shards[shard]
	if f.subscribe && f.connection == sh.out[slot].connection {
		if s.sparse {
			sh.subs.Add(perdure.Slot(slot), perdure.RowID(f.row))
		} else {
			sh.subs.AddRun(perdure.Slot(slot), perdure.RowID(f.row), 1)
		}
		if sh.seen != nil && !s.off.answered {
			sh.seen.Answered(perdure.Slot(slot), sh.seq)
		}
	}
	a := frame{kind: getFrame, request: f.request, row: f.row, label: sh.label()}
	a.values[f.row] = sh.rows[f.row]
	s.toSlot(slot, shard, a)
}

// pump applies what may be applied, and tells those whom it concerns.
func (s *system) pump(shard int) error {
	sh := &s.shards[shard]
	before := sh.seq
	for u := sh.in.Next(); u != nil; u = sh.in.Next() {
		s.say("  applied: slot %d clock %d", u.Slot, u.Clock)
		for row := range s.writes[u.Slot][u.Clock].each {
			if s.home(row) != shard {
				continue
			}
			if sh.rows[row]&one(int(u.Slot), u.Clock) != 0 {
				return fmt.Errorf("clock %d of slot %d is applied twice", u.Clock, u.Slot)
			}
			sh.rows[row] |= one(int(u.Slot), u.Clock)
			if !s.off.Pushes {
				sh.subs.Changed(u.Slot, perdure.RowID(row))
			}
		}
		sh.seq++
		if sh.seen != nil {
			sh.seen.Applied(u.Slot, u.Clock, sh.seq)
		}
	}
	if least := sh.in.MinClock(); least > sh.least || sh.seen != nil && sh.seq > before {
		sh.least = least
		sh.subs.Advance()
		for i := range s.slots {
			sh.out[i].due = sh.out[i].due || sh.out[i].connection > 0 && sh.subs.Rows(perdure.Slot(i)) > 0
		}
	}
	sh.waiting = slices.DeleteFunc(sh.waiting, func(f frame) bool {
		if f.clock > sh.in.MinClock() {
			return false
		}
		s.answer(f.request>>8, shard, f)
		return true
	})
	for i := range s.slots { // who waits for it is told how far it has come
		o, n := &sh.out[i], sh.counts(perdure.Slot(i))
		if o.connection > 0 && (s.model.TwoStep() && n.Staged > o.told.Staged || sh.seen != nil && n.Seen > o.told.Seen) {
			o.told = n
			s.toSlot(i, shard, frame{kind: ackFrame, counts: n})
		}
	}
	return nil
}

// pushes reports whether something is to be pushed to a slot.
func (o *outflow) pushes() bool { return o.connection > 0 && (o.round || o.due) }

// push goes on with a slot's round by one frame. Before, it begins it, if need be
// some time after it was due, because the slot is slow.
func (s *system) push(slot, shard int) {
	sh, p := &s.shards[shard], perdure.Slot(slot)
	o := &sh.out[slot]
	if !o.round {
		o.round, o.due, o.state = true, false, sh.label()
		if !s.off.advance {
			sh.subs.Advance() // what changed since it was due is in that state, too
		}
		sh.subs.Begin(p)
		if s.off.order {
			s.toSlot(slot, shard, frame{kind: pushFrame, label: o.state, last: true})
		}
	}
	f := frame{kind: pushFrame, label: sh.label()}
	first, n, list := sh.subs.Next(p, 2, s.piece, nil)
	for i := range n {
		list = append(list, first+perdure.RowID(i))
	}
	for _, row := range list {
		f.rows |= 1 << row
		f.values[row] = sh.rows[row]
	}
	if len(list) > 0 && (f.label != o.state || s.off.order || sh.subs.slots[slot].pending.after(0) >= 0) {
		s.toSlot(slot, shard, f) // more is to follow, be it only the word that this was all
		if !s.off.order || sh.subs.slots[slot].pending.after(0) >= 0 {
			return
		}
	}
	o.round = false
	if o.due = o.due && !s.off.rest; !s.off.order {
		f.label, f.last = o.state, true
		s.toSlot(slot, shard, f)
	}
}

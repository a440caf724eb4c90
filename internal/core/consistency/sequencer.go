package consistency

import (
	"bytes"
	"iter"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
)

// Update is one slot's update of one clock, or of several consecutive clocks, as far as the shard has received it.
type Update struct {
	Slot        perdure.Slot
	Clock       perdure.Clock // the first clock
	Clocks      perdure.Clock // number of clocks
	Incarnation perdure.Incarnation
	Parts       [][]byte // the payloads, in order; nil if not received yet
	Lost        bool     // its content is lost permanently; it only counts
	Repeats     bool     // some part reports that rows are repeated

	bytes    int64
	of       int // number of parts; 0: unknown
	received int
	ticked   bool
	tick     bool // becomes ticked when complete
}

// UpdatePart is one received part of an update.
type UpdatePart struct {
	Slot        perdure.Slot
	Clock       perdure.Clock
	Clocks      int // number of clocks, starting at Clock; 0: one
	Incarnation perdure.Incarnation
	Index, Of   int  // Of 0: the number of parts is not known yet; the last part has it
	Ticked      bool // the sender has already decided to tick the update
	Repeats     bool // rows are in the update more than once
	Payload     []byte
}

// Outcome is the result of a message.
type Outcome int

// The verdicts. After Kept, the intake owns the payload.
const (
	Kept      Outcome = iota // new; Next may have something to apply
	Duplicate                // already counted, or beyond the job's end: ignored
	Fenced                   // from an older incarnation: rejected
	Gap                      // an earlier part or update is missing: the sender must resend
	// Torn: only some of its clocks could be applied, so none is. No correct sender produces this.
	Torn
)

// Sequencer puts one shard's updates in order and decides which to apply next.
//
// Invariants:
//   - A slot's pending updates cover the clocks applied, applied+1, … without a gap, and all but the last are complete
//     (two-step: ticked).
//   - An update is applied completely or not at all, even if it covers several clocks. It is rejected if some of its
//     clocks are already applied, or if only some of them could be. Under two-step clocks each update covers one clock.
//   - Two-step: all counts are equal, or one round of ticks is being applied in slot order, or some slot's next clocks
//     were lost with the shard's former life.
//   - No update of a clock ≥ the next cut is applied before SetCut moves the cut.
//   - During a hold no update is applied. A cut by slot ends it.
//   - No update of a clock outside its slot's membership interval is ever applied. A slot that has done the last clock
//     of its interval is not waited for.
type Sequencer struct {
	mode              perdure.ClockMode
	gaps              bool // under any model: clocks missing below a decision's start count as lost
	mutations         mutation.Set
	cut               perdure.Clock // the next cut; ≤ 0: none
	hold              Hold
	end               perdure.Clock // no update of a clock ≥ end counts; 0: no end
	applied           []perdure.Clock
	intervals         []protocol.Interval // by slot
	membershipVersion uint64              // the number of the membership that spans belongs to
	slots             []slotQueue
	order             orderCache
	again             []*Update // mutation.Set.ExactlyOnce: duplicates to apply again
	free              []*Update // for reuse
}

type slotQueue struct {
	incarnation perdure.Incarnation // older ones are rejected
	decided     perdure.Incarnation // the newest whose Decide was carried out
	pending     []*Update
	bytes       int64 // size of pending
}

// NewSequencer returns the intake of a shard with the given applied vector, which it copies. The updates of a two-step
// clock are applied in slot order.
func NewSequencer(mode perdure.ClockMode, applied []perdure.Clock, mutations mutation.Set) *Sequencer {
	if mutations.Staging {
		mode = perdure.ClockOneStep
	}
	in := &Sequencer{
		mode:      mode,
		mutations: mutations,
		applied:   slices.Clone(applied),
		intervals: make([]protocol.Interval, len(applied)),
		slots:     make([]slotQueue, len(applied)),
	}
	in.hold.in = in
	return in
}

// SetMembership sets the membership intervals of the membership with number roster. It may add slots but not remove
// them. If a slot's interval starts later than its count, the clocks before it count as applied. An older membership is
// ignored.
func (in *Sequencer) SetMembership(roster uint64, spans []protocol.Interval) {
	if roster <= in.membershipVersion || len(spans) < len(in.applied) {
		return
	}
	in.order.forget()
	in.membershipVersion, in.intervals = roster, slices.Clone(spans)
	for i, s := range spans {
		if i == len(in.applied) {
			in.applied, in.slots = append(in.applied, s.From), append(in.slots, slotQueue{})
		}
		in.raise(i, s.From)
	}
}

// MembershipVersion returns the number of the newest membership passed to SetMembership.
func (in *Sequencer) MembershipVersion() uint64 { return in.membershipVersion }

// Intervals returns the membership intervals. The caller must not modify them.
func (in *Sequencer) Intervals() []protocol.Interval { return in.intervals }

// Applied returns the applied vector. The caller must not modify it.
func (in *Sequencer) Applied() []perdure.Clock { return in.applied }

// MinClock returns the smallest count over the slots that have not done the last clock of their membership intervals.
func (in *Sequencer) MinClock() perdure.Clock { return in.refreshOrder().minClock }

// hasLeft reports whether a slot has done the last clock of its membership interval.
func (in *Sequencer) hasLeft(slot int) bool {
	until := in.intervals[slot].Until
	return until > 0 && in.applied[slot] >= until
}

// SetMode sets the mode of clocks. It must be called before the first update.
func (in *Sequencer) SetMode(mode perdure.ClockMode) {
	in.order.forget()
	in.mode = mode
	if in.mutations.Staging {
		in.mode = perdure.ClockOneStep
	}
}

// CountMissingAsLost declares that clocks missing below a decision's start will never be sent, so they count as lost.
// Of ticked clocks this is always so.
func (in *Sequencer) CountMissingAsLost() { in.gaps = true }

// Mode returns the mode of clocks.
func (in *Sequencer) Mode() perdure.ClockMode { return in.mode }

// inRounds reports whether an update waits for those of the other slots.
func (in *Sequencer) inRounds() bool { return in.mode == perdure.ClockTwoStep }

// SetCut sets the next cut: updates of clocks ≥ cut wait until it is moved. A cut ≤ 0 means none.
func (in *Sequencer) SetCut(cut perdure.Clock) {
	in.order.forget()
	in.cut = cut
}

// HeldByCut reports whether the next cut holds back updates of a clock.
func (in *Sequencer) HeldByCut(clock perdure.Clock) bool { return in.cut > 0 && clock >= in.cut }

// SetEnd sets the job's end: updates of clocks ≥ end never count. 0: no end.
func (in *Sequencer) SetEnd(end perdure.Clock) {
	in.order.forget()
	in.end = end
}

// AtCut reports whether every update of clocks < cut is applied and none of clocks ≥ cut, so that the shard can be
// saved.
func (in *Sequencer) AtCut() bool { return in.cut > 0 && in.MinClock() == in.cut }

// Hold returns the state of holds.
func (in *Sequencer) Hold() *Hold { return &in.hold }

// Offer takes in one part of an update.
func (in *Sequencer) Offer(p UpdatePart) Outcome {
	s := &in.slots[p.Slot]
	if p.Incarnation < s.incarnation && !in.mutations.Fencing {
		return Fenced
	}
	if in.isPastEnd(p.Slot, p.Clock) {
		return Duplicate
	}
	if p.until() <= in.applied[p.Slot] {
		if in.mutations.ExactlyOnce && p.Of == 1 {
			in.again = append(in.again, &Update{
				Slot: p.Slot, Clock: p.Clock, Clocks: p.until() - p.Clock,
				Parts: [][]byte{p.Payload},
			})
			return Kept
		}
		return Duplicate
	}
	if in.tears(&p) && !in.mutations.Atomicity {
		return Torn
	}
	u, decision := in.find(s, &p)
	if u == nil {
		return decision
	}
	before := u.bytes
	decision = in.put(u, p)
	s.bytes += u.bytes - before
	if !in.inRounds() {
		in.order.addCandidate(int(p.Slot))
	}
	return decision
}

func (p *UpdatePart) until() perdure.Clock { return p.Clock + perdure.Clock(max(1, p.Clocks)) }

// tears reports whether only some of the clocks of an update could be applied, or applied together. It does
// not consider pending updates.
func (in *Sequencer) tears(p *UpdatePart) bool {
	last := p.until() - 1
	return p.Clock < in.applied[p.Slot] || in.inRounds() && last > p.Clock || in.isPastEnd(p.Slot, last) ||
		in.HeldByCut(last) && !in.HeldByCut(p.Clock)
}

// find returns the pending update that a part belongs to, adding it if necessary, or nil and the verdict about the
// part.
func (in *Sequencer) find(s *slotQueue, p *UpdatePart) (*Update, Outcome) {
	if p.Of > 0 && p.Index >= p.Of {
		return nil, Gap
	}
	next := in.applied[p.Slot]
	for _, u := range s.pending {
		next = u.until()
		if p.Clock >= next {
			continue
		}
		switch {
		case p.Clock == u.Clock && (p.until() == next || !u.complete() && u.Incarnation != p.Incarnation):
			return u, Kept
		case u.complete() && p.until() <= next:
			return nil, Duplicate
		}
		return nil, Torn
	}
	if n := len(s.pending); p.Clock > next || n > 0 && !s.pending[n-1].done(in.inRounds()) {
		return nil, Gap
	}
	u := in.newUpdate(p.Slot, p.Clock, p.until()-p.Clock)
	s.pending = append(s.pending, u)
	return u, Kept
}

// isPastEnd reports whether an update can never count, because its clock is after the job's end or after the slot's
// membership interval.
func (in *Sequencer) isPastEnd(slot perdure.Slot, clock perdure.Clock) bool {
	until := in.intervals[slot].Until
	return in.end > 0 && clock >= in.end || until > 0 && clock >= until
}

func (in *Sequencer) newUpdate(slot perdure.Slot, clock, clocks perdure.Clock) *Update {
	n := len(in.free)
	if n == 0 {
		return &Update{Slot: slot, Clock: clock, Clocks: clocks}
	}
	u := in.free[n-1]
	in.free = in.free[:n-1]
	*u = Update{Slot: slot, Clock: clock, Clocks: clocks, Parts: u.Parts[:0]}
	return u
}

// Free returns an applied update, which Next returned, for reuse.
func (in *Sequencer) Free(u *Update) {
	if clear(u.Parts); len(in.free) < len(in.slots) && cap(u.Parts) <= maxFreeParts {
		in.free = append(in.free, u)
	}
}

// maxFreeParts is the maximum capacity of Parts in an update kept for reuse.
const maxFreeParts = 1 << 10

// put stores a part in its update.
func (in *Sequencer) put(u *Update, p UpdatePart) Outcome {
	if u.complete() {
		if p.Ticked && !u.ticked {
			u.ticked = true
			return Kept
		}
		return Duplicate
	}
	if n := len(u.Parts); u.Incarnation == p.Incarnation && u.of == 0 && 0 < p.Of && p.Of < n {
		u.drop(p.Of) // the clock now has fewer parts than when it was interrupted
		u.Parts = u.Parts[:p.Of]
	}
	if u.Incarnation != p.Incarnation || !u.fits(p) {
		// Parts of different incarnations never combine: the newer one starts over.
		*u = Update{
			Slot: p.Slot, Clock: p.Clock, Clocks: p.until() - p.Clock, Incarnation: p.Incarnation,
			Parts: u.Parts[:0],
		}
		clear(u.Parts[:cap(u.Parts)])
	}
	u.of, u.Repeats = max(u.of, p.Of), u.Repeats || p.Repeats
	for len(u.Parts) <= p.Index || len(u.Parts) < u.of {
		u.Parts = append(u.Parts, nil)
	}
	u.tick = u.tick || p.Ticked
	decision := Duplicate
	if before := u.Parts[p.Index]; before == nil || !bytes.Equal(before, p.Payload) {
		if before != nil {
			u.drop(p.Index)
		}
		if p.Payload == nil {
			p.Payload = []byte{}
		}
		u.Parts[p.Index] = p.Payload
		u.bytes += PartCost + int64(len(p.Payload))
		u.received++
		decision = Kept
	}
	u.ticked = u.complete() && (u.tick || !in.mode.Ticks())
	return decision
}

// drop removes the parts starting at index from. The sender, which sends parts in order, has restarted the clock,
// because a tentative end had interrupted it after some parts were sent.
func (u *Update) drop(from int) {
	for i, part := range u.Parts[from:] {
		if part != nil {
			u.bytes -= PartCost + int64(len(part))
			u.received--
			u.Parts[from+i] = nil
		}
	}
}

// fits reports whether a part may belong to the same version of the update as the received ones.
func (u *Update) fits(p UpdatePart) bool {
	if p.Of > 0 {
		return u.of == p.Of || u.of == 0 && len(u.Parts) <= p.Of
	}
	return u.of == 0 || p.Index < u.of
}

// until returns the clock after the last one that the update covers.
func (u *Update) until() perdure.Clock { return u.Clock + u.Clocks }

// Last returns the last clock that the update covers.
func (u *Update) Last() perdure.Clock { return u.until() - 1 }

func (u *Update) complete() bool { return u.Lost || u.of > 0 && u.received == u.of }

// done reports whether the next clock's update may follow.
func (u *Update) done(inRounds bool) bool { return u.complete() && (u.ticked || !inRounds) }

// Tick marks the slot's staged updates up to a clock as decided: they are staged on all shards, and will be applied. No
// update may have clocks on both sides.
func (in *Sequencer) Tick(slot perdure.Slot, incarnation perdure.Incarnation, clock perdure.Clock) Outcome {
	s := &in.slots[slot]
	switch {
	case incarnation < s.incarnation && !in.mutations.Fencing:
		return Fenced
	case clock < in.applied[slot] || in.isPastEnd(slot, clock):
		return Duplicate
	}
	n := 0 // updates to tick
	for until := in.applied[slot]; until <= clock; n++ {
		if n == len(s.pending) || !s.pending[n].complete() {
			return Gap
		}
		if until = s.pending[n].until(); until > clock+1 {
			return Torn
		}
	}
	if s.pending[n-1].ticked {
		return Duplicate
	}
	for _, u := range s.pending[:n] {
		u.ticked = true
	}
	if !in.inRounds() {
		in.order.addCandidate(int(slot))
	}
	return Kept
}

// Next returns the next update to apply, after counting it, or nil. It must be called after every change until it
// returns nil.
func (in *Sequencer) Next() *Update {
	if len(in.again) > 0 {
		u := in.again[0]
		in.again = in.again[1:]
		return u
	}
	turn := in.refreshOrder().slot(in)
	if turn < 0 {
		return nil
	}
	s := &in.slots[turn]
	u := s.pending[0]
	s.pending = slices.Delete(s.pending, 0, 1)
	s.bytes -= u.bytes
	in.advance(turn, u.until())
	return u
}

// Round yields the updates of u's round in the order in which Next returns them: u, which Next has just returned as the
// first of its round, and the other slots' updates of the same clock. Except under two-step clocks, each update is a
// round of its own.
func (in *Sequencer) Round(u *Update) iter.Seq[*Update] {
	return func(yield func(*Update) bool) {
		if !yield(u) || !in.inRounds() {
			return
		}
		for i := range in.slots {
			if in.applied[i] == u.Clock && !in.hasLeft(i) && in.ready(i) && !yield(in.slots[i].pending[0]) {
				return
			}
		}
	}
}

// ready reports whether the slot's next update may be applied.
func (in *Sequencer) ready(slot int) bool {
	s := &in.slots[slot]
	if len(s.pending) == 0 || !s.pending[0].ticked {
		return false
	}
	clock := s.pending[0].Clock
	waits := in.hold.holdsBack(slot, clock) || in.HeldByCut(clock)
	return !waits && !in.isPastEnd(perdure.Slot(slot), clock)
}

// Counts returns how far a slot's updates have come.
func (in *Sequencer) Counts(slot perdure.Slot) protocol.Counts {
	c := protocol.Counts{Staged: in.applied[slot], Ticked: in.applied[slot], Applied: in.applied[slot]}
	for _, u := range in.slots[slot].pending {
		if u.ticked && c.Ticked == c.Staged {
			c.Ticked = u.until()
		}
		if !u.complete() {
			break
		}
		c.Staged = u.until()
	}
	return c
}

// Pending returns a slot's updates that are not applied yet, oldest first.
func (in *Sequencer) Pending(slot perdure.Slot) []*Update { return in.slots[slot].pending }

// PartCost is the overhead of a part, in bytes.
const PartCost = 64

// PendingBytes returns the size of a slot's updates that are not applied yet.
func (in *Sequencer) PendingBytes(slot perdure.Slot) int64 { return in.slots[slot].bytes }

// Ticked reports whether the update will be applied whatever happens to its slot.
func (u *Update) Ticked() bool { return u.ticked }

// Fence rejects a slot's incarnations older than the given one from now on. Updates that they had sent completely are
// kept until Decide. Lost updates remain lost.
func (in *Sequencer) Fence(slot perdure.Slot, incarnation perdure.Incarnation) {
	s := &in.slots[slot]
	if incarnation <= s.incarnation {
		return
	}
	in.order.forget()
	s.incarnation = incarnation
	s.pending = slices.DeleteFunc(s.pending, func(u *Update) bool {
		return !u.complete() || !in.mode.Ticks() && !u.Lost
	})
	s.count()
}

// count recomputes the size of the pending updates.
func (s *slotQueue) count() {
	s.bytes = 0
	for _, u := range s.pending {
		s.bytes += u.bytes
	}
}

// Incarnation returns the oldest incarnation of a slot that is not rejected.
func (in *Sequencer) Incarnation(slot perdure.Slot) perdure.Incarnation {
	return in.slots[slot].incarnation
}

// Decide carries out the decision about the clocks of a slot that was fenced for the given incarnation. Staged clocks <
// start are ticked, missing ones count as lost, and all others are dropped. Each decision is carried out once.
func (in *Sequencer) Decide(slot perdure.Slot, incarnation perdure.Incarnation, start perdure.Clock) {
	s := &in.slots[slot]
	if incarnation <= s.decided {
		return
	}
	in.order.forget()
	s.decided = incarnation
	keep, next := 0, in.applied[slot]
	for _, u := range s.pending {
		if u.until() > start || !in.mode.Ticks() && !u.Lost { // lost updates come first
			break
		}
		keep, next = keep+1, u.until()
	}
	s.pending = s.pending[:keep]
	s.count()
	for _, u := range s.pending {
		u.ticked = true
	}
	for c := next; (in.mode.Ticks() || in.gaps) && c < start; c++ {
		s.pending = append(s.pending, &Update{
			Slot: slot, Clock: c, Clocks: 1, Incarnation: incarnation, Lost: true,
			ticked: true,
		})
	}
}

// Raise raises the applied vector to at least base, which must not have more slots, if the strategy allows losses.
// Pending updates below it are dropped, because they count as lost.
func (in *Sequencer) Raise(base []perdure.Clock) {
	for i, least := range base {
		in.raise(i, least)
	}
}

func (in *Sequencer) raise(slot int, least perdure.Clock) {
	s := &in.slots[slot]
	if least <= in.applied[slot] {
		return
	}
	in.order.forget()
	s.pending = slices.DeleteFunc(s.pending, func(u *Update) bool { return u.Clock < least })
	if len(s.pending) > 0 && s.pending[0].Clock > least {
		s.pending = nil // an update before it was lost in part
	}
	s.count()
	in.applied[slot] = least
}

// Decided reports whether the slot's decision for an incarnation was carried out.
func (in *Sequencer) Decided(slot perdure.Slot, incarnation perdure.Incarnation) bool {
	return in.slots[slot].decided >= incarnation
}

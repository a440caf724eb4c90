package consistency

import (
	"bytes"
	"iter"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/core/words"
)

// Update is one slot's update of one clock, or of several that follow one another, as far
// as the shard has received it.
type Update struct {
	Slot        perdure.Slot
	Clock       perdure.Clock // the first
	Clocks      perdure.Clock // how many
	Incarnation perdure.Incarnation
	Parts       [][]byte // the payloads, in order; nil where not received yet
	Lost        bool     // its content is gone for good; it only counts
	Repeats     bool     // some part says so

	bytes    int64
	of       int // parts that it has; 0: not known yet
	received int
	ticked   bool
	tick     bool // to be ticked when complete
}

// Part is one received part of an update.
type Part struct {
	Slot        perdure.Slot
	Clock       perdure.Clock
	Clocks      int // that the update is of, from Clock on; 0: one
	Incarnation perdure.Incarnation
	Index, Of   int  // Of 0: how many there are is not known yet; the last says it
	Ticked      bool // the sender has already decided to tick the update
	Repeats     bool // rows are in the update more than once
	Payload     []byte
}

// Verdict says what became of a message.
type Verdict int

// The verdicts. After Kept the intake owns the payload.
const (
	Kept      Verdict = iota // new; Next may have something to apply
	Duplicate                // counted already, or beyond the job's end: ignored
	Fenced                   // from an older incarnation: refused
	Gap                      // something before it is missing: the sender must resend
	// Torn: only a part of its clocks could be applied, so none is. No sender that keeps the rules sends it.
	Torn
)

// Intake puts one shard's updates in order and says which to apply next.
//
// Invariants:
//   - a slot's pending updates have the clocks applied, applied+1, … without gap,
//     each as many as it has, and all but the last are complete (two-step: ticked);
//   - an update is applied whole or not at all, also one of several clocks: what has some
//     of its clocks already, or may have only some of them, refuses it. Under two-step
//     clocks each is of one clock;
//   - two-step: all counts are equal, or one round of ticks is being given out in
//     slot order, or some slot's next clocks were lost with the shard's former life;
//   - no update of a clock ≥ the next cut is applied before PassCut;
//   - none of a clock outside its slot's span is ever applied, and who has done the
//     last clock of its span is waited for no more.
type Intake struct {
	twoStep bool
	gaps    bool // of whatever model: what is missing below a decision's start counts as lost
	weak    weaken.Set
	cut     perdure.Clock // the next cut; ≤ 0: none
	end     perdure.Clock // no update of a clock ≥ end counts; 0: no end
	applied []perdure.Clock
	spans   []words.Span // by slot
	roster  uint64       // that they are of
	slots   []slotIntake
	turn    turn
	again   []*Update // weaken.Set.ExactlyOnce: duplicates to apply once more
	free    []*Update // to be used again
}

type slotIntake struct {
	incarnation perdure.Incarnation // older ones are refused
	carried     perdure.Incarnation // the newest whose Decide was carried out
	pending     []*Update
	bytes       int64 // of them
}

// NewIntake makes the intake of a shard at the given applied vector, which it
// copies. Under twoStep a clock is staged first and applied once all slots have
// ticked it, in slot order; otherwise an update is applied as soon as it is
// complete.
func NewIntake(twoStep bool, applied []perdure.Clock, weak weaken.Set) *Intake {
	return &Intake{
		twoStep: twoStep && !weak.Staging,
		weak:    weak,
		applied: slices.Clone(applied),
		spans:   make([]words.Span, len(applied)),
		slots:   make([]slotIntake, len(applied)),
	}
}

// SetSpans says when each slot takes part, as of a roster; there may be more slots
// than before, and none less. One that begins later counts the clocks before its span
// as applied. An older roster is ignored.
func (in *Intake) SetSpans(roster uint64, spans []words.Span) {
	if roster <= in.roster || len(spans) < len(in.applied) {
		return
	}
	in.turn.forget()
	in.roster, in.spans = roster, slices.Clone(spans)
	for i, s := range spans {
		if i == len(in.applied) {
			in.applied, in.slots = append(in.applied, s.From), append(in.slots, slotIntake{})
		}
		in.raise(i, s.From)
	}
}

// Roster returns the newest roster that SetSpans was given.
func (in *Intake) Roster() uint64 { return in.roster }

// Spans says when each slot takes part. It is the intake's own: do not change it.
func (in *Intake) Spans() []words.Span { return in.spans }

// Applied returns the applied vector. It is the intake's own: do not change it.
func (in *Intake) Applied() []perdure.Clock { return in.applied }

// MinClock returns the smallest count of the slots that have not done the last clock
// of their spans.
func (in *Intake) MinClock() perdure.Clock { return in.recall().least }

// left reports whether a slot has done the last clock of its span.
func (in *Intake) left(slot int) bool {
	until := in.spans[slot].Until
	return until > 0 && in.applied[slot] >= until
}

// SetTwoStep says whether clocks are staged before they are ticked, before there
// was any update.
func (in *Intake) SetTwoStep(twoStep bool) {
	in.turn.forget()
	in.twoStep = twoStep && !in.weak.Staging
}

// CountGaps says that nobody will ever send what is missing below a decision's start, so that it
// counts as lost. Under two-step clocks it always does.
func (in *Intake) CountGaps() { in.gaps = true }

// TwoStep reports whether clocks are staged before they are ticked.
func (in *Intake) TwoStep() bool { return in.twoStep }

// SetCut sets the next cut: updates of clocks ≥ cut wait until PassCut. No cut
// is meant by cut ≤ 0.
func (in *Intake) SetCut(cut perdure.Clock) {
	in.turn.forget()
	in.cut = cut
}

// Holds reports whether the next cut holds updates of a clock back.
func (in *Intake) Holds(clock perdure.Clock) bool { return in.cut > 0 && clock >= in.cut }

// SetEnd sets the job's end: updates of clocks ≥ end never count. 0: no end.
func (in *Intake) SetEnd(end perdure.Clock) {
	in.turn.forget()
	in.end = end
}

// AtCut reports whether every update of clocks < cut is applied, and none of
// clocks ≥ cut: the moment to save the shard.
func (in *Intake) AtCut() bool { return in.cut > 0 && in.MinClock() == in.cut }

// Offer takes one part of an update.
func (in *Intake) Offer(p Part) Verdict {
	s := &in.slots[p.Slot]
	if p.Incarnation < s.incarnation && !in.weak.Fencing {
		return Fenced
	}
	if in.beyond(p.Slot, p.Clock) {
		return Duplicate
	}
	if p.until() <= in.applied[p.Slot] {
		if in.weak.ExactlyOnce && p.Of == 1 {
			in.again = append(in.again, &Update{
				Slot: p.Slot, Clock: p.Clock, Clocks: p.until() - p.Clock,
				Parts: [][]byte{p.Payload},
			})
			return Kept
		}
		return Duplicate
	}
	if in.tears(&p) && !in.weak.Whole {
		return Torn
	}
	u, verdict := in.find(s, &p)
	if u == nil {
		return verdict
	}
	before := u.bytes
	verdict = in.put(u, p)
	s.bytes += u.bytes - before
	if !in.twoStep {
		in.turn.stir(int(p.Slot))
	}
	return verdict
}

func (p *Part) until() perdure.Clock { return p.Clock + perdure.Clock(max(1, p.Clocks)) }

// tears reports whether an update is of several clocks of which only some could be
// applied, or applied together. What is pending is not looked at.
func (in *Intake) tears(p *Part) bool {
	last := p.until() - 1
	return p.Clock < in.applied[p.Slot] || in.twoStep && last > p.Clock || in.beyond(p.Slot, last) ||
		in.Holds(last) && !in.Holds(p.Clock)
}

// find returns the pending update that a part belongs to, which may be a new one, or what
// is to be said of the part where there is none.
func (in *Intake) find(s *slotIntake, p *Part) (*Update, Verdict) {
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
	if n := len(s.pending); p.Clock > next || n > 0 && !s.pending[n-1].done(in.twoStep) {
		return nil, Gap
	}
	u := in.newUpdate(p.Slot, p.Clock, p.until()-p.Clock)
	s.pending = append(s.pending, u)
	return u, Kept
}

// beyond reports whether an update can never count: it is of a clock after the job's
// end, or after the slot's.
func (in *Intake) beyond(slot perdure.Slot, clock perdure.Clock) bool {
	until := in.spans[slot].Until
	return in.end > 0 && clock >= in.end || until > 0 && clock >= until
}

func (in *Intake) newUpdate(slot perdure.Slot, clock, clocks perdure.Clock) *Update {
	n := len(in.free)
	if n == 0 {
		return &Update{Slot: slot, Clock: clock, Clocks: clocks}
	}
	u := in.free[n-1]
	in.free = in.free[:n-1]
	*u = Update{Slot: slot, Clock: clock, Clocks: clocks, Parts: u.Parts[:0]}
	return u
}

// Free takes an update back that Next gave and that is applied.
func (in *Intake) Free(u *Update) {
	if clear(u.Parts); len(in.free) < len(in.slots) && cap(u.Parts) <= mostFreeParts {
		in.free = append(in.free, u)
	}
}

// mostFreeParts is how many parts' room is kept for an update that is to come.
const mostFreeParts = 1 << 10

// put stores a part in its update.
func (in *Intake) put(u *Update, p Part) Verdict {
	if u.complete() {
		if p.Ticked && !u.ticked {
			u.ticked = true
			return Kept
		}
		return Duplicate
	}
	if n := len(u.Parts); u.Incarnation == p.Incarnation && u.of == 0 && 0 < p.Of && p.Of < n {
		u.drop(p.Of) // the clock has fewer parts than when it was broken off
		u.Parts = u.Parts[:p.Of]
	}
	if u.Incarnation != p.Incarnation || !u.fits(p) {
		// Parts of different incarnations never combine: the newer begins afresh.
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
	verdict := Duplicate
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
		verdict = Kept
	}
	u.ticked = u.complete() && (u.tick || !in.twoStep)
	return verdict
}

// drop forgets the parts from one on. The sender, which sends parts in order, has begun the clock again: a tentative
// end broke it off after some parts had left.
func (u *Update) drop(from int) {
	for i, part := range u.Parts[from:] {
		if part != nil {
			u.bytes -= PartCost + int64(len(part))
			u.received--
			u.Parts[from+i] = nil
		}
	}
}

// fits reports whether a part may belong to the same version of the update as
// those received.
func (u *Update) fits(p Part) bool {
	if p.Of > 0 {
		return u.of == p.Of || u.of == 0 && len(u.Parts) <= p.Of
	}
	return u.of == 0 || p.Index < u.of
}

// until returns the clock after its last.
func (u *Update) until() perdure.Clock { return u.Clock + u.Clocks }

// Last returns the last clock that the update is of.
func (u *Update) Last() perdure.Clock { return u.until() - 1 }

func (u *Update) complete() bool { return u.Lost || u.of > 0 && u.received == u.of }

// done reports whether the next clock's update may follow.
func (u *Update) done(twoStep bool) bool { return u.complete() && (u.ticked || !twoStep) }

// Tick says that a staged update is to be applied: it is staged on all shards.
func (in *Intake) Tick(slot perdure.Slot, incarnation perdure.Incarnation, clock perdure.Clock) Verdict {
	s := &in.slots[slot]
	at := int(clock - in.applied[slot])
	switch {
	case incarnation < s.incarnation && !in.weak.Fencing:
		return Fenced
	case at < 0 || in.beyond(slot, clock):
		return Duplicate
	case at >= len(s.pending) || !s.pending[at].complete():
		return Gap
	case s.pending[at].ticked:
		return Duplicate
	}
	s.pending[at].ticked = true
	if !in.twoStep {
		in.turn.stir(int(slot))
	}
	return Kept
}

// Next returns the update to apply next, having counted it, or nil. Call it
// until it returns nil after every change.
func (in *Intake) Next() *Update {
	if len(in.again) > 0 {
		u := in.again[0]
		in.again = in.again[1:]
		return u
	}
	turn := in.recall().slot(in)
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

// Round yields the updates that are given out together with u, which Next has just given as the first of
// its round, in the order in which Next gives them: u, and the others' of the same clock. Where clocks are
// not ticked, each is given out alone.
func (in *Intake) Round(u *Update) iter.Seq[*Update] {
	return func(yield func(*Update) bool) {
		if !yield(u) || !in.twoStep {
			return
		}
		for i := range in.slots {
			if in.applied[i] == u.Clock && !in.left(i) && in.ready(i) && !yield(in.slots[i].pending[0]) {
				return
			}
		}
	}
}

// ready reports whether the slot's next update may be applied.
func (in *Intake) ready(slot int) bool {
	s := &in.slots[slot]
	if len(s.pending) == 0 || !s.pending[0].ticked {
		return false
	}
	clock := s.pending[0].Clock
	return (in.cut <= 0 || clock < in.cut) && !in.beyond(perdure.Slot(slot), clock)
}

// Counts returns how far a slot has come.
func (in *Intake) Counts(slot perdure.Slot) words.Counts {
	c := words.Counts{Staged: in.applied[slot], Ticked: in.applied[slot], Applied: in.applied[slot]}
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
func (in *Intake) Pending(slot perdure.Slot) []*Update { return in.slots[slot].pending }

// PartCost is what a part counts beside its payload.
const PartCost = 64

// PendingBytes returns what a slot's updates take that are not applied yet.
func (in *Intake) PendingBytes(slot perdure.Slot) int64 { return in.slots[slot].bytes }

// Ticked reports whether the update is to be applied whatever happens to its slot.
func (u *Update) Ticked() bool { return u.ticked }

// Fence refuses a slot's incarnations older than the given one from now on.
// What they had sent whole stays as it is, until Decide; what is lost stays lost.
func (in *Intake) Fence(slot perdure.Slot, incarnation perdure.Incarnation) {
	s := &in.slots[slot]
	if incarnation <= s.incarnation {
		return
	}
	in.turn.forget()
	s.incarnation = incarnation
	s.pending = slices.DeleteFunc(s.pending, func(u *Update) bool {
		return !u.complete() || !in.twoStep && !u.Lost
	})
	s.count()
}

// count counts the bytes of what is pending.
func (s *slotIntake) count() {
	s.bytes = 0
	for _, u := range s.pending {
		s.bytes += u.bytes
	}
}

// Incarnation returns the oldest incarnation of a slot that is not refused.
func (in *Intake) Incarnation(slot perdure.Slot) perdure.Incarnation {
	return in.slots[slot].incarnation
}

// Decide carries out what was decided when the slot was fenced for the given
// incarnation: what is staged of clocks < start is ticked, where it is missing
// it counts as lost, and all else is dropped. It is carried out once.
func (in *Intake) Decide(slot perdure.Slot, incarnation perdure.Incarnation, start perdure.Clock) {
	s := &in.slots[slot]
	if incarnation <= s.carried {
		return
	}
	in.turn.forget()
	s.carried = incarnation
	keep := min(max(int(start-in.applied[slot]), 0), len(s.pending))
	for !in.twoStep && keep > 0 && !s.pending[keep-1].Lost { // which are the first, and of one clock each
		keep--
	}
	s.pending = s.pending[:keep]
	s.count()
	for _, u := range s.pending {
		u.ticked = true
	}
	for c := in.applied[slot] + perdure.Clock(keep); (in.twoStep || in.gaps) && c < start; c++ {
		s.pending = append(s.pending, &Update{
			Slot: slot, Clock: c, Clocks: 1, Incarnation: incarnation, Lost: true,
			ticked: true,
		})
	}
}

// Raise raises the applied vector to at least base, which has no more slots, where a strategy lets updates
// be lost: what is pending below it is dropped, for it counts as lost.
func (in *Intake) Raise(base []perdure.Clock) {
	for i, least := range base {
		in.raise(i, least)
	}
}

func (in *Intake) raise(slot int, least perdure.Clock) {
	s := &in.slots[slot]
	if least <= in.applied[slot] {
		return
	}
	in.turn.forget()
	s.pending = slices.DeleteFunc(s.pending, func(u *Update) bool { return u.Clock < least })
	if len(s.pending) > 0 && s.pending[0].Clock > least {
		s.pending = nil // what was before it is lost in the middle
	}
	s.count()
	in.applied[slot] = least
}

// Carried reports whether the slot's decision for an incarnation is carried out.
func (in *Intake) Carried(slot perdure.Slot, incarnation perdure.Incarnation) bool {
	return in.slots[slot].carried >= incarnation
}

package consistency

import (
	"math/bits"

	"github.com/perdure/perdure"
)

// Subscriptions tracks, for one shard's part of one table, which rows each slot subscribes to, and which of them have
// changed (ESSP paper, section 4: a read registers the reader, and the server sends it the changes).
//
// Pushes go in rounds: StartRound takes the changes so far, Next returns them piece by piece, and changes made during
// the round are left to the next one. So every round ends, however slow its receiver. Nothing is queued: a row that
// changes often is returned once, with its current value.
type Subscriptions struct {
	first perdure.RowID // dense: first row of the part
	rows  int           // dense: number of rows; sparse: 0

	positions      map[perdure.RowID]int32 // sparse: the place of each row with a subscriber
	ids            []perdure.RowID         // sparse: by place
	numSubscribers []int32                 // sparse: by place, number of slots that subscribe to the row
	free           []int32                 // sparse: unused places

	slots      []subscriber
	hasChanges bool   // there are changes since the last Advance
	changed    rowSet // rows changed since then
	shared     rowSet // those that were not changed by one slot alone
}

// subscriber is the state of one slot.
type subscriber struct {
	rows    rowSet // rows that it subscribes to
	n       int    // number of rows
	pending rowSet // to be returned in this round
	next    rowSet // to be returned in the next round
	changed rowSet // changed by this slot since the last Advance
}

// NewSubscriptions returns empty Subscriptions, for a dense part with the given rows, or for a sparse part if rows is
// 0.
func NewSubscriptions(slots int, first perdure.RowID, rows int) *Subscriptions {
	s := &Subscriptions{first: first, rows: rows, slots: make([]subscriber, slots)}
	if rows == 0 {
		s.positions = map[perdure.RowID]int32{}
	}
	return s
}

// Grow adds slots, up to a number.
func (s *Subscriptions) Grow(slots int) {
	for len(s.slots) < slots {
		s.slots = append(s.slots, subscriber{})
	}
}

// find returns a row's place, or -1 if it has no subscriber.
func (s *Subscriptions) find(row perdure.RowID) int {
	if s.positions == nil {
		return int(row - s.first)
	}
	if at, ok := s.positions[row]; ok {
		return int(at)
	}
	return -1
}

// id returns the row at a place.
func (s *Subscriptions) id(at int) perdure.RowID {
	if s.positions == nil {
		return s.first + perdure.RowID(at)
	}
	return s.ids[at]
}

// Add subscribes a slot to a row, whose current value is being sent to it.
func (s *Subscriptions) Add(slot perdure.Slot, row perdure.RowID) {
	sub, at := &s.slots[slot], s.find(row)
	if at < 0 {
		at = s.addPosition(row)
	}
	if sub.rows.has(at) {
		return
	}
	sub.rows.set(at)
	sub.n++
	if s.positions != nil {
		s.numSubscribers[at]++
	}
}

// addPosition assigns a place to a row of a sparse part.
func (s *Subscriptions) addPosition(row perdure.RowID) int {
	at := int32(len(s.ids))
	if n := len(s.free); n > 0 {
		at, s.free = s.free[n-1], s.free[:n-1]
		s.ids[at] = row
	} else {
		s.ids, s.numSubscribers = append(s.ids, row), append(s.numSubscribers, 0)
	}
	s.positions[row] = at
	return int(at)
}

// AddRun is Add for n consecutive rows of a dense part.
func (s *Subscriptions) AddRun(slot perdure.Slot, first perdure.RowID, n int) {
	sub, at := &s.slots[slot], int(first-s.first)
	sub.n += n - sub.rows.count(at, at+n)
	sub.rows.setRun(at, at+n)
}

// Drop ends a slot's subscription to a row.
func (s *Subscriptions) Drop(slot perdure.Slot, row perdure.RowID) {
	sub, at := &s.slots[slot], s.find(row)
	if at < 0 || s.positions == nil && at >= s.rows || !sub.rows.has(at) {
		return
	}
	sub.rows.unset(at)
	sub.pending.unset(at)
	sub.next.unset(at)
	sub.n--
	s.release(at)
}

// release handles the end of one slot's subscription to a row.
func (s *Subscriptions) release(at int) {
	if s.positions == nil {
		return
	}
	if s.numSubscribers[at]--; s.numSubscribers[at] == 0 {
		delete(s.positions, s.ids[at])
		s.changed.unset(at) // the next row at this place has not changed
		s.shared.unset(at)
		for i := range s.slots {
			s.slots[i].changed.unset(at)
		}
		s.free = append(s.free, int32(at))
	}
}

// Reset ends all subscriptions of a slot.
func (s *Subscriptions) Reset(slot perdure.Slot) {
	sub := &s.slots[slot]
	if s.positions != nil {
		for at := sub.rows.after(0); at >= 0; at = sub.rows.after(at + 1) {
			s.release(at)
		}
	}
	*sub = subscriber{
		rows: sub.rows.emptied(), pending: sub.pending.emptied(), next: sub.next.emptied(),
		changed: sub.changed,
	}
}

// Rows returns the number of rows that a slot subscribes to.
func (s *Subscriptions) Rows(slot perdure.Slot) int { return s.slots[slot].n }

// MarkChanged records that an update of slot by has changed a row. by must know the result itself, because it is not
// sent the row. NoSlot means any other cause.
func (s *Subscriptions) MarkChanged(by perdure.Slot, row perdure.RowID) {
	if at := s.find(row); at >= 0 {
		s.changedRun(by, at, at+1)
	}
}

// MarkChangedRun is MarkChanged for n consecutive rows of a dense part.
func (s *Subscriptions) MarkChangedRun(by perdure.Slot, first perdure.RowID, n int) {
	at := int(first - s.first)
	s.changedRun(by, at, at+n)
}

func (s *Subscriptions) changedRun(by perdure.Slot, from, end int) {
	s.hasChanges = true
	if by < 0 {
		s.shared.setRun(from, end)
	} else {
		own := &s.slots[by].changed
		own.grow(end)
		s.shared.addRunWithout(s.changed, *own, from, end)
		own.setRun(from, end)
	}
	s.changed.setRun(from, end)
}

// Advance makes the changes so far due to their subscribers, except for rows that a subscriber has changed alone.
func (s *Subscriptions) Advance() {
	if !s.hasChanges {
		return
	}
	s.hasChanges = false
	for i := range s.slots {
		sub := &s.slots[i]
		if sub.n > 0 {
			sub.next.addCommon(s.changed, sub.rows, sub.changed, s.shared)
		}
		sub.changed = sub.changed.emptied()
	}
	s.changed, s.shared = s.changed.emptied(), s.shared.emptied()
}

// StartRound starts a slot's next round, with all rows due to it.
func (s *Subscriptions) StartRound(slot perdure.Slot) {
	sub := &s.slots[slot]
	sub.pending, sub.next = sub.next, sub.pending.emptied()
}

// Next returns the next rows of a slot's round in the order of their places; no rows mean that the round is complete.
// The result is either a run of at most most consecutive rows of a dense part, of at least long rows unless it is the
// last of the round; or a list of at most most rows, appended to ids. Runs and lists may alternate.
func (s *Subscriptions) Next(
	slot perdure.Slot, long, most int, ids []perdure.RowID,
) (first perdure.RowID, n int, list []perdure.RowID) {
	sub := &s.slots[slot]
	list = ids[:0]
	for at := sub.pending.after(0); at >= 0 && len(list) < most; at = sub.pending.after(at + 1) {
		if s.positions == nil {
			end := sub.pending.gap(at, min(at+most, s.rows))
			if end-at >= long || len(list) == 0 && sub.pending.after(end) < 0 {
				if len(list) > 0 {
					break // the run is returned next
				}
				sub.pending.unsetRun(at, end)
				return s.id(at), end - at, nil
			}
		}
		list = append(list, s.id(at))
		sub.pending.unset(at)
	}
	return 0, 0, list
}

// rowSet is a set of places.
type rowSet []uint64

func (r rowSet) has(at int) bool { return at>>6 < len(r) && r[at>>6]>>(at&63)&1 != 0 }

func (r *rowSet) grow(end int) {
	if n := (end + 63) / 64; n > len(*r) {
		*r = append(*r, make([]uint64, n-len(*r))...)
	}
}

func (r *rowSet) set(at int) {
	r.grow(at + 1)
	(*r)[at>>6] |= 1 << (at & 63)
}

func (r rowSet) unset(at int) {
	if at>>6 < len(r) {
		r[at>>6] &^= 1 << (at & 63)
	}
}

// mask returns the bits of word w for the places from ≤ at < end.
func mask(w, from, end int) uint64 {
	m := ^uint64(0)
	if low := from - w<<6; low > 0 {
		m <<= low
	}
	if high := end - w<<6; high < 64 {
		m &= 1<<high - 1
	}
	return m
}

func (r *rowSet) setRun(from, end int) {
	r.grow(end)
	for w := from >> 6; w<<6 < end; w++ {
		(*r)[w] |= mask(w, from, end)
	}
}

func (r rowSet) unsetRun(from, end int) {
	for w := from >> 6; w<<6 < end && w < len(r); w++ {
		r[w] &^= mask(w, from, end)
	}
}

// count returns how many places from ≤ at < end are in the set.
func (r rowSet) count(from, end int) (n int) {
	for w := from >> 6; w<<6 < end && w < len(r); w++ {
		n += bits.OnesCount64(r[w] & mask(w, from, end))
	}
	return n
}

// after returns the first place ≥ from in the set, or -1.
func (r rowSet) after(from int) int {
	for w := from >> 6; w < len(r); w++ {
		if word := r[w] & mask(w, from, (w+1)<<6); word != 0 {
			return w<<6 + bits.TrailingZeros64(word)
		}
	}
	return -1
}

// gap returns the first place ≥ from that is not in the set, at most end.
func (r rowSet) gap(from, end int) int {
	for w := from >> 6; w<<6 < end && w < len(r); w++ {
		if word := ^r[w] & mask(w, from, end); word != 0 {
			return w<<6 + bits.TrailingZeros64(word)
		}
	}
	return min(end, max(from, len(r)<<6))
}

// word returns a word of the set, or 0 beyond its end.
func (r rowSet) word(w int) uint64 {
	if w < len(r) {
		return r[w]
	}
	return 0
}

// addCommon adds the places that are in both a and b, except for those that are in own and not in shared.
func (r *rowSet) addCommon(a, b, own, shared rowSet) {
	n := min(len(a), len(b))
	r.grow(n << 6)
	for w := range n {
		(*r)[w] |= a[w] & b[w] & (^own.word(w) | shared.word(w))
	}
}

// addRunWithout adds the places from ≤ at < end that are in a and not in b.
func (r *rowSet) addRunWithout(a, b rowSet, from, end int) {
	r.grow(end)
	for w := from >> 6; w<<6 < end; w++ {
		(*r)[w] |= a.word(w) &^ b.word(w) & mask(w, from, end)
	}
}

// emptied returns the empty set, in the same memory.
func (r rowSet) emptied() rowSet {
	clear(r)
	return r
}

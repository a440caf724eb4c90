package consistency

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
)

// rows is a deliberately simple set of rows.
type rows map[perdure.RowID]bool

// changers maps each changed row to the slots that changed it.
type changers map[perdure.RowID]map[perdure.Slot]bool

func (c changers) add(by perdure.Slot, row perdure.RowID) {
	if c[row] == nil {
		c[row] = map[perdure.Slot]bool{}
	}
	c[row][by] = true
}

// naiveSubscriber is the expected state of one slot: the rows that it wants, and which of them have changed since they
// were returned to it.
type naiveSubscriber struct {
	wants   rows
	next    rows // due in the next round
	pending rows // due in this round
}

// subscriptionsPair runs the same operations on a Subscriptions and on simple sets.
type subscriptionsPair struct {
	s       *Subscriptions
	first   perdure.RowID
	n       int // dense: number of rows
	ids     int // sparse: number of possible rows
	changed changers
	slots   []naiveSubscriber
}

func (p *subscriptionsPair) sparse() bool { return p.n == 0 }

func newPair(t *rapid.T) *subscriptionsPair {
	p := &subscriptionsPair{
		first:   perdure.RowID(rapid.SampledFrom([]uint64{0, 7, 1 << 40}).Draw(t, "first")),
		n:       rapid.SampledFrom([]int{0, 0, 0, 1, 3, 63, 64, 65, 130}).Draw(t, "rows"),
		changed: changers{},
		slots:   make([]naiveSubscriber, rapid.IntRange(1, 3).Draw(t, "slots")),
	}
	if p.sparse() {
		p.first, p.ids = 0, rapid.SampledFrom([]int{2, 6, 81}).Draw(t, "ids")
	}
	for i := range p.slots {
		p.slots[i] = naiveSubscriber{rows{}, rows{}, rows{}}
	}
	p.s = NewSubscriptions(len(p.slots), p.first, p.n)
	return p
}

func (p *subscriptionsPair) slot(t *rapid.T) int {
	return rapid.IntRange(0, len(p.slots)-1).Draw(t, "slot")
}

// row draws one of few rows, so that operations meet. In a sparse part they are far apart.
func (p *subscriptionsPair) row(t *rapid.T) perdure.RowID {
	if p.sparse() {
		return perdure.RowID(rapid.IntRange(0, p.ids-1).Draw(t, "row")) * 1_000_003
	}
	return p.first + perdure.RowID(rapid.IntRange(0, p.n-1).Draw(t, "row"))
}

func (p *subscriptionsPair) run(t *rapid.T) (first perdure.RowID, n int) {
	if p.sparse() {
		t.Skip("no runs")
	}
	first = p.row(t)
	return first, rapid.IntRange(1, p.n-int(first-p.first)).Draw(t, "n")
}

func (p *subscriptionsPair) add(t *rapid.T) {
	slot, row := p.slot(t), p.row(t)
	p.s.Add(perdure.Slot(slot), row)
	p.slots[slot].wants[row] = true
}

func (p *subscriptionsPair) addRun(t *rapid.T) {
	slot := p.slot(t)
	first, n := p.run(t)
	p.s.AddRun(perdure.Slot(slot), first, n)
	for i := range n {
		p.slots[slot].wants[first+perdure.RowID(i)] = true
	}
}

func (p *subscriptionsPair) drop(t *rapid.T) {
	slot, row := p.slot(t), p.row(t)
	p.s.Drop(perdure.Slot(slot), row)
	u := &p.slots[slot]
	delete(u.wants, row)
	delete(u.next, row)
	delete(u.pending, row)
	p.forget(row)
}

// forget models the only thing that a sparse part may forget: the change of a row without subscribers.
func (p *subscriptionsPair) forget(row perdure.RowID) {
	if p.sparse() && !slices.ContainsFunc(p.slots, func(u naiveSubscriber) bool { return u.wants[row] }) {
		delete(p.changed, row)
	}
}

func (p *subscriptionsPair) reset(t *rapid.T) {
	slot := p.slot(t)
	p.s.Reset(perdure.Slot(slot))
	wanted := p.slots[slot].wants
	p.slots[slot] = naiveSubscriber{rows{}, rows{}, rows{}}
	for row := range wanted {
		p.forget(row)
	}
}

// by draws the cause of a change: a slot that knows the result, or NoSlot.
func (p *subscriptionsPair) by(t *rapid.T) perdure.Slot {
	return perdure.Slot(rapid.IntRange(-1, len(p.slots)-1).Draw(t, "by"))
}

func (p *subscriptionsPair) change(t *rapid.T) {
	by, row := p.by(t), p.row(t)
	p.s.MarkChanged(by, row)
	p.changed.add(by, row)
	p.forget(row)
}

func (p *subscriptionsPair) changeRun(t *rapid.T) {
	by := p.by(t)
	first, n := p.run(t)
	p.s.MarkChangedRun(by, first, n)
	for i := range n {
		p.changed.add(by, first+perdure.RowID(i))
	}
}

func (p *subscriptionsPair) advance(*rapid.T) {
	p.s.Advance()
	for i, u := range p.slots {
		for row, by := range p.changed {
			alone := len(by) == 1 && by[perdure.Slot(i)]
			if u.wants[row] && !alone {
				u.next[row] = true
			}
		}
	}
	clear(p.changed)
}

// begin starts a slot's round if the previous one has ended, as a shard does.
func (p *subscriptionsPair) begin(t *rapid.T) {
	slot := p.slot(t)
	u := &p.slots[slot]
	if len(u.pending) > 0 {
		t.Skip("the slot's round is not over")
	}
	p.s.StartRound(perdure.Slot(slot))
	u.next, u.pending = u.pending, u.next
}

// next takes a piece of a round. It must contain only due rows, each once, and may be empty only if the round is over.
func (p *subscriptionsPair) next(t *rapid.T) {
	slot := p.slot(t)
	long, most := rapid.IntRange(2, 5).Draw(t, "long"), rapid.IntRange(1, 6).Draw(t, "most")
	p.take(t, slot, long, most)
}

func (p *subscriptionsPair) take(t *rapid.T, slot, long, most int) {
	u := &p.slots[slot]
	first, n, list := p.s.Next(perdure.Slot(slot), long, most, nil)
	if n > 0 {
		if len(list) > 0 || n < long && n < len(u.pending) || p.sparse() {
			t.Fatalf("a run of %d from %d and a list %v, but runs before the last must have at least %d rows", n,
				first, list, long)
		}
		for i := range n {
			list = append(list, first+perdure.RowID(i))
		}
	}
	if len(list) > most {
		t.Fatalf("%d rows in one piece, want at most %d", len(list), most)
	}
	for _, row := range list {
		if !u.pending[row] {
			t.Fatalf("slot %d gets row %d, but the due rows are %v", slot, row, slices.Sorted(maps.Keys(u.pending)))
		}
		delete(u.pending, row)
	}
	if len(list) == 0 && len(u.pending) > 0 {
		t.Fatalf("slot %d's round ends without rows %v", slot, slices.Sorted(maps.Keys(u.pending)))
	}
}

// finish ends a slot's round in at most as many pieces as there are rows. Changes during the round do not prolong it.
func (p *subscriptionsPair) finish(t *rapid.T) {
	slot := p.slot(t)
	for pieces := len(p.slots[slot].pending); pieces > 0 && len(p.slots[slot].pending) > 0; pieces-- {
		if rapid.Bool().Draw(t, "meanwhile") {
			p.change(t)
			p.advance(t)
		}
		p.take(t, slot, 2, 3)
	}
	if left := p.slots[slot].pending; len(left) > 0 {
		t.Fatalf("slot %d's round does not end: %v are left", slot, left)
	}
	p.take(t, slot, 2, 3)
}

func (p *subscriptionsPair) check(t *rapid.T) {
	for i, u := range p.slots {
		if got := p.s.Rows(perdure.Slot(i)); got != len(u.wants) {
			t.Fatalf("slot %d has %d rows, want %d", i, got, len(u.wants))
		}
	}
	if !p.sparse() {
		return
	}
	wanted := rows{}
	for _, u := range p.slots {
		maps.Copy(wanted, u.wants)
	}
	if got := len(p.s.positions); got != len(wanted) || len(p.s.ids) != got+len(p.s.free) {
		t.Fatalf("%d rows have a place, %d of %d places are free, and %d rows have subscribers", got, len(p.s.free),
			len(p.s.ids), len(wanted))
	}
}

// Whatever subscribers and changes do, each subscriber gets exactly the changed rows that it wants, once per round, and
// no others, even when places of a sparse part are reused.
func TestSubscriptionsLikeSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPair(t)
		t.Repeat(map[string]func(*rapid.T){
			"add": p.add, "add again": p.add, "add run": p.addRun, "drop": p.drop, "reset": p.reset,
			"change": p.change, "change again": p.change, "change run": p.changeRun, "advance": p.advance,
			"begin": p.begin, "next": p.next, "next again": p.next, "finish": p.finish, "": p.check,
		})
		for slot := range p.slots { // rows that are due at the end are in this round or the next
			for range 2 {
				for len(p.slots[slot].pending) > 0 {
					p.take(t, slot, 3, 4)
				}
				p.take(t, slot, 3, 4)
				p.advance(t)
				p.s.StartRound(perdure.Slot(slot))
				u := &p.slots[slot]
				u.next, u.pending = u.pending, u.next
			}
		}
	})
}

// The place of a row without subscribers is reused for another row. The new row must not count as changed because the
// old one was.
func TestPlaceUsedAgain(t *testing.T) {
	s := NewSubscriptions(2, 0, 0)
	s.Add(0, 10)
	s.MarkChanged(perdure.NoSlot, 10)
	s.Drop(0, 10)
	s.Add(1, 20)
	s.Add(0, 10)
	s.Advance()
	for slot := range perdure.Slot(2) {
		s.StartRound(slot)
		if _, _, list := s.Next(slot, 2, 9, nil); len(list) > 0 {
			t.Errorf("slot %d gets rows %v, which have not changed since it subscribed", slot, list)
		}
	}
	if len(s.ids) != 2 {
		t.Errorf("two rows use %d places", len(s.ids))
	}
}

// A piece is a long run or a list, in the order of the rows.
func TestNextPieces(t *testing.T) {
	s := NewSubscriptions(1, 100, 200)
	s.AddRun(0, 100, 200)
	s.MarkChangedRun(perdure.NoSlot, 100, 2)
	s.MarkChangedRun(perdure.NoSlot, 110, 70) // across the boundary of 64-bit words
	s.MarkChanged(perdure.NoSlot, 190)
	s.MarkChangedRun(perdure.NoSlot, 210, 8)
	s.MarkChanged(perdure.NoSlot, 299)
	s.Advance()
	s.StartRound(0)
	got := ""
	for {
		first, n, list := s.Next(0, 8, 50, nil)
		if n == 0 && len(list) == 0 {
			break
		}
		got += fmt.Sprintln(first, n, list)
	}
	if want := "0 0 [100 101]\n110 50 []\n160 20 []\n0 0 [190]\n210 8 []\n299 1 []\n"; got != want {
		t.Errorf("pieces:\n%swant:\n%s", got, want)
	}
}

// rowSetBorders are places at and around word boundaries.
var rowSetBorders = []int{0, 1, 62, 63, 64, 65, 127, 128, 129, 191, 192, 200}

// places is a rowSet and an equivalent map.
type places struct {
	set  rowSet
	want map[int]bool
}

// check compares the results of all queries.
func (p *places) check(t *testing.T, what string, most int) {
	t.Helper()
	for from := range most {
		after := -1
		for at := from; at < most && after < 0; at++ {
			if p.want[at] {
				after = at
			}
		}
		if got := p.set.after(from); got != after || p.set.has(from) != p.want[from] {
			t.Fatalf("%s: after(%d) = %d, want %d; has(%d) = %v", what, from, got, after, from, p.set.has(from))
		}
		for _, end := range rowSetBorders {
			if end <= from {
				continue
			}
			count, gap := 0, end
			for at := from; at < end; at++ {
				if p.want[at] {
					count++
				} else {
					gap = min(gap, at)
				}
			}
			if got := p.set.count(from, end); got != count {
				t.Fatalf("%s: count(%d, %d) = %d, want %d", what, from, end, got, count)
			}
			if got := p.set.gap(from, end); got != gap {
				t.Fatalf("%s: gap(%d, %d) = %d, want %d", what, from, end, got, gap)
			}
		}
	}
}

// A rowSet is a set of places, including when runs start or end at a word boundary.
func TestRowSetBorders(t *testing.T) {
	const most = 200
	for _, from := range rowSetBorders {
		for _, end := range rowSetBorders {
			if end <= from {
				continue
			}
			p := places{want: map[int]bool{}}
			p.set.setRun(from, end)
			for at := from; at < end; at++ {
				p.want[at] = true
			}
			p.check(t, fmt.Sprintf("setRun(%d, %d)", from, end), most)
			for _, at := range []int{from, (from + end) / 2, end - 1, end + 300} {
				p.set.unset(at)
				delete(p.want, at)
			}
			p.set.set(from)
			p.want[from] = true
			p.check(t, fmt.Sprintf("setRun(%d, %d) without some", from, end), most)
			middle := (from + end) / 2
			p.set.unsetRun(middle, end+70)
			for at := middle; at < end+70; at++ {
				delete(p.want, at)
			}
			p.check(t, fmt.Sprintf("unsetRun(%d, %d)", middle, end+70), most)
			p.set = p.set.emptied()
			if p.set.after(0) >= 0 {
				t.Fatal("an emptied set contains places")
			}
		}
	}
}

// addCommon adds the common places of two sets, except those in a third and not in a fourth set, whichever is longer.
// addRunWithout adds the places that are in one set and not in another.
func TestRowSetUnions(t *testing.T) {
	for _, lengths := range [][5]int{
		{0, 130, 70, 0, 0},
		{200, 70, 130, 65, 200},
		{70, 0, 130, 10, 10},
		{10, 64, 65, 200, 64},
		{0, 210, 210, 210, 130},
	} {
		sets, p, q := [5]rowSet{}, places{want: map[int]bool{}}, places{want: map[int]bool{}}
		for i, n := range lengths {
			for at := i; at < n; at += i + 2 { // every 2nd place for the first, then every 3rd, every 4th
				sets[i].set(at)
			}
		}
		for at := range 210 {
			if sets[0].has(at) || sets[1].has(at) && sets[2].has(at) && (!sets[3].has(at) || sets[4].has(at)) {
				p.want[at] = true
			}
			if sets[0].has(at) || at >= 3 && at < 140 && sets[1].has(at) && !sets[3].has(at) {
				q.want[at] = true
			}
		}
		p.set, q.set = slices.Clone(sets[0]), slices.Clone(sets[0])
		p.set.addCommon(sets[1], sets[2], sets[3], sets[4])
		p.check(t, fmt.Sprint("common of ", lengths), 210)
		q.set.addRunWithout(sets[1], sets[3], 3, 140)
		q.check(t, fmt.Sprint("without of ", lengths), 210)
	}
}

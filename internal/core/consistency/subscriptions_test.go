package consistency

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
)

// rows is a set of rows, of the deliberately dumb kind.
type rows map[perdure.RowID]bool

// changers are the rows that have changed, and by whom.
type changers map[perdure.RowID]map[perdure.Slot]bool

func (c changers) add(by perdure.Slot, row perdure.RowID) {
	if c[row] == nil {
		c[row] = map[perdure.Slot]bool{}
	}
	c[row][by] = true
}

// naiveSubscriber is one slot as it should be: which rows it wants, and which of
// those changed since they were handed to it.
type naiveSubscriber struct {
	wants   rows
	next    rows // due in the round that Begin begins
	pending rows // due in this round
}

// subscriptionsPair plays everything on a Subscriptions and on sets.
type subscriptionsPair struct {
	s       *Subscriptions
	first   perdure.RowID
	n       int // dense: how many rows
	ids     int // sparse: of how many rows
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

// row is one of few, so that they meet again; of a sparse part they are far apart.
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

// forget follows the one thing that a sparse part may forget: that a row changed
// which nobody wants.
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

// by draws who changes something: a slot that knows what it does, or somebody else.
func (p *subscriptionsPair) by(t *rapid.T) perdure.Slot {
	return perdure.Slot(rapid.IntRange(-1, len(p.slots)-1).Draw(t, "by"))
}

func (p *subscriptionsPair) change(t *rapid.T) {
	by, row := p.by(t), p.row(t)
	p.s.Changed(by, row)
	p.changed.add(by, row)
	p.forget(row)
}

func (p *subscriptionsPair) changeRun(t *rapid.T) {
	by := p.by(t)
	first, n := p.run(t)
	p.s.ChangedRun(by, first, n)
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

// begin begins a slot's round where its last one has ended, as a shard does.
func (p *subscriptionsPair) begin(t *rapid.T) {
	slot := p.slot(t)
	u := &p.slots[slot]
	if len(u.pending) > 0 {
		t.Skip("its round is not over")
	}
	p.s.Begin(perdure.Slot(slot))
	u.next, u.pending = u.pending, u.next
}

// next takes a piece of a round: only due rows, each once, and none only when the
// round is over.
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
			t.Fatalf("a run of %d from %d and a list %v, where runs that are not the last are at least %d long", n,
				first, list, long)
		}
		for i := range n {
			list = append(list, first+perdure.RowID(i))
		}
	}
	if len(list) > most {
		t.Fatalf("%d rows at once, at most %d were asked for", len(list), most)
	}
	for _, row := range list {
		if !u.pending[row] {
			t.Fatalf("slot %d is handed row %d, of due rows %v", slot, row, slices.Sorted(maps.Keys(u.pending)))
		}
		delete(u.pending, row)
	}
	if len(list) == 0 && len(u.pending) > 0 {
		t.Fatalf("slot %d's round ends without rows %v", slot, slices.Sorted(maps.Keys(u.pending)))
	}
}

// finish ends a slot's round in as many pieces as there are rows at most: changes
// meanwhile do not make it longer.
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
		t.Fatalf("slot %d's round does not end: %v is left", slot, left)
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
	if got := len(p.s.places); got != len(wanted) || len(p.s.ids) != got+len(p.s.free) {
		t.Fatalf("%d rows have a place and %d places of %d are free, where %d rows are wanted", got, len(p.s.free),
			len(p.s.ids), len(wanted))
	}
}

// Whatever subscribers and changes do, each subscriber is handed exactly what
// changed of what it wants, once a round, and no row that it does not want, though
// places of a sparse part are used again.
func TestSubscriptionsLikeSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPair(t)
		t.Repeat(map[string]func(*rapid.T){
			"add": p.add, "add again": p.add, "add run": p.addRun, "drop": p.drop, "reset": p.reset,
			"change": p.change, "change again": p.change, "change run": p.changeRun, "advance": p.advance,
			"begin": p.begin, "next": p.next, "next again": p.next, "finish": p.finish, "": p.check,
		})
		for slot := range p.slots { // what is due at the end comes with this round or the next
			for range 2 {
				for len(p.slots[slot].pending) > 0 {
					p.take(t, slot, 3, 4)
				}
				p.take(t, slot, 3, 4)
				p.advance(t)
				p.s.Begin(perdure.Slot(slot))
				u := &p.slots[slot]
				u.next, u.pending = u.pending, u.next
			}
		}
	})
}

// The place of a row that nobody wants any more goes to another row, which is not
// taken for changed because the first was.
func TestPlaceUsedAgain(t *testing.T) {
	s := NewSubscriptions(2, 0, 0)
	s.Add(0, 10)
	s.Changed(perdure.NoSlot, 10)
	s.Drop(0, 10)
	s.Add(1, 20)
	s.Add(0, 10)
	s.Advance()
	for slot := range perdure.Slot(2) {
		s.Begin(slot)
		if _, _, list := s.Next(slot, 2, 9, nil); len(list) > 0 {
			t.Errorf("slot %d is handed %v, which did not change since it asked", slot, list)
		}
	}
	if len(s.ids) != 2 {
		t.Errorf("two rows have %d places", len(s.ids))
	}
}

// A piece is a long run or a list, in the order of the rows.
func TestNextPieces(t *testing.T) {
	s := NewSubscriptions(1, 100, 200)
	s.AddRun(0, 100, 200)
	s.ChangedRun(perdure.NoSlot, 100, 2)
	s.ChangedRun(perdure.NoSlot, 110, 70) // over the border of words of 64
	s.Changed(perdure.NoSlot, 190)
	s.ChangedRun(perdure.NoSlot, 210, 8)
	s.Changed(perdure.NoSlot, 299)
	s.Advance()
	s.Begin(0)
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

// rowSetBorders are places at and around the borders of words.
var rowSetBorders = []int{0, 1, 62, 63, 64, 65, 127, 128, 129, 191, 192, 200}

// places is a rowSet and a map beside it.
type places struct {
	set  rowSet
	want map[int]bool
}

// check compares everything that can be asked.
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

// A rowSet is a set of places, also where runs begin or end at the border of a word.
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
				t.Fatal("an emptied set has places")
			}
		}
	}
}

// addCommon adds what two sets have, but for what is in a third and not in a fourth,
// whichever is longer; addRunWithout what one has and another has not.
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
			for at := i; at < n; at += i + 2 { // of the first every 2nd, then every 3rd, every 4th
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

package membership

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// TestApply checks which slots participate after a change at clock 5, and which changes are rejected.
func TestApply(t *testing.T) {
	iv := func(from, until perdure.Clock) protocol.SlotView {
		return protocol.SlotView{Incarnation: 1, Interval: protocol.Interval{From: from, Until: until}, Left: until > 0}
	}
	for name, c := range map[string]struct {
		change  Change
		slots   []protocol.SlotView
		joined  []int
		past    int64
		refusal string
	}{
		"one more":         {Change{Add: 1}, []protocol.SlotView{iv(0, 0)}, []int{1}, 0, ""},
		"in a vacant slot": {Change{Add: 2}, []protocol.SlotView{iv(0, 0), iv(0, 3)}, []int{1, 2}, 3, ""},
		"in the slot of the returning one": {
			Change{Rejoin: []perdure.Slot{2, 0}},
			[]protocol.SlotView{iv(0, 0), iv(0, 3), iv(1, 3)},
			[]int{2},
			2, "",
		},
		"one leaves": {
			Change{Leave: []perdure.Slot{0}},
			[]protocol.SlotView{iv(0, 0), iv(0, 0)},
			nil, 0, "",
		},
		"no slot is left":   {Change{Leave: []perdure.Slot{0}}, []protocol.SlotView{iv(0, 0)}, nil, 0, "no worker"},
		"it does not exist": {Change{Leave: []perdure.Slot{1}}, []protocol.SlotView{iv(0, 0)}, nil, 0, "no slot 1"},
		"it left before":    {Change{Leave: []perdure.Slot{0}}, []protocol.SlotView{iv(0, 3)}, nil, 0, "slot 0 left"},
		"it leaves twice":   {Change{Leave: []perdure.Slot{0, 0}}, []protocol.SlotView{iv(0, 0)}, nil, 0, "already"},
		"before it joined":  {Change{Leave: []perdure.Slot{0}}, []protocol.SlotView{iv(5, 0)}, nil, 0, "at clock 5"},
	} {
		before := slices.Clone(c.slots)
		next, joined, past, err := c.change.Apply(c.slots, 5, perdure.MaxClock)
		if (err == nil) != (c.refusal == "") || err != nil && !strings.Contains(err.Error(), c.refusal) {
			t.Errorf("%s: %v, want %q", name, err, c.refusal)
		}
		if err != nil {
			continue
		}
		if !slices.Equal(joined, c.joined) || past != c.past {
			t.Errorf("%s: %v join, %d past clocks; want %v, %d", name, joined, past, c.joined, c.past)
		}
		for _, i := range joined {
			sl := next[i]
			if again := i < len(before); sl.From != 5 || sl.Until != 0 || sl.Left || again && sl.Incarnation != 2 {
				t.Errorf("%s: slot %d is %+v", name, i, sl)
			}
		}
	}
}

// TestEarly checks that a slot that joins is early until an earlier member has reached the clock before its first.
func TestEarly(t *testing.T) {
	joins := protocol.SlotView{Interval: protocol.Interval{From: 9}}
	gone := protocol.SlotView{Left: true, Interval: intervalUpTo(0, 8)}
	for name, c := range map[string]struct {
		slots []protocol.SlotView
		done  []perdure.Clock
		from  perdure.Clock
		want  bool
	}{
		"participates from the beginning":  {[]protocol.SlotView{{}, {}}, []perdure.Clock{0, 0}, 0, false},
		"the other is behind":              {[]protocol.SlotView{joins, {}}, []perdure.Clock{8, 7}, 0, true},
		"the other has reached it":         {[]protocol.SlotView{joins, {}}, []perdure.Clock{8, 8}, 0, false},
		"by its start":                     {[]protocol.SlotView{joins, {Start: 8}}, []perdure.Clock{8, 0}, 0, false},
		"it has worked itself":             {[]protocol.SlotView{joins, {}}, []perdure.Clock{10, 3}, 0, false},
		"the other reached it and left":    {[]protocol.SlotView{joins, gone}, []perdure.Clock{8, 0}, 0, false},
		"the job starts there":             {[]protocol.SlotView{joins, {}}, []perdure.Clock{8, 0}, 8, false},
		"other joining slots do not count": {[]protocol.SlotView{joins, joins}, []perdure.Clock{8, 9}, 0, true},
		"unless they have done a clock":    {[]protocol.SlotView{joins, joins}, []perdure.Clock{8, 10}, 0, false},
	} {
		if got := startsEarly(c.slots, 0, c.from, func(i int) perdure.Clock { return c.done[i] }); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestReuse checks that the number of a slot is not reused as long as others may need the state of its last clock.
func TestReuse(t *testing.T) {
	for reusable, want := range map[perdure.Clock]int{perdure.MaxClock: 0, 3: 0, 2: 1} {
		slots := []protocol.SlotView{{Interval: protocol.Interval{Until: 3}, Left: true}}
		slots = append(slots, protocol.SlotView{})
		ch := Change{Add: 1}
		if _, joined, _, err := ch.Apply(slots, 5, reusable); err != nil || joined[0] != 2*want {
			t.Errorf("reusable up to clock %d: slots %v join, %v", reusable, joined, err)
		}
	}
}

// TestSomeoneWorks compares the result with a check of every clock.
func TestSomeoneWorks(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		intervals := make([]protocol.Interval, rng.IntN(5))
		for i := range intervals {
			intervals[i].From = perdure.Clock(rng.IntN(8))
			if rng.IntN(3) > 0 {
				intervals[i].Until = max(1, intervals[i].From+perdure.Clock(rng.IntN(5)))
			}
		}
		at, shared, want := perdure.Clock(rng.IntN(8)), rng.IntN(2) > 0, true
		for c := at; c < 20; c++ {
			want = want && slices.ContainsFunc(intervals, func(s protocol.Interval) bool {
				return s.Has(c) && (!shared || c == 0 || s.Has(c-1))
			})
		}
		if err := checkCovered(intervals, at, shared); (err == nil) != want {
			t.Fatalf("%+v from clock %d on, shared %v: %v", intervals, at, shared, err)
		}
	}
}

// TestLeast checks that slots that have done all their clocks are ignored.
func TestLeast(t *testing.T) {
	slots := []protocol.SlotView{
		{},
		{Interval: protocol.Interval{Until: 10}},
		{Interval: protocol.Interval{From: 5, Until: 40}},
	}
	for _, c := range []struct {
		counts []perdure.Clock
		want   perdure.Clock
	}{
		{[]perdure.Clock{30, 10, 35}, 30},
		{[]perdure.Clock{30, 9, 35}, 9},
		{[]perdure.Clock{30, 10, 20}, 20},
		{[]perdure.Clock{50, 10, 40}, 50},
	} {
		if got := minCount(slots, c.counts); got != c.want {
			t.Errorf("the smallest of %v is %d, want %d", c.counts, got, c.want)
		}
	}
	if got := minCount(slots[1:], []perdure.Clock{10, 40}); got != 40 {
		t.Errorf("the smallest, when all are done, is %d", got)
	}
}

// TestChanged checks which slots participate in a job that continues at clock 5 with another number of workers.
func TestChanged(t *testing.T) {
	all, gone := protocol.Interval{}, protocol.Interval{Until: 3}
	for name, c := range map[string]struct {
		saved   []protocol.Interval
		workers int
		want    []protocol.Interval
		refusal string
	}{
		"as many":          {[]protocol.Interval{all, all}, 2, []protocol.Interval{all, all}, ""},
		"more":             {[]protocol.Interval{all}, 3, []protocol.Interval{all, {From: 5}, {From: 5}}, ""},
		"fewer":            {[]protocol.Interval{all, all}, 1, []protocol.Interval{all, {Until: 5}}, ""},
		"no reuse":         {[]protocol.Interval{gone, all}, 2, []protocol.Interval{gone, all, {From: 5}}, ""},
		"one starts there": {[]protocol.Interval{all, {From: 5}}, 2, []protocol.Interval{all, {From: 5}}, ""},
		"not if fewer":     {[]protocol.Interval{all, {From: 5}}, 1, []protocol.Interval{all, {From: 5, Until: 5}}, ""},
		"plans are dropped": {
			[]protocol.Interval{{Until: 9}, {From: 8}},
			1,
			[]protocol.Interval{all, {From: 8, Until: 8}},
			"",
		},
		"none":              {[]protocol.Interval{all}, 0, nil, "--workers 0; choose 1 to 4096"},
		"too many":          {[]protocol.Interval{all}, 4097, nil, "--workers 4097; choose 1 to 4096"},
		"too many by slots": {[]protocol.Interval{gone}, 4096, nil, "has had 1 slots and would need 4096 more"},
		"one that leaves there": {
			[]protocol.Interval{all, {From: 2, Until: 5}},
			2,
			[]protocol.Interval{all, {From: 2, Until: 5}, {From: 5}},
			"",
		},
	} {
		before := slices.Clone(c.saved)
		got, err := RescaledIntervals(c.saved, c.workers, 5)
		if (err == nil) != (c.refusal == "") || err != nil && !strings.Contains(err.Error(), c.refusal) {
			t.Errorf("%s: %v, want %q", name, err, c.refusal)
		}
		if !slices.Equal(got, c.want) || !slices.Equal(c.saved, before) {
			t.Errorf("%s: %v, want %v, of %v", name, got, c.want, c.saved)
		}
		works := 0
		for _, s := range resumedSlots(got, &protocol.View{Cut: 5}) {
			if !s.Left {
				works++
			}
		}
		if err == nil && works != c.workers {
			t.Errorf("%s: %d continue, want %d", name, works, c.workers)
		}
	}
}

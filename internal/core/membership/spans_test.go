package membership

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// Who takes part after a change at clock 5, and what is refused.
func TestApply(t *testing.T) {
	span := func(from, until perdure.Clock) words.SlotView {
		return words.SlotView{Incarnation: 1, Span: words.Span{From: from, Until: until}, Left: until > 0}
	}
	for name, c := range map[string]struct {
		change  Change
		slots   []words.SlotView
		joined  []int
		past    int64
		refusal string
	}{
		"one more":          {Change{Add: 1}, []words.SlotView{span(0, 0)}, []int{1}, 0, ""},
		"in a vacant place": {Change{Add: 2}, []words.SlotView{span(0, 0), span(0, 3)}, []int{1, 2}, 3, ""},
		"in the one's that comes again": {
			Change{Again: []perdure.Slot{2, 0}},
			[]words.SlotView{span(0, 0), span(0, 3), span(1, 3)},
			[]int{2},
			2, "",
		},
		"one leaves":      {Change{Leave: []perdure.Slot{0}}, []words.SlotView{span(0, 0), span(0, 0)}, nil, 0, ""},
		"nobody is left":  {Change{Leave: []perdure.Slot{0}}, []words.SlotView{span(0, 0)}, nil, 0, "nobody would"},
		"there is none":   {Change{Leave: []perdure.Slot{1}}, []words.SlotView{span(0, 0)}, nil, 0, "no slot 1"},
		"it has left":     {Change{Leave: []perdure.Slot{0}}, []words.SlotView{span(0, 3)}, nil, 0, "has left"},
		"it leaves twice": {Change{Leave: []perdure.Slot{0, 0}}, []words.SlotView{span(0, 0)}, nil, 0, "already"},
		"before it came":  {Change{Leave: []perdure.Slot{0}}, []words.SlotView{span(5, 0)}, nil, 0, "at clock 5"},
	} {
		before := slices.Clone(c.slots)
		next, joined, past, err := c.change.Apply(c.slots, 5)
		if (err == nil) != (c.refusal == "") || err != nil && !strings.Contains(err.Error(), c.refusal) {
			t.Errorf("%s: %v, want %q", name, err, c.refusal)
		}
		if err != nil {
			continue
		}
		if !slices.Equal(joined, c.joined) || past != c.past {
			t.Errorf("%s: %v join, %d clocks are past; want %v, %d", name, joined, past, c.joined, c.past)
		}
		for _, i := range joined {
			sl := next[i]
			if again := i < len(before); sl.From != 5 || sl.Until != 0 || sl.Left || again && sl.Incarnation != 2 {
				t.Errorf("%s: slot %d is %+v", name, i, sl)
			}
		}
	}
}

// A slot that joins is early until somebody who was there before has come to the clock before its first.
func TestEarly(t *testing.T) {
	joins := words.SlotView{Span: words.Span{From: 9}}
	gone := words.SlotView{Left: true, Span: spanUpTo(0, 8)}
	for name, c := range map[string]struct {
		slots []words.SlotView
		done  []perdure.Clock
		from  perdure.Clock
		want  bool
	}{
		"was there from the beginning":   {[]words.SlotView{{}, {}}, []perdure.Clock{0, 0}, 0, false},
		"the other is behind":            {[]words.SlotView{joins, {}}, []perdure.Clock{8, 7}, 0, true},
		"the other has come":             {[]words.SlotView{joins, {}}, []perdure.Clock{8, 8}, 0, false},
		"by its start":                   {[]words.SlotView{joins, {Start: 8}}, []perdure.Clock{8, 0}, 0, false},
		"it has worked itself":           {[]words.SlotView{joins, {}}, []perdure.Clock{10, 3}, 0, false},
		"the other has come, and left":   {[]words.SlotView{joins, gone}, []perdure.Clock{8, 0}, 0, false},
		"the job begins there":           {[]words.SlotView{joins, {}}, []perdure.Clock{8, 0}, 8, false},
		"others that join say nothing":   {[]words.SlotView{joins, joins}, []perdure.Clock{8, 9}, 0, true},
		"but for one that has worked so": {[]words.SlotView{joins, joins}, []perdure.Clock{8, 10}, 0, false},
	} {
		if got := comesEarly(c.slots, 0, c.from, func(i int) perdure.Clock { return c.done[i] }); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestSomeoneWorks compares with a look at every clock.
func TestSomeoneWorks(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		spans := make([]words.Span, rng.IntN(5))
		for i := range spans {
			spans[i].From = perdure.Clock(rng.IntN(8))
			if rng.IntN(3) > 0 {
				spans[i].Until = max(1, spans[i].From+perdure.Clock(rng.IntN(5)))
			}
		}
		at, want := perdure.Clock(rng.IntN(8)), true
		for c := at; c < 20; c++ {
			want = want && slices.ContainsFunc(spans, func(s words.Span) bool { return s.Has(c) })
		}
		if err := someoneWorks(spans, at); (err == nil) != want {
			t.Fatalf("%+v from clock %d on: %v", spans, at, err)
		}
	}
}

// TestLeast: who has done all his clocks is waited for no more.
func TestLeast(t *testing.T) {
	slots := []words.SlotView{{}, {Span: words.Span{Until: 10}}, {Span: words.Span{From: 5, Until: 40}}}
	for _, c := range []struct {
		counts []perdure.Clock
		want   perdure.Clock
	}{
		{[]perdure.Clock{30, 10, 35}, 30},
		{[]perdure.Clock{30, 9, 35}, 9},
		{[]perdure.Clock{30, 10, 20}, 20},
		{[]perdure.Clock{50, 10, 40}, 50},
	} {
		if got := leastCount(slots, c.counts); got != c.want {
			t.Errorf("of %v the least is %d, want %d", c.counts, got, c.want)
		}
	}
	if got := leastCount(slots[1:], []perdure.Clock{10, 40}); got != 40 {
		t.Errorf("of those that all are done the least is %d", got)
	}
}

// Who takes part in a job that goes on at clock 5 with another number of workers.
func TestChanged(t *testing.T) {
	all, gone := words.Span{}, words.Span{Until: 3}
	for name, c := range map[string]struct {
		saved   []words.Span
		workers int
		want    []words.Span
		refusal string
	}{
		"as many":           {[]words.Span{all, all}, 2, []words.Span{all, all}, ""},
		"more":              {[]words.Span{all}, 3, []words.Span{all, {From: 5}, {From: 5}}, ""},
		"fewer":             {[]words.Span{all, all}, 1, []words.Span{all, {Until: 5}}, ""},
		"none of who left":  {[]words.Span{gone, all}, 2, []words.Span{gone, all, {From: 5}}, ""},
		"who begins there":  {[]words.Span{all, {From: 5}}, 2, []words.Span{all, {From: 5}}, ""},
		"not who would":     {[]words.Span{all, {From: 5}}, 1, []words.Span{all, {From: 5, Until: 5}}, ""},
		"plans are dropped": {[]words.Span{{Until: 9}, {From: 8}}, 1, []words.Span{all, {From: 8, Until: 8}}, ""},
		"nobody":            {[]words.Span{all}, 0, nil, "--workers 0; choose 1 to 4096"},
		"too many":          {[]words.Span{all}, 4097, nil, "--workers 4097; choose 1 to 4096"},
		"too many by slots": {[]words.Span{gone}, 4096, nil, "has had 1 slots, and gets 4096 more"},
		"who leaves there": {
			[]words.Span{all, {From: 2, Until: 5}},
			2,
			[]words.Span{all, {From: 2, Until: 5}, {From: 5}},
			"",
		},
	} {
		before := slices.Clone(c.saved)
		got, err := Changed(c.saved, c.workers, 5)
		if (err == nil) != (c.refusal == "") || err != nil && !strings.Contains(err.Error(), c.refusal) {
			t.Errorf("%s: %v, want %q", name, err, c.refusal)
		}
		if !slices.Equal(got, c.want) || !slices.Equal(c.saved, before) {
			t.Errorf("%s: %v, want %v, of %v", name, got, c.want, c.saved)
		}
		works := 0
		for _, s := range resumedSlots(got, 5) {
			if !s.Left {
				works++
			}
		}
		if err == nil && works != c.workers {
			t.Errorf("%s: %d go on, want %d", name, works, c.workers)
		}
	}
}

package membership

import (
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/core/words"
)

// A slot that joins at a clock is early until somebody has come to the clock before it: a slot
// that works already, one that has left, or the cut that the job began with. Who has not done
// a clock of its own may be early itself, and shows nothing.
func TestIsEarly(t *testing.T) {
	from := func(c perdure.Clock) words.SlotView { return words.SlotView{Span: words.Span{From: c}} }
	left := func(until perdure.Clock) words.SlotView {
		return words.SlotView{Span: words.Span{Until: until}, Left: true}
	}
	started := from(0)
	started.Start = 9
	for name, c := range map[string]struct {
		from  perdure.Clock // of the slot that is asked of
		own   perdure.Clock // the last clock that it has told
		other words.SlotView
		last  perdure.Clock // of the other one
		cut   perdure.Clock
		want  bool
	}{
		"there from the beginning":     {from: 0, other: from(0)},
		"others are far behind":        {from: 10, other: from(0), last: 5, want: true},
		"at the clock before the last": {from: 10, other: from(0), last: 8, want: true},
		"at the clock before":          {from: 10, other: from(0), last: 9},
		"it goes on from there":        {from: 10, other: started},
		"the job began there":          {from: 10, other: from(0), cut: 9},
		"it began a clock before":      {from: 10, other: from(0), cut: 8, want: true},
		"one had come so far":          {from: 10, other: left(9)},
		"one had nearly":               {from: 10, other: left(8), want: true},
		"one had come with its clocks": {from: 10, other: left(3), last: 30, want: true},
		"another joins there, too":     {from: 10, other: from(10), last: 10, want: true},
		"and has done a clock":         {from: 10, other: from(10), last: 11},
		"another joins later":          {from: 10, other: from(12), last: 12, want: true},
		"and has done a clock there":   {from: 10, other: from(12), last: 13},
		"it has told its own first":    {from: 10, own: 10, other: from(0), want: true},
		"it has done one":              {from: 10, own: 11, other: from(0)},
	} {
		f := &Facts{View: words.View{Cut: c.cut, Slots: []words.SlotView{from(c.from), c.other}}}
		j := &job{facts: f, slots: []observed{{lastClock: c.own}, {lastClock: c.last}}}
		if got := j.isEarly(0); got != c.want {
			t.Errorf("%s: early %v, want %v", name, got, c.want)
		}
	}
}

// An early slot is not settled, though nothing else stands against it: it waits until the
// others have come so far.
func TestEarlySlotWaits(t *testing.T) {
	job := perdure.JobSpec{
		Slots: 2, Servers: 1, Shards: 1, Consistency: perdure.Consistency{Kind: perdure.ASP},
		Recovery: perdure.Recovery{Kind: perdure.RecoverNone},
	}
	c := New(Begin(job, 1, 0, nil), 15, weaken.Set{})
	c.facts.View.Slots[1] = words.SlotView{Span: words.Span{From: 10}, Incarnation: 1, Decided: true}
	for last, early := range map[perdure.Clock]bool{8: true, 9: false} {
		c.job.slots[0].lastClock = last
		c.fates.settle(1)
		if got := slices.Contains(c.agenda.Early.All(), 1); got != early || c.facts.View.Slots[1].Settled {
			t.Errorf("the others at clock %d: it waits for them: %v, want %v", last, got, early)
		}
	}
}

package membership

import (
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
)

// TestIsEarly checks that a slot that joins at a clock is early until the clock before it has been reached: by a
// working slot, by one that has left, or by the job's first cut. A slot that has not done a clock of its own may be
// early itself and proves nothing.
func TestIsEarly(t *testing.T) {
	from := func(c perdure.Clock) protocol.SlotView {
		return protocol.SlotView{Interval: protocol.Interval{From: c}}
	}
	left := func(until perdure.Clock) protocol.SlotView {
		return protocol.SlotView{Interval: protocol.Interval{Until: until}, Left: true}
	}
	started := from(0)
	started.Start = 9
	for name, c := range map[string]struct {
		from  perdure.Clock // of the slot in question
		own   perdure.Clock // the last clock that it has reported
		other protocol.SlotView
		last  perdure.Clock // of the other one
		cut   perdure.Clock
		want  bool
	}{
		"participates from the beginning":       {from: 0, other: from(0)},
		"others are far behind":                 {from: 10, other: from(0), last: 5, want: true},
		"at the clock before the last":          {from: 10, other: from(0), last: 8, want: true},
		"has reached the clock before":          {from: 10, other: from(0), last: 9},
		"it continues from there":               {from: 10, other: started},
		"the job started there":                 {from: 10, other: from(0), cut: 9},
		"it started a clock earlier":            {from: 10, other: from(0), cut: 8, want: true},
		"one that left had reached it":          {from: 10, other: left(9)},
		"one that left had nearly reached it":   {from: 10, other: left(8), want: true},
		"one has left, its clocks do not count": {from: 10, other: left(3), last: 30, want: true},
		"another also joins there":              {from: 10, other: from(10), last: 10, want: true},
		"and has done a clock":                  {from: 10, other: from(10), last: 11},
		"another joins later":                   {from: 10, other: from(12), last: 12, want: true},
		"and has done a clock there":            {from: 10, other: from(12), last: 13},
		"it has reported its first clock":       {from: 10, own: 10, other: from(0), want: true},
		"it has done a clock":                   {from: 10, own: 11, other: from(0)},
	} {
		f := &JobRecord{View: protocol.View{Cut: c.cut, Slots: []protocol.SlotView{from(c.from), c.other}}}
		j := &jobState{record: f, slots: []observed{{lastClock: c.own}, {lastClock: c.last}}}
		if got := j.isEarly(0); got != c.want {
			t.Errorf("%s: early %v, want %v", name, got, c.want)
		}
	}
}

// TestEarlySlotWaits checks that an early slot is not settled, although all other conditions hold, until the others
// have advanced far enough.
func TestEarlySlotWaits(t *testing.T) {
	job := perdure.JobSpec{
		Slots: 2, Servers: 1, Shards: 1, Consistency: perdure.Consistency{Kind: perdure.ASP},
		Recovery: perdure.Recovery{Kind: perdure.RecoverNone},
	}
	c := New(NewJobRecord(job, 1, 0, nil), 15, mutation.Set{})
	c.record.View.Slots[1] = protocol.SlotView{Interval: protocol.Interval{From: 10}, Incarnation: 1, Decided: true}
	for last, early := range map[perdure.Clock]bool{8: true, 9: false} {
		c.job.slots[0].lastClock = last
		c.slotRecovery.settle(1)
		if got := slices.Contains(c.queue.Early.All(), 1); got != early || c.record.View.Slots[1].Settled {
			t.Errorf("the others at clock %d: it waits for them: %v, want %v", last, got, early)
		}
	}
}

package membership

import (
	"errors"
	"math"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
)

// TestScaleBounds checks that a change of an impossible size or at an impossible clock is rejected before any work is
// done for it, and changes nothing.
func TestScaleBounds(t *testing.T) {
	f := NewJobRecord(perdure.JobSpec{
		Slots: 2, Servers: 1, Shards: 1,
		Consistency: perdure.Consistency{Kind: perdure.BSP}, Recovery: perdure.Recovery{Kind: perdure.RecoverNone},
	}, 1, 0, nil)
	for _, workers := range []int{math.MinInt, -1, 0, perdure.MaxSlots + 1, 100_000, math.MaxInt32, math.MaxInt} {
		if ch, err := f.Scaled(workers, 0); !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("%d workers: %+v, %v", workers, ch, err)
		}
	}
	all := func(n int) (slots []perdure.Slot) {
		for i := range n {
			slots = append(slots, perdure.Slot(i))
		}
		return slots
	}
	for what, ch := range map[string]Change{
		"too many":                   {Add: perdure.MaxSlots - 1},
		"very many":                  {Add: math.MaxInt},
		"negative":                   {Add: -1, Leave: all(1)},
		"all leave":                  {Leave: all(2)},
		"more than exist":            {Leave: all(3)},
		"many leave":                 {Leave: all(perdure.MaxSlots + 1)},
		"one twice":                  {Leave: []perdure.Slot{0, 0}},
		"a slot that does not exist": {Leave: []perdure.Slot{math.MinInt32}},
		"the latest clock":           {Add: 1, At: math.MaxInt64},
		"the earliest clock":         {Add: 1, At: math.MinInt64},
	} {
		c := New(f.Clone(), 3, mutation.Set{})
		c.Ready()
		if err := c.Scale(ch); !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("%s: %v", what, err)
		}
		if c.Record().Change != nil || len(c.Record().View.Slots) != 2 || c.Ready().Record != nil {
			t.Errorf("%s: something has changed", what)
		}
	}
	c := New(f.Clone(), 3, mutation.Set{})
	if err := c.Scale(Change{Add: perdure.MaxSlots - 2}); err != nil {
		t.Errorf("as many as allowed: %v", err)
	}
}

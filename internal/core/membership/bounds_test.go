package membership

import (
	"errors"
	"math"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/weaken"
)

// TestScaleBounds: a change of a size or at a clock that cannot be is refused before any
// work is done with it, and changes nothing.
func TestScaleBounds(t *testing.T) {
	f := Begin(perdure.JobSpec{
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
		"too many":             {Add: perdure.MaxSlots - 1},
		"very many":            {Add: math.MaxInt},
		"less than none":       {Add: -1, Leave: all(1)},
		"all leave":            {Leave: all(2)},
		"more than there are":  {Leave: all(3)},
		"many leave":           {Leave: all(perdure.MaxSlots + 1)},
		"one twice":            {Leave: []perdure.Slot{0, 0}},
		"a slot that is not":   {Leave: []perdure.Slot{math.MinInt32}},
		"the end of all days":  {Add: 1, At: math.MaxInt64},
		"before the beginning": {Add: 1, At: math.MinInt64},
	} {
		c := New(f.Clone(), 3, weaken.Set{})
		c.Ready()
		if err := c.Scale(ch); !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("%s: %v", what, err)
		}
		if c.Facts().Change != nil || len(c.Facts().View.Slots) != 2 || c.Ready().Facts != nil {
			t.Errorf("%s: something has changed", what)
		}
	}
	c := New(f.Clone(), 3, weaken.Set{})
	if err := c.Scale(Change{Add: perdure.MaxSlots - 2}); err != nil {
		t.Errorf("as many as there may be: %v", err)
	}
}

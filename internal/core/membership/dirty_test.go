package membership

import (
	"maps"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// TestTouch checks that touching something marks its shard, and the slots that wait for that shard's report.
func TestTouch(t *testing.T) {
	a := newDirtySet(3)
	a.NextShards()
	a.Fencing[1].Add(7)
	a.TouchShard(1)
	if got := a.NextShards(); !slices.Equal(got, []int{1}) {
		t.Errorf("shards %v are due, want 1", got)
	}
	if got := a.NextSlots(); !slices.Equal(got, []int{7}) {
		t.Errorf("slots %v are due, want 7, which waits for shard 1", got)
	}
	if !a.Open.Has(1) || a.NextShards() != nil && len(a.NextShards()) > 0 || len(a.NextSlots()) > 0 {
		t.Error("taken items are due again, or shard 1 is settled")
	}
	a.TouchServer(4, maps.Keys(map[int]struct{}{2: {}, 0: {}}))
	if got := a.NextShards(); !slices.Equal(got, []int{0, 2}) || !a.Unchecked.Has(4) || !a.Unbalanced {
		t.Errorf("shards %v are due after a report of server 4, want those it holds", got)
	}
	a.Changed(2, &protocol.ShardView{Lost: true, Restored: true})
	if !a.AwaitingBase.Has(2) || !a.Restored.Has(2) {
		t.Error("a lost shard needs no base, or a restored one is complete")
	}
	a.Changed(2, &protocol.ShardView{Lost: true, Base: []perdure.Clock{}})
	if a.AwaitingBase.Has(2) || a.Restored.Has(2) {
		t.Error("a shard whose base is known still waits for it")
	}
}

// TestSlots checks which slots wait for something, according to their views.
func TestSlots(t *testing.T) {
	for _, c := range []struct {
		sl            protocol.SlotView
		woken, ending bool
	}{
		{protocol.SlotView{}, false, false},
		{protocol.SlotView{Incarnation: 1}, true, false},
		{protocol.SlotView{Decided: true}, true, false},
		{protocol.SlotView{Incarnation: 1, Decided: true, Settled: true}, false, false},
		{protocol.SlotView{Incarnation: 1, Settled: true, Interval: protocol.Interval{Until: 5}}, false, true},
		{
			protocol.SlotView{Incarnation: 1, Settled: true, Left: true, Interval: protocol.Interval{Until: 5}},
			false, false,
		},
	} {
		a := newDirtySet(1)
		a.Early.Add(3)
		a.ChangedSlot(0, &c.sl)
		want := []int{3} // it waits for the others to reach its clock
		if c.woken {
			want = []int{0, 3}
		}
		if got := a.NextSlots(); !slices.Equal(got, want) || a.Ending.Has(0) != c.ending {
			t.Errorf("%+v: slots %v are due, ending %v; want %v, %v", c.sl, got, a.Ending.Has(0), want, c.ending)
		}
	}
}

// TestHears checks whether a report matters to a chain, to the slots that wait for the shard, or not at all.
func TestHears(t *testing.T) {
	word := func(change func(st *protocol.ShardDelta)) *protocol.ShardDelta {
		d := &protocol.ShardDelta{}
		d.Epoch, d.Ready, d.MinClock = 2, true, 5
		if change != nil {
			change(d)
		}
		return d
	}
	before := &protocol.ObservedShard{}
	before.Epoch, before.Ready, before.MinClock = 2, true, 5
	for name, c := range map[string]struct {
		shard        perdure.ShardID
		before       *protocol.ObservedShard
		now          *protocol.ShardDelta
		news, chains bool
	}{
		"the first":           {0, nil, word(nil), true, true},
		"the last":            {0, before, nil, true, true},
		"of an unknown shard": {9, nil, word(nil), true, false},
		"the same":            {0, before, word(nil), false, false},
		"another epoch":       {0, before, word(func(d *protocol.ShardDelta) { d.Epoch++ }), true, true},
		"it no longer serves": {0, before, word(func(d *protocol.ShardDelta) { d.Ready = false }), true, true},
		"a fence": {
			0, before, word(func(d *protocol.ShardDelta) { d.Fences = []protocol.Fence{{}} }),
			true, false,
		},
		"a clock":              {0, before, word(func(d *protocol.ShardDelta) { d.MinClock = 6 }), false, false},
		"the job's last clock": {0, before, word(func(d *protocol.ShardDelta) { d.MinClock = 9 }), true, false},
		"it has yielded":       {0, before, word(func(d *protocol.ShardDelta) { d.Yielded = true }), true, true},
		"a cut that it missed": {0, before, word(func(d *protocol.ShardDelta) { d.Cuts.Missed = true }), true, false},
		"a cut that it knows":  {0, before, word(func(d *protocol.ShardDelta) { d.Cuts.Named = 8 }), true, false},
	} {
		a := newDirtySet(1)
		a.Fencing[0].Add(4)
		news := a.ShardReported(c.shard, c.before, c.now, 9)
		if due := len(a.NextShards()) > 0; news != c.news || due != c.chains {
			t.Errorf("%s: news %v, shard due %v; want %v, %v", name, news, due, c.news, c.chains)
		}
		if woken := len(a.NextSlots()) > 0; woken != (c.news && c.shard == 0) {
			t.Errorf("%s: the slot that waits for the shard is woken: %v", name, woken)
		}
	}
}

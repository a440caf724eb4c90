package membership

import (
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// TestChain checks which members stay in a chain, depending on their states.
func TestChain(t *testing.T) {
	const alive, back, silent, dead = memberAlive, memberBack, memberSilent, memberDead
	for _, c := range []struct {
		chain    []memberState
		stay     []int
		orphaned bool
	}{
		{[]memberState{alive, alive}, []int{0, 1}, false},
		{[]memberState{dead, alive}, []int{1}, false},
		{[]memberState{silent, alive}, []int{1}, false},
		{[]memberState{silent, back}, []int{0, 1}, false}, // the one that is back may be dead
		{[]memberState{silent, back, alive}, []int{1, 2}, false},
		{[]memberState{dead, back}, []int{1}, false},
		{[]memberState{silent, silent}, []int{0, 1}, false}, // one of them may have the rows
		{[]memberState{dead, silent}, []int{1}, false},
		{[]memberState{dead, dead}, nil, true},
		{[]memberState{dead}, nil, true},
	} {
		sure, orphaned := judgeChain(c.chain)
		var stay []int
		for i, m := range c.chain {
			if m.Stays(sure) {
				stay = append(stay, i)
			}
		}
		if orphaned != c.orphaned || !slices.Equal(stay, c.stay) {
			t.Errorf("%v: %v stay, orphaned %v; want %v, %v", c.chain, stay, orphaned, c.stay, c.orphaned)
		}
	}
}

// TestStart checks where a dead slot continues, depending on each shard's counts: staged, ticked, applied.
func TestStart(t *testing.T) {
	type counts [3]perdure.Clock
	one := []perdure.ShardID{1}
	for name, c := range map[string]struct {
		twoStep bool
		shards  []counts
		start   perdure.Clock
		torn    bool
		least   perdure.Clock
		short   []perdure.ShardID
	}{
		"all have the same":            {true, []counts{{5, 5, 5}, {5, 5, 5}}, 5, false, 0, nil},
		"staged on all, no tick":       {true, []counts{{6, 5, 5}, {6, 5, 5}}, 5, false, 0, nil},
		"staged on some, no tick":      {true, []counts{{6, 5, 5}, {5, 5, 5}}, 5, false, 0, nil},
		"one tick was seen":            {true, []counts{{6, 6, 5}, {6, 5, 5}}, 6, false, 0, nil},
		"one tick, staging was lost":   {true, []counts{{6, 6, 5}, {5, 5, 5}}, 6, true, 0, nil},
		"applied beyond a tick":        {true, []counts{{6, 6, 6}, {6, 5, 5}}, 6, false, 0, nil},
		"one step: the lowest":         {false, []counts{{0, 0, 7}, {0, 0, 4}, {0, 0, 6}}, 4, false, 0, nil},
		"one step: nothing is torn":    {false, []counts{{0, 0, 3}}, 3, false, 0, nil},
		"one that knows less":          {false, []counts{{0, 0, 7}, {0, 0, 2}, {0, 0, 6}}, 6, false, 0, one},
		"all know less":                {false, []counts{{0, 0, 7}, {0, 0, 2}}, 2, false, 0, []perdure.ShardID{1, 0}},
		"never below an earlier start": {false, []counts{{0, 0, 7}, {0, 0, 2}}, 5, false, 5, []perdure.ShardID{1, 0}},
		"two-step: never below either": {true, []counts{{3, 3, 3}, {3, 3, 3}}, 5, true, 5, nil},
	} {
		fences := make([]protocol.Fence, len(c.shards))
		for i, n := range c.shards {
			fences[i].Counts = protocol.Counts{Staged: n[0], Ticked: n[1], Applied: n[2]}
		}
		if start, torn := DecideStart(fences, c.twoStep, c.least, c.short); start != c.start || torn != c.torn {
			t.Errorf("%s: from clock %d, torn %v; want %d, %v", name, start, torn, c.start, c.torn)
		}
	}
}

// TestBase checks what a lost shard starts with.
func TestBase(t *testing.T) {
	slots := []protocol.SlotView{
		{},
		{},
		{Interval: protocol.Interval{From: 6}},
		{Interval: protocol.Interval{Until: 4}},
	}
	for name, c := range map[string]struct {
		acked, has []perdure.Clock
		cut        perdure.Clock
		twoStep    bool
		want       []perdure.Clock
		open       []perdure.Clock
	}{
		"the acknowledged counts": {[]perdure.Clock{3, 5, 6, 4}, nil, 0, false, []perdure.Clock{3, 5, 6, 4}, nil},
		"or the counts in the rows": {
			[]perdure.Clock{3, 5, 6, 4},
			[]perdure.Clock{4, 4, 7, 4},
			0, false,
			[]perdure.Clock{4, 5, 7, 4},
			nil,
		},
		"two-step: all have the same":  {[]perdure.Clock{8, 7, 6, 4}, nil, 0, true, []perdure.Clock{8, 8, 8, 4}, nil},
		"one that has just joined":     {[]perdure.Clock{3, 3, 6, 3}, nil, 0, true, []perdure.Clock{3, 3, 6, 3}, nil},
		"no progress since a rollback": {[]perdure.Clock{0, 0, 6, 0}, nil, 2, true, []perdure.Clock{2, 2, 6, 2}, nil},
		"two-step: one had ticked clock 7 before it died, and another is still at clock 7": {
			[]perdure.Clock{8, 7, 6, 4},
			nil, 0, true,
			[]perdure.Clock{8, 7, 7, 4},
			[]perdure.Clock{8, 7, 8, 4},
		},
		"two-step: one that is known to be at an earlier clock has a newer acknowledgement": {
			[]perdure.Clock{8, 8, 6, 4},
			nil, 0, true,
			[]perdure.Clock{8, 8, 8, 4},
			[]perdure.Clock{8, 7, 8, -1},
		},
		"two-step: one had ticked its last clock, the others have not": {
			[]perdure.Clock{3, 3, 6, 4},
			nil, 0, true,
			[]perdure.Clock{3, 3, 6, 4},
			[]perdure.Clock{3, 4, 6, 4},
		},
	} {
		base := slices.Clone(c.acked)
		if clockBase(base, c.has, slots, c.open, c.cut, nil, c.twoStep); !slices.Equal(base, c.want) {
			t.Errorf("%s: %v, want %v", name, base, c.want)
		}
	}
}

// TestNewestCut checks that the newest cut written by every shard is found.
func TestNewestCut(t *testing.T) {
	for _, c := range []struct {
		written [][]perdure.Clock
		after   perdure.Clock
		want    perdure.Clock
	}{
		{[][]perdure.Clock{{10}, {10}}, 0, 10},
		{[][]perdure.Clock{{10, 20}, {10, 20}}, 0, 20},
		{[][]perdure.Clock{{10, 20}, {10}}, 0, 10},
		{[][]perdure.Clock{{20}, {10}}, 0, -1},
		{[][]perdure.Clock{{10}, {10}}, 10, -1},
		{[][]perdure.Clock{{20, 10}, {10, 20}, {20}}, 10, 20},
		{[][]perdure.Clock{{10}, {}}, 0, -1},
	} {
		written := make([][]protocol.Segment, len(c.written))
		for i, cuts := range c.written {
			for _, cut := range cuts {
				written[i] = append(written[i], protocol.Segment{Cut: cut, Seq: uint64(i)})
			}
		}
		cut, segments := newestCut(written, c.after)
		if cut != c.want || cut >= 0 && len(segments) != len(written) {
			t.Errorf("%+v: cut %d of %+v, want %d", c, cut, segments, c.want)
		}
		for i, g := range segments {
			if g.Cut != cut || g.Seq != uint64(i) {
				t.Errorf("%+v: shard %d has the segment %+v", c, i, g)
			}
		}
	}
}

// TestOn checks that the first member of a chain is the head, the others are followers, and a single member has none.
func TestOn(t *testing.T) {
	chain := []protocol.Holder{{Server: 3}, {Server: 1}, {Server: 2}}
	long := onChain(protocol.ShardView{Epoch: 7}, chain)
	if long.Epoch != 7 || !slices.Equal(long.Members(), chain) {
		t.Errorf("%+v", long)
	}
	if sv := onChain(long, chain[1:2]); sv.Server != 1 || sv.Followers != nil || long.Server != 3 {
		t.Errorf("one alone: %+v", sv)
	}
	if long.Followers[0].Server = 5; chain[1].Server != 1 {
		t.Error("the shard's view shares the chain's memory")
	}
}

package membership

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// TestByCounting compares the ledger with an explicit set of lost updates, for random gaps, restored shards and
// checkpoints.
func TestByCounting(t *testing.T) {
	type update struct {
		shard perdure.ShardID
		slot  perdure.Slot
		clock perdure.Clock
	}
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		l, lost, cut := lostUpdates{ShardLost: make([]int64, 3)}, map[update]bool{}, perdure.Clock(0)
		for range 12 {
			shard := rng.IntN(3)
			switch rng.IntN(5) {
			case 0:
				l.RevertShard(shard)
				for u := range lost {
					if int(u.shard) == shard && u.clock >= cut {
						delete(lost, u)
					}
				}
			case 1:
				cut += perdure.Clock(rng.IntN(4))
				l.DropCovered(func(perdure.Slot) perdure.Clock { return cut })
			default:
				from := cut + perdure.Clock(rng.IntN(6))
				g := gap{perdure.ShardID(shard), perdure.Slot(rng.IntN(2)), from, from + perdure.Clock(rng.IntN(5)-1)}
				want := int64(0)
				for c := g.From; c < g.Until; c++ {
					if u := (update{g.Shard, g.Slot, c}); !lost[u] {
						want, lost[u] = want+1, true
					}
				}
				var loss lossReport
				if l.AddGap(g, &loss); loss.Updates != want || (loss.Shards == 1) != (want > 0) ||
					loss.State != (want > 0 && int(g.Slot) == shard) {
					t.Fatalf("seed %d: %+v adds %+v, want %d", seed, g, loss, want)
				}
			}
			by := make([]int64, 3)
			for u := range lost {
				by[u.shard]++
			}
			if l.UpdatesLost != int64(len(lost)) || !slices.Equal(l.ShardLost, by) {
				t.Fatalf("seed %d: %+v; want %v of %d", seed, l, by, len(lost))
			}
			for _, g := range l.Gaps {
				if g.From < cut || g.From >= g.Until {
					t.Fatalf("seed %d: gap %+v beyond cut %d", seed, g, cut)
				}
			}
		}
	}
}

// TestClone checks that a copy does not change with the original.
func TestClone(t *testing.T) {
	l := lostUpdates{ShardLost: make([]int64, 1)}
	l.AddGap(gap{Until: 3}, &lossReport{})
	before := fmt.Sprint(l)
	c := l.Clone()
	l.AddGap(gap{From: 2, Until: 9}, &lossReport{})
	l.DropCovered(func(perdure.Slot) perdure.Clock { return 1 })
	l.RevertShard(0)
	if fmt.Sprint(c) != before {
		t.Errorf("%v, was %s", c, before)
	}
}

// TestRestore checks which updates are lost when a shard is restored, and when a slot's start is decided.
func TestRestore(t *testing.T) {
	l := lostUpdates{ShardLost: make([]int64, 2)}
	v := protocol.View{Durable: 5, Slots: []protocol.SlotView{
		{Incarnation: 2, Decided: true, Start: 8}, // [5, 8)
		{Incarnation: 3}, // not decided
		{},               // never had a process
		{Incarnation: 1, Decided: true, Start: 9, Interval: protocol.Interval{From: 9}}, // has just joined
		// participated from 6 to 7 before
		{Incarnation: 2, Decided: true, Start: 12, Interval: protocol.Interval{From: 12}},
	}}
	slots := make([]slotGaps, len(v.Slots))
	slots[4].Former = []protocol.Interval{{Until: 3}, {From: 6, Until: 7}}
	var n []int64
	for i := range slots {
		n = append(n, l.Restore(1, i, &slots[i], &v).Updates)
	}
	if want := []int64{3, 0, 0, 0, 1}; !slices.Equal(n, want) || l.ShardLost[1] != 4 || l.ShardLost[0] != 0 {
		t.Errorf("%v and %+v, want %v", n, l, want)
	}
	if !slices.Equal(slots[1].UnknownShards, []perdure.ShardID{1}) || slots[0].UnknownShards != nil {
		t.Errorf("%+v", slots)
	}
	fences := []protocol.Fence{{Counts: protocol.Counts{Staged: 11}}, {Counts: protocol.Counts{Staged: 5}}}
	loss, says := l.CountDecided(1, 10, fences), "lost 5 updates on 1 shards (no copy exists); training continues "+
		"without them; the slot's saved state is that of the checkpoint"
	if want := (lossReport{5, 1, true}); loss != want || loss.String() != says {
		t.Errorf("%+v: %s", loss, loss)
	}
	if l.CountTorn(7, fences); l.UpdatesLost != 11 || l.ShardLost[1] != 11 || len(l.Gaps) != 3 {
		t.Errorf("%+v", l)
	}
	slots[1].RecordStart(10)
	if slots[1].UnknownShards != nil || slots[1].LatestStart != 10 {
		t.Errorf("%+v", slots[1])
	}
}

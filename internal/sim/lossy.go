package sim

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/perdure/perdure"
)

// Lost is the number of updates that the registry counts as lost, by shard. -1 means that the shard itself is lost and
// must not be checked.
type Lost []int64

// finalLossy checks the table after a job whose rows may be lost.
func (h *History) finalLossy(tables map[string]Contents, lost Lost) error {
	rows := tables[h.spec.Name]
	first := make([][]uint64, h.job.Shards) // by shard: clocks by slot in its first row
	all := make([]map[int][]uint64, h.job.Shards)
	for row, id := range h.ids {
		shard := h.shard(row)
		if lost[shard] < 0 {
			continue
		}
		sets := make([]uint64, h.slots)
		missing := int64(0)
		for p := range h.slots {
			what := fmt.Sprintf("at the end row %d of shard %d: slot %d", row, shard, p)
			v := rows[id]
			if len(v) != h.spec.Dim {
				v = make([]float32, h.spec.Dim) // a sparse row is not stored before its first update
			}
			var err error
			if sets[p], err = clocksIn(what, v[p*columns:]); err != nil {
				return err
			}
			if late := sets[p] &^ h.clockSet(p, below(h.job.Clocks)); late != 0 {
				return violated("%s has clocks outside its membership: %b", what, late)
			}
			if err := h.checkLost(what, row, p, sets[p]); err != nil {
				return err
			}
			missing += int64(h.count(p, h.job.Clocks)) - int64(bits.OnesCount64(sets[p]))
		}
		if h.aux.lineage != nil {
			if all[shard] == nil {
				all[shard] = map[int][]uint64{}
			}
			all[shard][row] = sets
			continue
		}
		if first[shard] == nil {
			first[shard] = sets
		} else if !slices.Equal(first[shard], sets) {
			return violated("at the end row %d of shard %d has the clocks %b by slot, but another row of the shard %b",
				row, shard, sets, first[shard])
		}
		if missing != lost[shard] {
			return violated("at the end row %d of shard %d lacks %d updates (it has the clocks %b by slot), "+
				"but the registry counts %d as lost", row, shard, missing, sets, lost[shard])
		}
	}
	for shard := range perdure.ShardID(len(all)) {
		if all[shard] == nil {
			continue
		}
		if err := h.aux.lineage.final(shard, all[shard], h.job.Clocks, lost[shard]); err != nil {
			return err
		}
	}
	if h.aux.evicting == nil {
		return nil
	}
	if h.aux.lineage != nil {
		return h.aux.evicting.final(tables[h.aux.evicting.Spec.Name], h.aux.lineage.contains)
	}
	return h.aux.evicting.final(tables[h.aux.evicting.Spec.Name], func(_, p int, shard perdure.ShardID) (uint64, bool) {
		if first[shard] == nil {
			return 0, false
		}
		return first[shard][p], true
	})
}

// below returns the set of the clocks below n.
func below(n perdure.Clock) uint64 { return 1<<max(0, n) - 1 }

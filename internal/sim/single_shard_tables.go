package sim

import (
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
)

// UseSingleShardTables makes the tables whole, each on one shard, and the History's table dense. It must be called
// before the job begins.
func (h *History) UseSingleShardTables() {
	h.spec.Sparse, h.spec.Rows, h.spec.Whole = false, int64(h.rows), true
	h.spec.Shard = placement.PlaceTable(&h.spec, nil, h.job.Shards, h.job.Servers)
	h.ids = rowIDs(h.spec, h.job.Seed, h.rows)
	if h.aux.reference != nil && !h.aux.reference.Spec.Sparse {
		h.aux.reference.Spec.Whole = true
	}
}

// checkPlacement checks that the History's table is recorded on the shard where it belongs.
func (h *History) checkPlacement(v *protocol.View) {
	for _, t := range v.Tables {
		if t.Name == h.spec.Name && t.Shard != h.spec.Shard && h.misplaced == nil {
			h.misplaced = violated("table %s is recorded on shard %d, but belongs on shard %d", t.Name, t.Shard,
				h.spec.Shard)
		}
	}
}

package membership

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/slotstate"
)

// LiveStates returns which slot states in the store may still be needed, according to the job record and to the reports
// of the shards' holders. The states in published checkpoints come in addition. A shard contributes nothing about its
// slots unless all its holders have reported their states in the current epoch.
func (c *Core) LiveStates() *slotstate.LiveSet {
	f, j := c.record, c.job
	h := slotstate.NewLiveSet(f.View.Generation)
	h.Retain(j.publishedStates...)
	homes := make([][]perdure.Slot, len(f.View.Shards))
	for i := range f.View.Slots {
		slot := perdure.Slot(i)
		home := placement.HomeShard(slot, len(homes))
		homes[home] = append(homes[home], slot)
	}
	for i := range f.View.Shards {
		for _, file := range f.Running.StatesOf(i) {
			h.Retain(file.File)
		}
		sv := &f.View.Shards[i]
		if sv.Server < 0 {
			continue
		}
		var newest [][]string
		// A server that joins a chain which acknowledges early may have copied less than any member has, and may become
		// the head before it has the rest, so its states are not known yet.
		all := sv.Joining == nil || !j.traits.EarlyAck
		for _, m := range sv.Members() {
			st := j.statusOf(i, &m)
			if all = all && st != nil && st.Ready; !all {
				break
			}
			newest = append(newest, st.States)
			h.Retain(st.NeededStates()...)
		}
		if all {
			h.AddReports(homes[i], newest)
		}
	}
	if !j.traits.EarlyAck {
		h.Supersede(j.formerStates...)
	}
	return h
}

package membership

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/states"
)

// HeldStates says which of what slots have saved, where it lies in the store, somebody may still need, as far as
// the holders of shards have said and it is recorded. What published checkpoints name comes on top. A shard of
// which not all holders have said in its present life what they have tells nothing of its slots.
func (c *Core) HeldStates() *states.Held {
	f, j := c.facts, c.job
	h := states.NewHeld(f.View.Generation)
	h.Hold(j.publishes...)
	homes := make([][]perdure.Slot, len(f.View.Shards))
	for i := range f.View.Slots {
		slot := perdure.Slot(i)
		home := placement.Home(slot, len(homes))
		homes[home] = append(homes[home], slot)
	}
	for i := range f.View.Shards {
		for _, file := range f.Running.StatesOf(i) {
			h.Hold(file.File)
		}
		sv := &f.View.Shards[i]
		if sv.Server < 0 {
			continue
		}
		var newest [][]string
		// Who joins a chain that acknowledges early may have copied less than any member has, and be the head before
		// it has the rest: what it has nobody knows yet.
		all := sv.Joining == nil || !j.traits.Eager
		for _, m := range sv.Members() {
			st := j.statusOf(i, &m)
			if all = all && st != nil && st.Ready; !all {
				break
			}
			newest = append(newest, st.States)
			h.Hold(st.Needs()...)
		}
		if all {
			h.Heard(homes[i], newest)
		}
	}
	return h
}

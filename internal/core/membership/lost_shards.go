package membership

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
)

// placeShards assigns the shards once every server has joined for the first time.
func (ch *chains) placeShards() {
	v := &ch.record.View
	if ch.record.Placed() {
		return
	}
	var servers []int
	var zones []string
	for i := range ch.record.Servers {
		p := &ch.record.Servers[i]
		if p.Left {
			continue
		}
		if p.Process == "" {
			return
		}
		servers, zones = append(servers, i), append(zones, p.Zone)
	}
	if len(servers) == 0 {
		return
	}
	for s, chain := range placement.Chains(len(v.Shards), ch.job.traits.Copies, zones) {
		holders := make([]protocol.Holder, len(chain))
		for i, x := range chain {
			holders[i] = ch.record.Holder(servers[x])
		}
		next := protocol.ShardView{Epoch: 1}
		next.Lost, next.Saved = ch.record.Running.StartFiles(s)
		ch.rec.changeShard(s, onChain(next, holders))
	}
	ch.rec.event("placed", "", "%d shards on %d servers", len(v.Shards), len(servers))
}

// reassignLostShards reassigns shards whose rows no live server has: to the processes that replaced their holders,
// otherwise to the remaining servers. It must be called only if no server is missing. It returns the recovery action
// for these shards, which the caller must carry out as far as it concerns the whole job.
func (ch *chains) reassignLostShards() recovery.Action {
	orphans := ch.queue.LostShards.Sorted()
	v := &ch.record.View
	homeless := func(shard int) bool {
		return !slices.ContainsFunc(serversOf(v.Shards[shard].Members()), ch.job.replaced)
	}
	if slices.ContainsFunc(orphans, homeless) && ch.lastResort() < 0 {
		if ch.record.Job.NoReplace {
			ch.rec.fail("no server is left (of %d); start the job again with more servers or without --no-replace",
				len(ch.job.servers))
		}
		return recovery.Action{} // the draining servers have left, and others will join
	}
	action := ch.lossAction(len(orphans))
	switch action.Kind {
	case recovery.Wait:
		return recovery.Action{}
	case recovery.Fail:
		ch.rec.fail("%s", action.Why)
		return recovery.Action{}
	}
	for _, i := range orphans {
		next := onChain(protocol.ShardView{Epoch: v.Shards[i].Epoch + 1}, ch.freshChain(i))
		next.Lost = action.Kind == recovery.Reinitialize || action.Kind == recovery.RestoreRows
		next.Restored = action.Kind == recovery.Restore || action.Kind == recovery.RestorePartial
		if action.Kind == recovery.RestoreRows {
			next.Saved = ch.record.Running.Files[i]
		}
		ch.rec.changeShard(i, next)
		if delete(ch.job.dropped, perdure.ShardID(i)); ch.job.traits.Partial && !ch.job.mutations.Counting {
			ch.countLosses(i)
		}
	}
	switch shards := v.DescribeShards(orphans); action.Kind {
	case recovery.Reinitialize:
		ch.rec.event("lost", "", "%s start again from their initial rows", shards)
	case recovery.RestoreRows:
		ch.rec.event("restored", "", "%s are restored to their last saved rows; no rollback", shards)
	case recovery.Restore, recovery.RestorePartial:
		ch.rec.event("restored", "", "%s are restored from clock %d; workers resend the later updates", shards,
			v.Durable)
	case recovery.Replay:
		ch.rec.event("replay", "", "%s are read from the update log again", shards)
	case recovery.RollBack: // reported by rollBack
	case restoreOnly:
		ch.rec.event("restored", "", "%s are restored from clock %d; no other shard rolls back", shards, v.Cut)
	default:
		ch.rec.fail("internal error: %d shards were lost, unknown recovery action %d", len(orphans), action.Kind)
	}
	return action
}

// countLosses counts the updates that a restored shard lacks permanently.
func (ch *chains) countLosses(shard int) {
	f := ch.record
	f.lostUpdates.RevertShard(shard)
	for i := range f.Slots {
		ch.rec.lost(i, f.lostUpdates.Restore(shard, i, &f.Slots[i].slotGaps, &f.View))
	}
}

// restoreOnly is the effect of a rollback that a negative control has disabled: only the lost shards return to the
// checkpoint.
const restoreOnly recovery.ActionKind = -1

// lossAction returns the recovery action for a number of shards whose rows no live server has.
func (ch *chains) lossAction(shards int) recovery.Action {
	action := ch.job.strategy.OnLostShards(recovery.Loss{
		Shards: shards, UnretainedSlot: ch.job.unretainedSlot(), Durable: ch.record.View.Durable,
		Publishing: ch.job.publishing >= 0,
	})
	if action.Kind == recovery.RollBack && ch.job.mutations.RollBack {
		action.Kind = restoreOnly
	}
	return action
}

// freshChain returns the chain of a shard that restarts: on the servers that held it, where processes have replaced
// them; otherwise on other servers, and on a draining one only if all others are unavailable. No replica has to be
// copied, because all start with the same rows, those of the cut.
func (ch *chains) freshChain(shard int) (chain []protocol.Holder) {
	copies := ch.job.traits.Copies
	for _, server := range serversOf(ch.record.View.Shards[shard].Members()) {
		if ch.job.replaced(server) && len(chain) < copies {
			chain = append(chain, ch.record.Holder(server))
		}
	}
	for len(chain) < copies {
		to := ch.job.replicas.Choose(serversOf(chain), -1)
		if to < 0 {
			break
		}
		chain = append(chain, ch.record.Holder(to))
	}
	if len(chain) == 0 {
		chain = append(chain, ch.record.Holder(ch.lastResort()))
	}
	return chain
}

// lastResort returns a server for a shard whose rows no live server has and whose former servers were not replaced: one
// that may be given replicas, otherwise one that is draining, which stays as long as it is the only one; -1: there is
// none.
func (ch *chains) lastResort() int {
	found := ch.job.replicas.Choose(nil, -1)
	if found >= 0 {
		return found
	}
	for i := range ch.job.servers {
		if ch.job.present(i) && (found < 0 || ch.job.replicas.NumShards(i) < ch.job.replicas.NumShards(found)) {
			found = i
		}
	}
	return found
}

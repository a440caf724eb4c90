package membership

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// holderState judges a holder by the latest observations of its server.
func (j *jobState) holderState(h *protocol.Holder) memberState {
	p, o := &j.record.Servers[h.Server], &j.servers[h.Server]
	switch {
	case h.Incarnation != p.Incarnation, o.gone && !o.deathAssumed:
		return memberDead
	case o.gone && p.AnyIndex && j.traits.Copies == 1:
		return memberDead // no process replaces it, so nothing more will be known
	case o.gone, o.liveness.IsSuspect():
		return memberSilent
	}
	if o.returnedTick > 0 {
		return memberBack
	}
	return memberAlive
}

// alive reports whether a holder is alive, as far as known.
func (j *jobState) alive(h *protocol.Holder) bool { return j.holderState(h) <= memberBack }

// eligible reports whether a server may be given replicas.
func (j *jobState) eligible(server int) bool {
	return j.present(server) && !j.record.Servers[server].Draining
}

// present reports whether a server's process is connected and has not been released.
func (j *jobState) present(server int) bool {
	o := &j.servers[server]
	return o.connected && !j.record.Servers[server].Left && !o.gone && !o.liveness.IsSuspect()
}

// replaced reports whether a process holds the server's index, and can therefore restart the replicas of its
// predecessor.
func (j *jobState) replaced(server int) bool {
	return !j.record.Servers[server].Left && !j.servers[server].gone
}

// isLastHolder reports whether a server is the only one, as far as known, to hold all rows of some shard.
func (j *jobState) isLastHolder(server int) bool {
	return j.isSoleHolder(server, func(h *protocol.Holder) bool { return j.alive(h) })
}

// mayBeLastHolder reports whether an unreachable server may be alive and hold the last rows of some shard. Another
// process that asks for its index must then wait until the server is known to be dead or, if the job can roll back,
// until it is suspected. (After a restart the coordinator may not know yet which other servers have died.)
func (j *jobState) mayBeLastHolder(server int) bool {
	o := &j.servers[server]
	return j.traits.Copies > 1 && !o.gone && (j.irreplaceable() || !o.liveness.IsSuspect()) &&
		j.isSoleHolder(server, func(h *protocol.Holder) bool { return j.servers[h.Server].connected && j.alive(h) })
}

// isSoleHolder reports whether a server holds a shard that has no other good holder.
func (j *jobState) isSoleHolder(server int, good func(h *protocol.Holder) bool) bool {
	for s := range j.replicas.Shards(server) {
		if !slices.ContainsFunc(j.record.View.Shards[s].Members(), func(h protocol.Holder) bool {
			return h.Server != server && good(&h)
		}) {
			return true
		}
	}
	return false
}

// irreplaceable reports whether rows exist only in replicas, so that the job waits for a server that may hold the last
// ones. If the job can roll back to a checkpoint, such a server is given up like any other.
func (j *jobState) irreplaceable() bool { return j.traits.Copies > 1 && !j.traits.SavesCuts() }

// shardStatus returns the latest status of a shard from the head of its chain in the current epoch, or nil if there is
// none.
func (j *jobState) shardStatus(shard int) *protocol.ObservedShard {
	sv := &j.record.View.Shards[shard]
	if sv.Server < 0 {
		return nil
	}
	return j.statusOf(shard, &sv.Holder)
}

// statusOf returns the latest status of a holder's replica in the shard's current epoch, or nil.
func (j *jobState) statusOf(shard int, h *protocol.Holder) *protocol.ObservedShard {
	j.visits.shards++
	o := &j.servers[h.Server]
	if o.server == nil || o.gone || j.record.Servers[h.Server].Incarnation != h.Incarnation {
		return nil
	}
	st := o.server.Shards[perdure.ShardID(shard)]
	if st == nil || st.Epoch != j.record.View.Shards[shard].Epoch || st.Generation != j.record.View.Generation {
		return nil
	}
	return st
}

// ready reports whether a shard's head serves: all members have everything that the head had when the epoch started.
func (j *jobState) ready(shard int) bool {
	st := j.shardStatus(shard)
	return st != nil && st.Ready
}

// resendComplete reports whether a shard has everything that it had before it was restored.
func (j *jobState) resendComplete(shard int) bool {
	if !j.record.View.Shards[shard].Restored {
		return true
	}
	st := j.shardStatus(shard)
	return st != nil && st.ResendComplete
}

// joined reports whether the replica that joins a shard has caught up in the shard's current epoch.
func (j *jobState) joined(shard int, joiner *protocol.Holder) bool {
	st := j.statusOf(shard, joiner)
	return st != nil && st.Joined && st.Since == joiner.Since
}

// fence returns a shard's fence for a slot's newest incarnation, if the shard serves and has fenced the older ones.
func (j *jobState) fence(shard, slot int) (f protocol.Fence, sent bool) {
	st := j.shardStatus(shard)
	if st == nil || !st.Ready {
		return f, false
	}
	f, sent = st.Fence(perdure.Slot(slot))
	return f, sent && f.Incarnation == j.record.View.Slots[slot].Incarnation
}

// missed reports whether the cut that was named last will get no checkpoint: a shard has advanced past it, and the
// process that was writing it is gone.
func (j *jobState) missed() bool {
	v := &j.record.View
	for i := range v.Shards {
		st := j.shardStatus(i)
		if st != nil && st.Ready && st.Cuts.Named >= v.Named && st.Cuts.Missed {
			return true
		}
	}
	return false
}

func (j *jobState) numUpdates() (n int64) {
	for i := range j.record.View.Shards {
		if st := j.shardStatus(i); st != nil {
			n += int64(st.Seq)
		}
	}
	return n
}

// shardsServed reports whether the shards of a server are served again, by any server. After a rollback, all shards
// must be.
func (j *jobState) shardsServed(server int) bool {
	o := &j.servers[server]
	if (o.gone || o.liveness.IsSuspect()) && (j.replicas.NumShards(server) > 0 || !j.record.Placed()) {
		return false
	}
	if !j.traits.ServesIndependently || j.replicas.NumShards(server) == 0 {
		return j.unready.Len() == 0
	}
	for i := range j.replicas.Shards(server) {
		if j.record.View.Shards[i].Server == server && !j.ready(i) {
			return false
		}
	}
	return true
}

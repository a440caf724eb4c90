package membership

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// standing judges a holder by the latest observations of its server.
func (j *job) standing(h *words.Holder) member {
	p, o := &j.facts.Servers[h.Server], &j.servers[h.Server]
	switch {
	case h.Incarnation != p.Incarnation, o.gone && !o.assumed:
		return memberDead
	case o.gone && p.Any && j.traits.Copies == 1:
		return memberDead // no process replaces it, so nothing more will be known
	case o.gone, o.ear.Suspect():
		return memberSilent
	}
	if o.back > 0 {
		return memberBack
	}
	return memberAlive
}

// alive reports whether a holder is alive, as far as known.
func (j *job) alive(h *words.Holder) bool { return j.standing(h) <= memberBack }

// eligible reports whether a server may be given replicas.
func (j *job) eligible(server int) bool {
	return j.present(server) && !j.facts.Servers[server].Draining
}

// present reports whether a server's process is connected and has not been released.
func (j *job) present(server int) bool {
	o := &j.servers[server]
	return o.connected && !j.facts.Servers[server].Left && !o.gone && !o.ear.Suspect()
}

// replaced reports whether a process holds the server's index, and can therefore restart the replicas of its
// predecessor.
func (j *job) replaced(server int) bool {
	return !j.facts.Servers[server].Left && !j.servers[server].gone
}

// last reports whether a server is the only one, as far as known, to hold all rows of some shard.
func (j *job) last(server int) bool {
	return j.alone(server, func(h *words.Holder) bool { return j.alive(h) })
}

// mayBeLast reports whether an unreachable server may be alive and hold the last rows of some shard. Another process
// that asks for its index must then wait until the server is known to be dead or, if the job can roll back, until it is
// suspected. (After a restart the coordinator may not know yet which other servers have died.)
func (j *job) mayBeLast(server int) bool {
	o := &j.servers[server]
	return j.traits.Copies > 1 && !o.gone && (j.irreplaceable() || !o.ear.Suspect()) &&
		j.alone(server, func(h *words.Holder) bool { return j.servers[h.Server].connected && j.alive(h) })
}

// alone reports whether a server holds a shard that has no other good holder.
func (j *job) alone(server int, good func(h *words.Holder) bool) bool {
	for s := range j.spread.Held(server) {
		if !slices.ContainsFunc(j.facts.View.Shards[s].Members(), func(h words.Holder) bool {
			return h.Server != server && good(&h)
		}) {
			return true
		}
	}
	return false
}

// irreplaceable reports whether rows exist only in replicas, so that the job waits for a server that may hold the last
// ones. If the job can roll back to a checkpoint, such a server is given up like any other.
func (j *job) irreplaceable() bool { return j.traits.Copies > 1 && !j.traits.Saves() }

// shardStatus returns the latest status of a shard from the head of its chain in the current epoch, or nil if there is
// none.
func (j *job) shardStatus(shard int) *words.ShardWord {
	sv := &j.facts.View.Shards[shard]
	if sv.Server < 0 {
		return nil
	}
	return j.statusOf(shard, &sv.Holder)
}

// statusOf returns the latest status of a holder's replica in the shard's current epoch, or nil.
func (j *job) statusOf(shard int, h *words.Holder) *words.ShardWord {
	j.looks.shards++
	o := &j.servers[h.Server]
	if o.server == nil || o.gone || j.facts.Servers[h.Server].Incarnation != h.Incarnation {
		return nil
	}
	st := o.server.Shards[perdure.ShardID(shard)]
	if st == nil || st.Epoch != j.facts.View.Shards[shard].Epoch || st.Generation != j.facts.View.Generation {
		return nil
	}
	return st
}

// ready reports whether a shard's head serves: all members have everything that the head had when the epoch started.
func (j *job) ready(shard int) bool {
	st := j.shardStatus(shard)
	return st != nil && st.Ready
}

// whole reports whether a shard has everything that it had before it was restored.
func (j *job) whole(shard int) bool {
	if !j.facts.View.Shards[shard].Restored {
		return true
	}
	st := j.shardStatus(shard)
	return st != nil && st.Whole
}

// joined reports whether the replica that joins a shard has caught up in the shard's current epoch.
func (j *job) joined(shard int, joiner *words.Holder) bool {
	st := j.statusOf(shard, joiner)
	return st != nil && st.Joined && st.Since == joiner.Since
}

// fence returns a shard's fence for a slot's newest incarnation, if the shard serves and has fenced the older ones.
func (j *job) fence(shard, slot int) (f words.Fence, told bool) {
	st := j.shardStatus(shard)
	if st == nil || !st.Ready {
		return f, false
	}
	f, told = st.Fence(perdure.Slot(slot))
	return f, told && f.Incarnation == j.facts.View.Slots[slot].Incarnation
}

// missed reports whether the cut that was named last will get no checkpoint: a shard has advanced past it, and the
// process that was writing it is gone.
func (j *job) missed() bool {
	v := &j.facts.View
	for i := range v.Shards {
		st := j.shardStatus(i)
		if st != nil && st.Ready && st.Named >= v.Named && st.Missed {
			return true
		}
	}
	return false
}

func (j *job) updatesIn() (n int64) {
	for i := range j.facts.View.Shards {
		if st := j.shardStatus(i); st != nil {
			n += int64(st.Seq)
		}
	}
	return n
}

// serving reports whether the shards of a server are served again, by any server. After a rollback, all shards must be.
func (j *job) serving(server int) bool {
	o := &j.servers[server]
	if (o.gone || o.ear.Suspect()) && (j.spread.Load(server) > 0 || !j.facts.Placed()) {
		return false
	}
	if !j.traits.Apart || j.spread.Load(server) == 0 {
		return j.unready.Len() == 0
	}
	for i := range j.spread.Held(server) {
		if j.facts.View.Shards[i].Server == server && !j.ready(i) {
			return false
		}
	}
	return true
}

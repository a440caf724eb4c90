package membership

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// standing judges a holder by what was last heard of its server's place.
func (j *job) standing(h *words.Holder) member {
	p, o := &j.facts.Servers[h.Server], &j.servers[h.Server]
	switch {
	case h.Incarnation != p.Incarnation, o.gone && !o.assumed:
		return memberDead
	case o.gone && p.Any && j.traits.Copies == 1:
		return memberDead // nobody takes its place, nor tells more
	case o.gone, o.ear.Suspect():
		return memberSilent
	}
	if o.back > 0 {
		return memberBack
	}
	return memberAlive
}

// alive reports whether a holder lives, as far as is known.
func (j *job) alive(h *words.Holder) bool { return j.standing(h) <= memberBack }

// eligible reports whether a server may be given replicas.
func (j *job) eligible(server int) bool {
	return j.present(server) && !j.facts.Servers[server].Draining
}

// present reports whether a server's process is there, and is not told that it may end.
func (j *job) present(server int) bool {
	o := &j.servers[server]
	return o.connected && !j.facts.Servers[server].Left && !o.gone && !o.ear.Suspect()
}

// replaced reports whether a process has a server's place, so that it can begin again
// there with what the server held.
func (j *job) replaced(server int) bool {
	return !j.facts.Servers[server].Left && !j.servers[server].gone
}

// last reports whether nobody but a server, as far as is known, has all rows of some
// shard.
func (j *job) last(server int) bool {
	return j.alone(server, func(h *words.Holder) bool { return j.alive(h) })
}

// mayBeLast reports whether a server's process, which is not heard, may be alive and
// have the last rows of some shard: another one that asks for its place must wait until
// it is clear that it is dead, or, where all can roll back, until it is suspected. (The
// coordinator may have been away, and not know yet who else has died.)
func (j *job) mayBeLast(server int) bool {
	o := &j.servers[server]
	return j.traits.Copies > 1 && !o.gone && (j.irreplaceable() || !o.ear.Suspect()) &&
		j.alone(server, func(h *words.Holder) bool { return j.servers[h.Server].connected && j.alive(h) })
}

// alone reports whether a server holds a shard of whose other holders none is good.
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

// irreplaceable reports whether rows are nowhere but in replicas, so that whoever may
// have the last ones is waited for. Where all can roll back to a checkpoint, it is given
// up like any other.
func (j *job) irreplaceable() bool { return j.traits.Copies > 1 && !j.traits.Saves() }

// shardStatus returns what the head of a shard's chain says of its present life,
// or nil if it has not said anything yet.
func (j *job) shardStatus(shard int) *words.ShardWord {
	sv := &j.facts.View.Shards[shard]
	if sv.Server < 0 {
		return nil
	}
	return j.statusOf(shard, &sv.Holder)
}

// statusOf returns what a holder says of its replica of a shard in the shard's
// present epoch, or nil if it has not said anything yet.
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

// ready reports whether a shard's head serves: whatever it had when the epoch
// began, all members have.
func (j *job) ready(shard int) bool {
	st := j.shardStatus(shard)
	return st != nil && st.Ready
}

// whole reports whether a shard has all that it had had before it was restored.
func (j *job) whole(shard int) bool {
	if !j.facts.View.Shards[shard].Restored {
		return true
	}
	st := j.shardStatus(shard)
	return st != nil && st.Whole
}

// joined reports whether the replica that joins a shard has caught up, in the
// shard's present epoch.
func (j *job) joined(shard int, joiner *words.Holder) bool {
	st := j.statusOf(shard, joiner)
	return st != nil && st.Joined && st.Since == joiner.Since
}

// fence returns a shard's word on a slot's newest incarnation, if it serves and has
// fenced the older ones.
func (j *job) fence(shard, slot int) (f words.Fence, told bool) {
	st := j.shardStatus(shard)
	if st == nil || !st.Ready {
		return f, false
	}
	f, told = st.Fence(perdure.Slot(slot))
	return f, told && f.Incarnation == j.facts.View.Slots[slot].Incarnation
}

// missed reports whether there will be no checkpoint of the cut that was named last: a
// shard has gone on after it, and who was writing it is gone.
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

// serving reports whether what a server held is served again, by whomever; after
// a roll-back, all shards must be.
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

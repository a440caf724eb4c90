package membership

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/words"
)

// rounds records which files make up the running checkpoint, as reported by the servers. It does so once a tick,
// however often rows are saved: a server's earlier reports are lost only together with the server.
type rounds struct {
	facts *Facts
	job   *job
	rec   *record
}

// record adds what the shards have saved since the last tick, and requests its publication.
func (ro *rounds) record() {
	if ro.job.traits.Form != recovery.Rows || !ro.facts.Placed() || ro.job.publishing >= 0 {
		return
	}
	last := ro.facts.Closing
	closes := last != nil && last.Named
	if closes && ro.facts.View.Durable >= last.Cut {
		return // the last one is complete, and a newer one would not be
	}
	next, news := ro.facts.Running.Next(ro.job.shardStatus)
	if !news && ro.job.weak.Holders {
		next, news = ro.facts.Running.Next(ro.job.others)
	}
	clock, all := ro.job.minClock(), closes && ro.saved(last.Cut)
	if !news && !all {
		return
	}
	if all { // all have reached that clock, even if not all have reported it
		clock = last.Cut
	}
	if !news { // the last one could not be published
		next.Number++
	}
	set(ro.rec, &ro.facts.Running, next)
	ro.job.publishing = clock
	ro.rec.out.Publish = &Publish{
		Generation: ro.facts.View.Generation, Cut: clock, Running: &next, Last: all,
	}
}

// saved reports whether every shard has saved all its rows at the clock that was named last. A file of that clock alone
// is not enough: a shard that has not received the name may have saved a round of some rows there.
func (ro *rounds) saved(clock perdure.Clock) bool {
	for i := range ro.facts.View.Shards {
		st := ro.job.shardStatus(i)
		if st == nil || !st.Ready || st.Named != clock || len(st.Segments) == 0 || st.Segments[0].Cut != clock {
			return false
		}
	}
	return true
}

// others returns the status of a shard from a server that does not hold it, for a negative control.
func (j *job) others(shard int) (st *words.ShardWord) {
	for i := range j.servers {
		if w := j.servers[i].server; w != nil && i != j.facts.View.Shards[shard].Server && st == nil {
			st = w.Shards[perdure.ShardID(shard)]
		}
	}
	return st
}

// counts records which rows a lost shard starts with, where each row is saved separately.
func (b *bases) counts(shard int, base []perdure.Clock) {
	if st := b.job.shardStatus(shard); st != nil && b.job.traits.Begins == recovery.LastSaved {
		before := b.facts.Running
		set(b.rec, &b.facts.Running, before.Lost(&st.ShardStatus, leastCount(b.facts.View.Slots, base)))
		if text := b.facts.Running.Begun(&before, b.facts.UpdatesLost); text != "" {
			b.rec.event("restored", "", "%s", text)
		}
	}
}

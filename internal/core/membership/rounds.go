package membership

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/words"
)

// rounds records which files the running checkpoint is made of, as servers say it. It does so
// once a tick, however often something is saved: what a server says between is not lost before
// the next but with the server.
type rounds struct {
	facts *Facts
	job   *job
	rec   *record
}

// record takes over what the shards have saved since the last tick, and has it published.
func (ro *rounds) record() {
	if ro.job.traits.Form != recovery.Rows || !ro.facts.Placed() || ro.job.publishing >= 0 {
		return
	}
	last := ro.facts.Closing
	closes := last != nil && last.Named
	if closes && ro.facts.View.Durable >= last.Cut {
		return // the last one has all that it needs, and a newer one would not
	}
	next, news := ro.facts.Running.Next(ro.job.shardStatus)
	if !news && ro.job.weak.Holders {
		next, news = ro.facts.Running.Next(ro.job.others)
	}
	clock, all := ro.job.minClock(), closes && ro.saved(last.Cut)
	if !news && !all {
		return
	}
	if all { // they have come there, though not all of them may have said so
		clock = last.Cut
	}
	if !news { // it could not be published
		next.Number++
	}
	set(ro.rec, &ro.facts.Running, next)
	ro.job.publishing = clock
	ro.rec.out.Publish = &Publish{
		Generation: ro.facts.View.Generation, Cut: clock, Running: &next, Last: all,
	}
}

// saved reports whether every shard has saved all its rows at the clock that was named last. A file of that clock
// alone is not enough: a shard that does not know the name may have taken a round there, of some rows only.
func (ro *rounds) saved(clock perdure.Clock) bool {
	for i := range ro.facts.View.Shards {
		st := ro.job.shardStatus(i)
		if st == nil || !st.Ready || st.Named != clock || len(st.Segments) == 0 || st.Segments[0].Cut != clock {
			return false
		}
	}
	return true
}

// others is what a server says of a shard that it does not hold: for a negative control.
func (j *job) others(shard int) (st *words.ShardWord) {
	for i := range j.servers {
		if w := j.servers[i].server; w != nil && i != j.facts.View.Shards[shard].Server && st == nil {
			st = w.Shards[perdure.ShardID(shard)]
		}
	}
	return st
}

// counts notes what a lost shard begins with, where each row was saved by itself.
func (b *bases) counts(shard int, base []perdure.Clock) {
	if st := b.job.shardStatus(shard); st != nil && b.job.traits.Begins == recovery.LastSaved {
		before := b.facts.Running
		set(b.rec, &b.facts.Running, before.Lost(&st.ShardStatus, leastCount(b.facts.View.Slots, base)))
		if text := b.facts.Running.Begun(&before, b.facts.UpdatesLost); text != "" {
			b.rec.event("restored", "", "%s", text)
		}
	}
}

package membership

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
)

// rounds records which files make up the running checkpoint, as reported by the servers. It does so once a tick,
// however often rows are saved: a server's earlier reports are lost only together with the server.
type rounds struct {
	record *JobRecord
	job    *jobState
	rec    *recorder
}

// recordSaves adds what the shards have saved since the last tick, and requests its publication.
func (ro *rounds) recordSaves() {
	if ro.job.traits.SaveMode != recovery.SaveRows || !ro.record.Placed() || ro.job.publishing >= 0 {
		return
	}
	last := ro.record.Final
	closes := last != nil && last.Named
	if closes && ro.record.View.Durable >= last.Cut {
		return // the last one is complete, and a newer one would not be
	}
	next, news := ro.record.Running.Next(ro.job.shardStatus)
	if !news && ro.job.mutations.Holders {
		next, news = ro.record.Running.Next(ro.job.otherStatus)
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
	set(ro.rec, &ro.record.Running, next)
	ro.job.publishing = clock
	ro.rec.pending.Publish = &Publish{
		Generation: ro.record.View.Generation, Cut: clock, Running: &next, Last: all,
	}
}

// saved reports whether every shard has saved all its rows at the clock that was named last. A file of that clock alone
// is not enough: a shard that has not received the name may have saved a round of some rows there.
func (ro *rounds) saved(clock perdure.Clock) bool {
	for i := range ro.record.View.Shards {
		st := ro.job.shardStatus(i)
		if st == nil || !st.Ready || st.Cuts.Named != clock || len(st.Segments) == 0 || st.Segments[0].Cut != clock {
			return false
		}
	}
	return true
}

// otherStatus returns the status of a shard from a server that does not hold it, for a negative control.
func (j *jobState) otherStatus(shard int) (st *protocol.ObservedShard) {
	for i := range j.servers {
		if w := j.servers[i].server; w != nil && i != j.record.View.Shards[shard].Server && st == nil {
			st = w.Shards[perdure.ShardID(shard)]
		}
	}
	return st
}

// recordRestart records which rows a lost shard starts with, where each row is saved separately.
func (b *bases) recordRestart(shard int, base []perdure.Clock) {
	if st := b.job.shardStatus(shard); st != nil && b.job.traits.RestartsWith == recovery.LastSavedRows {
		before := b.record.Running
		set(b.rec, &b.record.Running, before.Lost(&st.ShardStatus, minCount(b.record.View.Slots, base)))
		if text := b.record.Running.StartMessage(&before, b.record.UpdatesLost); text != "" {
			b.rec.event("restored", "", "%s", text)
		}
	}
}

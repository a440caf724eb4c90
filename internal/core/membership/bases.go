package membership

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
)

// bases determines the initial applied vectors of lost shards.
type bases struct {
	record *JobRecord
	job    *jobState
	rec    *recorder
	queue  *dirtySet
	based  []cursor // by shard, over the slots: which slots' acknowledged counts are known
}

// learnBases decides the initial applied vector of each lost shard: the counts acknowledged to each slot, or, under a
// chain that acknowledges early, those of the new head if they are higher. Updates that the vector counts but the rows
// lack are lost. They are counted, and no process waits for them.
func (b *bases) learnBases() {
	for _, i := range b.queue.AwaitingBase.Sorted() {
		base, known := b.base(i)
		if !known {
			continue
		}
		v := &b.record.View
		lost := b.record.PastClocks // all clocks that the vector counts, minus those in the rows
		for slot, n := range base {
			lost += int64(v.Slots[slot].Clocks(n))
		}
		// The rows start as they did at the beginning of the job. In a resumed run they contain the earlier runs.
		if b.job.traits.RestartsWith == recovery.InitialRows {
			lost -= b.record.EarlierClocks
		}
		if b.job.traits.RestartsWith.HasRows() {
			lost -= int64(b.job.shardStatus(i).Seq)
		}
		b.record.UpdatesLost += lost - b.record.ShardLost[i]
		b.record.ShardLost[i] = lost
		b.recordRestart(i, base)
		next := b.record.View.Shards[i]
		next.Base = base
		b.rec.changeShard(i, next)
	}
}

// base computes the applied vector that a lost shard starts with. It is unknown until every live slot has reported its
// acknowledged count.
func (b *bases) base(shard int) (base []perdure.Clock, known bool) {
	n := len(b.record.View.Slots)
	var has []perdure.Clock // of the rows, if any are left
	if b.job.traits.RestartsWith.HasRows() {
		st := b.job.shardStatus(shard)
		if st == nil || len(st.Applied) != n {
			return nil, false
		}
		has = st.Applied
	}
	if !b.based[shard].All(n, func(slot int) bool { _, known := b.acknowledged(shard, slot); return known }) {
		return nil, false
	}
	base = make([]perdure.Clock, n)
	open := make([]perdure.Clock, n)
	for i := range base {
		base[i], _ = b.acknowledged(shard, i)
		open[i] = b.open(i)
	}
	clockBase(base, has, b.record.View.Slots, open, b.record.View.Cut, b.record.View.CutClocks, b.record.TwoStep())
	if b.job.mutations.BaseVector {
		copy(base, has)
	}
	return base, true
}

// acknowledged returns how many of a slot's clocks a lost shard had acknowledged as applied, as far as any process
// knows. It is unknown until a live slot has reported.
func (b *bases) acknowledged(shard, slot int) (n perdure.Clock, known bool) {
	b.job.visits.slots++
	sl, o := &b.record.View.Slots[slot], &b.job.slots[slot]
	if sl.Left {
		return sl.Until, true
	}
	if sl.Incarnation <= 1 && !sl.Settled {
		return sl.Start, true // its first process has not started, so nothing was acknowledged
	}
	if sl.Settled && b.record.Slots[slot].Process == "" {
		return sl.Start, true // the next process, if there is one, starts there
	}
	if !sl.Settled || o.gone {
		return b.highestApplied(slot)
	}
	if o.worker == nil {
		return 0, false
	}
	at := slices.IndexFunc(o.worker.Acked, func(a protocol.AckedClock) bool {
		return int(a.Shard) == shard && a.Epoch == b.record.View.Shards[shard].Epoch
	})
	if at < 0 {
		return 0, false
	}
	// A process that has not received the shard's view yet knows nothing of its predecessors' updates, but it will not
	// send them either.
	return max(o.worker.Acked[at].Applied, sl.Start), true
}

// open returns a clock that a slot has certainly not ended: its process works on it, or the next process starts with
// it. -1: no such clock is known.
func (b *bases) open(slot int) perdure.Clock {
	v, sl, o := &b.record.View, &b.record.View.Slots[slot], &b.job.slots[slot]
	begins := max(sl.Start, v.StartClock(perdure.Slot(slot)))
	switch w := o.worker; {
	case sl.Decided && (!sl.Settled || b.record.Slots[slot].Process == ""), !sl.Settled && sl.Incarnation <= 1:
		return begins
	case !sl.Settled || w == nil || o.gone || w.Generation != v.Generation:
		return -1 // its ticked clocks are not known
	default:
		return max(begins, w.Clock)
	}
}

// highestApplied returns the highest count that any shard with rows has applied of a dead slot. The slot was, or could
// have been, acknowledged that many clocks. The count is unknown until all these shards have reported.
func (b *bases) highestApplied(slot int) (most perdure.Clock, known bool) {
	most = b.record.View.Slots[slot].Start
	known = b.job.slots[slot].highest.All(len(b.record.View.Shards), func(i int) bool {
		if b.queue.AwaitingBase.Has(i) {
			return true // this shard has no rows of its own
		}
		f, sent := b.job.fence(i, slot)
		if sent {
			most = max(most, f.Counts.Applied)
		}
		return sent
	})
	return most, known
}

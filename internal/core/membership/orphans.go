package membership

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/words"
)

// placeShards gives the shards out when every server has come for the first time.
func (ch *chains) placeShards() {
	v := &ch.facts.View
	if ch.facts.Placed() {
		return
	}
	var servers []int
	var zones []string
	for i := range ch.facts.Servers {
		p := &ch.facts.Servers[i]
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
		holders := make([]words.Holder, len(chain))
		for i, x := range chain {
			holders[i] = ch.facts.Holder(servers[x])
		}
		next := words.ShardView{Epoch: 1}
		next.Lost, next.Saved = ch.facts.Running.Begins(s)
		ch.rec.changeShard(s, onChain(next, holders))
	}
	ch.rec.event("placed", "", "%d shards on %d servers", len(v.Shards), len(servers))
}

// replaceOrphans gives shards that nobody has the rows of to the processes that took
// their holders' places, or to the servers that are left where nobody takes them. It is for when
// no server is missing. It returns the fate of these shards, as far as it is not theirs
// alone.
func (ch *chains) replaceOrphans() recovery.Fate {
	orphans := ch.agenda.Orphans.Sorted()
	v := &ch.facts.View
	homeless := func(shard int) bool {
		return !slices.ContainsFunc(serversOf(v.Shards[shard].Members()), ch.job.replaced)
	}
	if slices.ContainsFunc(orphans, homeless) && ch.refuge() < 0 {
		if ch.facts.Job.NoReplace {
			ch.rec.fail("no server is left of %d; start the job again, with more servers or without --no-replace",
				len(ch.job.servers))
		}
		return recovery.Fate{} // those that were to end have gone; others come
	}
	fate := ch.fateOf(len(orphans))
	switch fate.Kind {
	case recovery.Wait:
		return recovery.Fate{}
	case recovery.Fail:
		ch.rec.fail("%s", fate.Why)
		return recovery.Fate{}
	}
	for _, i := range orphans {
		next := onChain(words.ShardView{Epoch: v.Shards[i].Epoch + 1}, ch.anew(i))
		next.Lost = fate.Kind == recovery.Anew || fate.Kind == recovery.Resaved
		next.Restored = fate.Kind == recovery.Restored || fate.Kind == recovery.Count
		if fate.Kind == recovery.Resaved {
			next.Saved = ch.facts.Running.Files[i]
		}
		ch.rec.changeShard(i, next)
		if delete(ch.job.dropped, perdure.ShardID(i)); ch.job.traits.Partial && !ch.job.weak.Counting {
			ch.forgo(i)
		}
	}
	switch fate.Kind {
	case recovery.Anew:
		ch.rec.event("lost", "", "%d shards begin again from their initial rows", len(orphans))
	case recovery.Resaved:
		ch.rec.event("restored", "", "%d shards begin with their rows as last saved; nobody goes back", len(orphans))
	case recovery.Restored, recovery.Count:
		ch.rec.event("restored", "", "%d shards are restored from clock %d; workers send again what came after",
			len(orphans), v.Durable)
	case recovery.Replay:
		ch.rec.event("replay", "", "%d shards are read from the update log again", len(orphans))
	case recovery.RollBack: // who carries it out tells of it
	case alone:
		ch.rec.event("restored", "", "%d shards are restored from clock %d, and nobody else", len(orphans), v.Cut)
	default:
		ch.rec.fail("%d shards were lost, and nobody knows what becomes of them (fate %d)", len(orphans), fate.Kind)
	}
	return fate
}

// forgo counts what a shard that is restored lacks for good.
func (ch *chains) forgo(shard int) {
	f := ch.facts
	f.lostUpdates.Find(shard)
	for i := range f.Slots {
		ch.rec.lost(i, f.lostUpdates.Restore(shard, i, &f.Slots[i].slotGaps, &f.View))
	}
}

// alone is what is left of a roll-back that a negative control switches off: nobody else goes back.
const alone recovery.FateKind = -1

// fateOf returns what becomes of a number of shards that nobody has the rows of.
func (ch *chains) fateOf(shards int) recovery.Fate {
	fate := ch.job.strategy.Orphaned(recovery.Loss{
		Shards: shards, Unkept: ch.job.unkept(), Durable: ch.facts.View.Durable, Publishing: ch.job.publishing >= 0,
	})
	if fate.Kind == recovery.RollBack && ch.job.weak.RollBack {
		fate.Kind = alone
	}
	return fate
}

// anew returns the chain of a shard that begins again: on the servers that held it,
// where their places are taken, else on others, or, where there are none, on one that is
// to end. Nobody has to copy it from anybody: all begin with the same rows, those of the
// cut.
func (ch *chains) anew(shard int) (chain []words.Holder) {
	copies := ch.job.traits.Copies
	for _, server := range serversOf(ch.facts.View.Shards[shard].Members()) {
		if ch.job.replaced(server) && len(chain) < copies {
			chain = append(chain, ch.facts.Holder(server))
		}
	}
	for len(chain) < copies {
		to := ch.job.spread.Choose(serversOf(chain), -1)
		if to < 0 {
			break
		}
		chain = append(chain, ch.facts.Holder(to))
	}
	if len(chain) == 0 {
		chain = append(chain, ch.facts.Holder(ch.refuge()))
	}
	return chain
}

// refuge returns the server for a shard that nobody has the rows of, and no place is
// taken of: one that may be given replicas, else one that is to end, for it stays as
// long as it is the only one; -1 if there is none.
func (ch *chains) refuge() int {
	found := ch.job.spread.Choose(nil, -1)
	if found >= 0 {
		return found
	}
	for i := range ch.job.servers {
		if ch.job.present(i) && (found < 0 || ch.job.spread.Load(i) < ch.job.spread.Load(found)) {
			found = i
		}
	}
	return found
}

package worker

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/reads"
)

// onView applies a new view.
func (l *locked) onView(v protocol.View) {
	if l.viewed && v.Revision <= l.view.Revision {
		return
	}
	rolled := l.viewed && v.Generation > l.generation
	ends := v.End != l.view.End || v.Tentative != l.view.Tentative
	if v.Pause && !l.view.Pause {
		l.pauses++
	}
	l.view, l.viewed, l.generation = v, true, v.Generation
	s, own := int(l.slot), l.session.incarnation
	if s >= 0 && s < len(v.Slots) && v.Slots[s].Left && v.Slots[s].Incarnation == own {
		l.leftAt = v.Slots[s].Until
	}
	l.out.SetView(v, rolled)
	if rolled {
		l.shared = sharedMark{}
	}
	l.shared.received(&l.view, l.slot)
	if len(l.shards) == 0 {
		l.reads = reads.New(l.cfg.reads(&l.job, l.slot), len(v.Shards))
		for i := range v.Shards {
			s := perdure.ShardID(i)
			l.shards = append(l.shards, &shardLink{id: s, out: l.out.Shard(s), rows: l.reads.Shard(s)})
		}
	}
	l.setReadProgress()
	if rolled {
		l.reads.RollBack(v.Cut)
	}
	if ends {
		l.reads.RelaxRequests()
		l.carryOut()
	}
	l.out.CheckCutWanted() // result unused: notify below reports the whole status
	if v.Shards[0].Server >= 0 {
		for _, sh := range l.shards {
			l.direct(sh, &v.Shards[sh.id])
		}
		l.servers.closeUnused(l.shards.use)
	}
	l.waits.Wake()
	l.notify()
}

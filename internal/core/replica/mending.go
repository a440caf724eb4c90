package replica

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/words"
)

// promises are, by slot, how many clocks its process says that it has ended. What a slot's newest
// process says replaces what those before it said. Where losses are allowed it may begin below them,
// and then nobody makes what they had made again: a shard that waited for that would wait for good,
// and the new process for the shard.
type promises map[perdure.Slot]promise

type promise struct {
	incarnation perdure.Incarnation
	ended       perdure.Clock
}

// tell notes what a process says. Observers have no slot and make nothing.
func (p *promises) tell(r *Reader, ended perdure.Clock) {
	if r.Slot < 0 {
		return
	}
	if *p == nil {
		*p = promises{}
	}
	switch said := (*p)[r.Slot]; {
	case r.Incarnation > said.incarnation:
		(*p)[r.Slot] = promise{r.Incarnation, ended}
	case r.Incarnation == said.incarnation:
		(*p)[r.Slot] = promise{r.Incarnation, max(said.ended, ended)}
	}
}

// of returns what a slot's newest process says, as far as the job will have it, and whether one
// has said anything.
func (p promises) of(slot perdure.Slot, v *words.View) (ended perdure.Clock, told bool) {
	said, told := p[slot]
	ended = said.ended
	if end := v.EndOf(slot); end > 0 {
		ended = min(ended, end)
	}
	return ended, told
}

// mending is what a shard whose former life is lost knows of how far the workers have
// sent it again. It begins with the rows of a cut, and lacks what came after: whoever read
// it before may have seen more. So it shows nobody anything until it has been sent what
// every slot had done when that heard of the new life.
type mending struct {
	restored bool     // the epoch began so
	told     promises // when a process opens the shard
	whole    bool     // it has had all
}

// lacks reports whether the shard has not been sent all again yet.
func (m *mending) lacks() bool { return m.restored && !m.whole }

// complete reports whether, as the view says who takes part, all slots have sent again what
// they had done.
func (m *mending) complete(v *words.View, in *consistency.Intake) bool {
	for i, sl := range v.Slots {
		if sl.Incarnation == 0 || !sl.Settled || sl.Left {
			continue // nobody speaks for it: what it had done is in the cut
		}
		slot := perdure.Slot(i)
		ended, told := m.told.of(slot, v)
		if !told || i >= len(in.Applied()) || in.Counts(slot).Ticked < ended {
			return false
		}
	}
	return true
}

// A shard that was away applies what came meanwhile little by little: what it reads in its
// stream of the update log, what workers have queued for it. Its rows are then those of
// a moment that is past, another one than other shards' rows are of. Who trains reads them all
// the same, as far as the bound allows; who judges the model asks before it reads.

// beyond reports whether updates are known to have been made that are not applied.
func (p promises) beyond(v *words.View, applied []perdure.Clock) bool {
	for slot := range p {
		if ended, _ := p.of(slot, v); consistency.Count(applied, slot) < ended {
			return true
		}
	}
	return false
}

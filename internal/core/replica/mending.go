package replica

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
)

// mending is what a shard whose former life is lost knows of how far the workers have
// sent it again. It begins with the rows of a cut, and lacks what came after: whoever read
// it before may have seen more. So it shows nobody anything until it has been sent what
// every slot had done when that heard of the new life.
type mending struct {
	restored bool                           // the epoch began so
	told     map[perdure.Slot]perdure.Clock // how many clocks a slot says that it has ended
	whole    bool                           // it has had all
}

// tell notes what a slot says when it opens the shard.
func (m *mending) tell(slot perdure.Slot, ended perdure.Clock) {
	if slot < 0 || m.whole {
		return
	}
	if m.told == nil {
		m.told = map[perdure.Slot]perdure.Clock{}
	}
	m.told[slot] = max(m.told[slot], ended)
}

// lacks reports whether the shard has not been sent all again yet.
func (m *mending) lacks() bool { return m.restored && !m.whole }

// complete reports whether, as the view says who takes part, all slots have sent again what
// they had done.
func (m *mending) complete(v *perdure.View, in *consistency.Intake) bool {
	for i, sl := range v.Slots {
		if sl.Incarnation == 0 || !sl.Settled || sl.Left {
			continue // nobody speaks for it: what it had done is in the cut
		}
		slot := perdure.Slot(i)
		ended, told := m.told[slot]
		if end := v.EndOf(slot); end > 0 {
			ended = min(ended, end)
		}
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

// arrears are, by slot, how many clocks its process says that it has ended: when it opens the
// shard, and when the shard has come back to a worker that went on without it.
type arrears map[perdure.Slot]perdure.Clock

func (a *arrears) tell(slot perdure.Slot, ended perdure.Clock) {
	if slot < 0 {
		return
	}
	if *a == nil {
		*a = arrears{}
	}
	(*a)[slot] = max((*a)[slot], ended)
}

// lacks reports whether updates are known to have been made that are not applied.
func (a arrears) lacks(v *perdure.View, applied []perdure.Clock) bool {
	for slot, ended := range a {
		if end := v.EndOf(slot); end > 0 {
			ended = min(ended, end)
		}
		if consistency.Count(applied, slot) < ended {
			return true
		}
	}
	return false
}

package server

import "github.com/perdure/perdure"

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

// held reports whether the shard shows nobody its rows yet. It needs sh.mu.
func (sh *shard) held() bool {
	return sh.mending.restored && !sh.mending.whole && !sh.s.cfg.Weakened.Holding
}

// mend looks whether a restored shard has been sent all again. What waits for others at
// a cut was not shown before either; a cut at which the shard stands was passed. It needs
// sh.mu.
func (sh *shard) mend() {
	m := &sh.mending
	if !m.restored || m.whole || !sh.ready || sh.intake.AtCut() {
		return
	}
	for i, sl := range sh.view.Slots {
		if sl.Incarnation == 0 || !sl.Settled || sl.Left {
			continue // nobody speaks for it: what it had done is in the cut
		}
		slot := perdure.Slot(i)
		ended, told := m.told[slot]
		if end := sh.view.EndOf(slot); end > 0 {
			ended = min(ended, end)
		}
		if !told || i >= len(sh.intake.Applied()) || sh.intake.Counts(slot).Ticked < ended {
			return
		}
	}
	m.whole = true
	sh.s.notify()
}

// mendNow answers those who wait for that, if nothing else does. It needs sh.mu.
func (sh *shard) mendNow() {
	if sh.mending.restored && !sh.mending.whole && sh.ready {
		sh.pump()
	}
}

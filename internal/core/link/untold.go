package link

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/replica"
)

// mostUntold is how many bytes of entries a predecessor keeps at most, about, because it is not
// told that they are committed: it sends no more than a window ahead.
const mostUntold = 64 << 10

// untold is what a shard's predecessor has not been told of what is committed. Where rows are
// read from the tail only, it need not hear at once: it has nobody to show them to, and each word
// costs both servers as much as an entry.
type untold struct {
	held     bool   // something is held back
	bytes    int    // of entries that were applied since it was told
	awaited  bool   // somebody waits for one of these: a fact, or the job's last clock
	followed uint64 // how far its log went when it asked last: it serves only once it was told of all that
}

func (u *untold) told() { u.held, u.bytes, u.awaited = false, 0, false }

// note notes an entry that is to be applied, of a job that ends at a clock, if not 0.
func (u *untold) note(e *replica.Entry, end perdure.Clock) {
	f := &e.Frame
	u.bytes += entryBytes(*e)
	u.awaited = u.awaited || !ofClock(f) || end > 0 && f.Until() >= end
}

// holdsBack reports whether the word of what is committed goes to the predecessor later, with
// others. tailReads: who reads does so at the tail.
func (u *untold) holdsBack(m *Outgoing, tailReads bool) bool {
	joins := m.Joiner != 0 // the tail waits for its word
	if joins || !tailReads || m.Pos <= u.followed || u.awaited || u.bytes >= mostUntold {
		u.told()
		return false
	}
	u.held = true
	return true
}

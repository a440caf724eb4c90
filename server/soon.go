package server

import (
	"time"

	"github.com/perdure/perdure/chain"
	"github.com/perdure/perdure/wire"
)

// soonDelay is how long what nobody waits for may be held back, to go out with others:
// acknowledgements, and the word to a predecessor of what is committed.
const soonDelay = 5 * time.Millisecond

// tellSoon sends all that is owed, after soonDelay.
func (s *Server) tellSoon() {
	if s.telling.CompareAndSwap(false, true) {
		time.AfterFunc(soonDelay, s.tellAll)
	}
}

// tellAll sends what is owed, one batch on each connection.
func (s *Server) tellAll() {
	s.telling.Store(false)
	owed := map[*conn][]wire.Frame{}
	for _, sh := range s.held() {
		sh.owed(owed)
	}
	for c, frames := range owed {
		c.send(frames...)
	}
}

// owed adds what is owed, by connection.
func (sh *shard) owed(to map[*conn][]wire.Frame) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.retired() {
		return
	}
	if sh.untold.held && sh.pred != nil {
		f := sh.frame(wire.KindCommitted)
		f.Request = sh.log.Committed()
		to[sh.pred] = append(to[sh.pred], f)
		sh.untold.told()
	}
	for _, c := range sh.acks {
		if c == nil || !sh.ready {
			continue
		}
		if f, owed := sh.ack(c); owed {
			to[c] = append(to[c], f)
		}
	}
}

// mostUntold is how many bytes of entries a predecessor keeps at most, about, because it
// is not told that they are committed: it sends no more than a window ahead.
const mostUntold = 64 << 10

// untold is what a shard's predecessor has not been told of what is committed. Where
// rows are read from the tail only, it need not hear at once: it has nobody to show
// them to, and each word costs both servers as much as an entry. shard.mu guards it.
type untold struct {
	held     bool   // something is held back
	bytes    int    // of entries that were applied since it was told
	awaited  bool   // one of these is a fact, and somebody waits until the head has it
	followed uint64 // how far its log went when it asked last: it serves only once it was told of all that
}

func (u *untold) told() { u.held, u.bytes, u.awaited = false, 0, false }

// note notes an entry that is applied.
func (u *untold) note(e entry) {
	u.bytes += entryBytes(e)
	u.awaited = u.awaited || e.f.Kind != wire.KindUpdate && e.f.Kind != wire.KindTick
}

// holdsBack reports whether the word of what is committed goes to the predecessor
// later, with others. It needs sh.mu.
func (sh *shard) holdsBack(m *chain.Outgoing[entry]) bool {
	u := &sh.untold
	now := m.Joiner != 0 || m.Pos <= u.followed || u.awaited || u.bytes >= mostUntold || // a joiner's word is what the tail waits for
		sh.end > 0 && sh.intake.MinClock() >= sh.end || !sh.tailReads
	if now {
		u.told()
		return false
	}
	u.held = true
	sh.s.tellSoon()
	return true
}

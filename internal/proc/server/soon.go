package server

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
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
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.sendHeld()
	}
	for _, p := range s.peers {
		if c := p.conn(); c != nil {
			c.sendHeld()
		}
	}
}

// sendSoon is send for frames that others are to go with: the last of these is sent,
// and the others with it, or all go when tellAll comes. It needs sh.mu.
func (sh *shard) sendSoon(c *conn, frames ...wire.Frame) {
	if c.queue(frames) {
		sh.s.tellSoon()
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
	for _, r := range sh.rep.Audience.TakeAcks(nil) {
		c := connOf(r)
		to[c] = append(to[c], sh.countsFrame(c, wire.KindAck))
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
	awaited  bool   // somebody waits for one of these: a fact, or the job's last clock
	followed uint64 // how far its log went when it asked last: it serves only once it was told of all that
}

func (u *untold) told() { u.held, u.bytes, u.awaited = false, 0, false }

// note notes an entry that is to be applied, of a job that ends at a clock, if not 0.
func (u *untold) note(e *replica.Entry, end perdure.Clock) {
	f := &e.Frame
	u.bytes += entryBytes(*e)
	ofClock := f.Kind == wire.KindUpdate || f.Kind == wire.KindTick
	u.awaited = u.awaited || !ofClock || end > 0 && f.Until() >= end
}

// holdsBack reports whether the word of what is committed goes to the predecessor
// later, with others. It needs sh.mu.
func (sh *shard) holdsBack(m *chain.Outgoing[replica.Entry]) bool {
	u := &sh.untold
	joins := m.Joiner != 0 // the tail waits for its word
	if joins || !sh.rep.State.TailReads() || m.Pos <= u.followed || u.awaited || u.bytes >= mostUntold {
		u.told()
		return false
	}
	u.held = true
	sh.s.tellSoon()
	return true
}

// early reports whether an entry that is sent on is a tick of a clock that other slots
// have not ticked yet: it changes nothing before they have, and goes with theirs. It
// needs sh.mu.
func (sh *shard) early(f *wire.Frame) bool {
	if f.Kind != wire.KindTick {
		return false
	}
	for int(f.Slot) >= len(sh.ticked) {
		sh.ticked = append(sh.ticked, 0) // its roster is in the log, before it
	}
	sh.ticked[f.Slot] = max(sh.ticked[f.Slot], f.Clock+1)
	for slot := range sh.rep.State.Applied() {
		sent := consistency.Count(sh.ticked, perdure.Slot(slot)) > f.Clock
		if sent || slot < len(sh.view.Slots) && !sh.view.Slots[slot].Has(f.Clock) {
			continue
		}
		if sh.rep.State.Counts(perdure.Slot(slot)).Ticked <= f.Clock {
			return true
		}
	}
	return false
}

package server

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/machine"
	"github.com/perdure/perdure/internal/proc/transport"
)

// busyPause is when a status that was in part an old one is made anew.
const busyPause = 5 * time.Millisecond

// word is what the coordinator is told of this server: on each connection all, then what
// has changed. It is the heartbeat's alone.
type word struct {
	to   transport.Conn // nil: there is none
	told words.ServerSpeaker
	beat transport.Heartbeat
	st   words.ServerStatus // while somebody is at work for long, what was said last
	end  perdure.Clock      // as of the view that it is by
	per  int                // heartbeats for each word, as of the view

	holds holds
	held  []*shard // that the server had when its lock was free last, retired ones whose lock is awaited among them
}

// sample looks how long locks have been held.
func (w *word) sample(s *Server) {
	if s.mu.TryLock() {
		clear(w.held) // else retired ones stay in memory
		w.held = slices.AppendSeq(w.held[:0], maps.Values(s.shards))
		w.held = slices.AppendSeq(w.held, maps.Keys(s.work.retiring))
		s.mu.Unlock()
	}
	w.st.Hold = w.holds.sample(time.Now(), &s.mu, w.held)
}

// waits counts a heartbeat, and reports whether nothing need be said at it.
func (w *word) waits() bool { return w.beat.Rests(w.per) }

// say tells the coordinator what is new; not fresh: some of it is what was said last.
func (w *word) say(s *Server) (fresh bool) {
	fresh = s.mu.TryLock()
	if fresh {
		if w.to != s.coordinator {
			w.to, w.told = s.coordinator, words.ServerSpeaker{}
			w.beat.Recount()
		}
		hold := w.st.Hold
		w.st, fresh = s.status()
		w.st.Hold = hold
		w.end = s.view.End
		if s.job != nil {
			w.per = words.Beats(s.view, s.job.Servers)
		}
		s.mu.Unlock()
	}
	if w.to == nil {
		return fresh
	}
	w.beat.Speaks(w.to)
	w.st.Resources = machine.InUse()
	counts := w.beat.Counts(time.Now(), false)
	for more := true; more; {
		var d words.ServerDelta
		d, more = w.told.Delta(&w.st, w.end, counts)
		if w.to.Send(wire.Control(wire.KindStatus, &d)) != nil {
			return fresh // a broken link says it itself
		}
	}
	return fresh
}

// status needs s.mu. It is fresh unless some shard was at work, or has not followed the view yet.
func (s *Server) status() (st words.ServerStatus, fresh bool) {
	st = words.ServerStatus{
		Revision: s.view.Revision, Draining: s.leaving.draining, Log: s.waits.Why(), Unreached: s.peers.contact.Out(),
	}
	st.Notice, fresh = s.leaving.notice(time.Now()), true
	for _, sh := range s.shards {
		says, now := sh.status(s.view, sh.follows.pending())
		st.Shards = append(st.Shards, says)
		fresh = fresh && now
	}
	slices.SortFunc(st.Shards, func(a, b words.ShardStatus) int { return cmp.Compare(a.Shard, b.Shard) })
	return st, fresh
}

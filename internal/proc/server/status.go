package server

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/machine"
	"github.com/perdure/perdure/internal/proc/transport"
)

// busyPause is the delay before a status is sent again if a part of it was old.
const busyPause = 5 * time.Millisecond

// statusSender sends this server's status to the coordinator: everything on each new connection, then the changes. It
// belongs to the heartbeat goroutine.
type statusSender struct {
	to                  transport.Conn // nil while disconnected
	sent                protocol.ServerDeltaEncoder
	beat                transport.Heartbeat
	st                  protocol.ServerStatus // if a lock was held, the previous status
	end                 perdure.Clock         // as of the view in st
	heartbeatsPerStatus int                   // heartbeats per status, as of the view

	holds holdMonitor
	held  []*shard // the server's shards when its lock was last free, including retired ones whose lock is awaited
}

// sample measures how long locks have been held.
func (w *statusSender) sample(s *Server) {
	if s.mu.TryLock() {
		clear(w.held) // otherwise retired shards would stay in memory
		w.held = slices.AppendSeq(w.held[:0], maps.Values(s.shards))
		w.held = slices.AppendSeq(w.held, maps.Keys(s.shared.retiring))
		s.mu.Unlock()
	}
	w.st.Hold = w.holds.sample(time.Now(), &s.mu, w.held)
}

// skips counts a heartbeat and reports whether it may be skipped.
func (w *statusSender) skips() bool { return w.beat.Skip(w.heartbeatsPerStatus) }

// send sends the changes to the coordinator. fresh is false if a part of the status is old.
func (w *statusSender) send(s *Server) (fresh bool) {
	fresh = s.mu.TryLock()
	if fresh {
		if w.to != s.coordinator {
			w.to, w.sent = s.coordinator, protocol.ServerDeltaEncoder{}
			w.beat.ForceCounts()
		}
		hold := w.st.Hold
		w.st, fresh = s.statusLocked()
		w.st.Hold = hold
		w.end = s.view.End
		if s.job != nil {
			w.heartbeatsPerStatus = protocol.HeartbeatDivisor(s.view, s.job.Servers)
		}
		s.mu.Unlock()
	}
	if w.to == nil {
		return fresh
	}
	w.beat.SendingOn(w.to)
	w.st.Resources = machine.ResourcesInUse()
	counts := w.beat.CountsDue(time.Now(), false)
	for more := true; more; {
		var d protocol.ServerDelta
		d, more = w.sent.Delta(&w.st, w.end, counts)
		if w.to.Send(wire.Control(wire.KindStatus, &d)) != nil {
			return fresh // the broken link reports it
		}
	}
	return fresh
}

// statusLocked returns the server's status. fresh is false if a shard was busy or has not followed the view yet. The
// caller must hold s.mu.
func (s *Server) statusLocked() (st protocol.ServerStatus, fresh bool) {
	st = protocol.ServerStatus{
		Revision: s.view.Revision, Draining: s.drain.draining, WaitReason: s.waits.Reason(),
		Unreachable: s.peers.contact.Unreachable(),
	}
	st.NoticeMs, fresh = s.drain.remainingMs(time.Now()), true
	for _, sh := range s.shards {
		says, now := sh.statusLocked(s.view, sh.follower.pending())
		st.Shards = append(st.Shards, says)
		fresh = fresh && now
	}
	slices.SortFunc(st.Shards, func(a, b protocol.ShardStatus) int { return cmp.Compare(a.Shard, b.Shard) })
	return st, fresh
}

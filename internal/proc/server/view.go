package server

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// onView applies a complete view.
func (s *Server) onView(v protocol.View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applyViewLocked(v)
}

// onDelta applies a delta to the current view. An error ends the connection: a server that has missed a delta receives
// the whole view on its next connection.
func (s *Server) onDelta(d *protocol.ViewDelta) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.Revision <= s.view.Revision {
		return nil // already applied
	}
	v, err := d.Apply(s.view)
	if err == nil {
		s.applyViewLocked(v)
	}
	return err
}

// applyViewLocked applies a view if it is newer than the current one. The caller must hold s.mu.
func (s *Server) applyViewLocked(v protocol.View) {
	if v.Revision <= s.view.Revision && s.view.Revision != 0 {
		return
	}
	s.view = &v
	s.admission.SetMembers(len(v.Slots) + len(v.Shards))
	s.fenceConnsLocked()
	used := map[*peer]bool{}
	for i := range v.Shards {
		id := perdure.ShardID(i)
		sh := s.shards[id]
		at, held := s.chainPositionLocked(&v, id)
		if !held || sh != nil && (sh.since != at.Since || sh.publishedName.Load().Generation != v.Generation) {
			if sh != nil {
				sh.retireLocked()
			}
			sh = nil
			if !held {
				continue
			}
		}
		used[at.successor], used[at.joiner], used[at.nextSuccessor] = true, true, true
		if sh == nil {
			s.addShardLocked(id, at)
			continue
		}
		s.followViewLocked(sh, at)
	}
	s.peers.drop(used)
	s.drain.endIfEmptyLocked()
	s.notify()
}

// addShardLocked creates a shard that the current view assigns to this server. The shard knows its place in the chain
// before it has rows. The caller must hold s.mu.
func (s *Server) addShardLocked(id perdure.ShardID, at chainPosition) {
	v := s.view
	sh := newShard(s, id, chain.Fence{Shard: id, Generation: v.Generation, Epoch: at.Epoch}, at.Since)
	s.shards[id] = sh
	comes := sh.stream == nil && at.Joining // the rows arrive along the chain
	if comes {
		sh.link.Join()
	}
	sh.mu.Lock() // no other goroutine knows the shard yet
	sh.followLocked(v, &at)
	sh.mu.Unlock()
	s.wg.Go(func() { s.deliverPendingOpens(id) })
	switch {
	case sh.stream != nil:
		s.wg.Go(func() { newReplay(s, sh).run(v) })
	case !comes:
		s.wg.Go(func() { s.restore(sh, v) })
	}
}

// viewFollower lets a shard follow the newest view no matter how long its lock is held. Server.mu guards it.
type viewFollower struct {
	running bool           // a goroutine is about to follow view, or follows an older one
	view    *protocol.View // the newest view that the shard must follow; nil: none
	at      chainPosition  // the shard's place in that view
}

// pending reports whether the shard has yet to follow the newest view.
func (f *viewFollower) pending() bool { return f.running }

// followViewLocked lets a shard follow the current view as soon as its lock is free. If several views arrive before
// that, only the newest is followed, because a shard need not see all views. The caller must hold s.mu.
func (s *Server) followViewLocked(sh *shard, at chainPosition) {
	sh.follower.view, sh.follower.at = s.view, at
	if sh.follower.running {
		return
	}
	sh.follower.running = true
	s.wg.Go(func() {
		for v, at := sh.follower.next(&s.mu); v != nil; v, at = sh.follower.next(&s.mu) {
			sh.mu.Lock()
			if !sh.retired() {
				sh.followLocked(v, &at)
			}
			sh.mu.Unlock()
			s.deliverPendingOpens(sh.id)
		}
		s.notify()
	})
}

// next returns the view that the shard must follow next, or nil. mu is Server.mu.
func (f *viewFollower) next(mu *lock) (v *protocol.View, at chainPosition) {
	mu.Lock()
	defer mu.Unlock()
	v, at = f.view, f.at
	*f = viewFollower{running: v != nil}
	return v, at
}

// fenceConnsLocked ends the connections of superseded processes. The caller must hold s.mu.
func (s *Server) fenceConnsLocked() {
	for c := range s.conns {
		if c.Slot < 0 || int(c.Slot) >= len(s.view.Slots) {
			continue
		}
		if now := s.view.Slots[c.Slot].Incarnation; c.Incarnation < now {
			_ = transport.Refuse(c.tc, wire.Refusal{
				Fenced: true,
				Reason: fmt.Sprintf("slot %d was taken over by incarnation %d", c.Slot, now),
			})
			c.closeAsync()
		}
	}
}

// restore loads a shard's rows from the cut of its generation and then follows the newest view. It runs in its own
// goroutine. If the shard was retired in the meantime, the result is ignored. A missing checkpoint may have been
// deleted since the view was made: then other servers hold the shard, and a newer view is on its way.
func (s *Server) restore(sh *shard, v *protocol.View) {
	var content replica.Content
	err := sh.saver.Retry("cannot read a checkpoint; training is paused until it can be read", func() (err error) {
		content, err = sh.saver.Load(v)
		return err
	})
	if sh.retired() || s.ctx.Err() != nil {
		return
	}
	if err != nil {
		s.fail(fmt.Errorf("%w: restore shard %d at clock %d: %w", ErrCheckpoint, sh.id, v.RestoredAt(sh.id), err))
		return
	}
	sh.mu.Lock()
	if !sh.retired() {
		sh.setContentLocked(content, v)
	}
	sh.mu.Unlock()
	s.deliverPendingOpens(sh.id)
	s.notify()
}

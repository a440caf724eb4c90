package server

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/link"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// onView brings this server to what the view says.
func (s *Server) onView(v words.View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.take(v)
}

// onDelta does the same with what changed of the present view. An error is for the
// connection: whoever has missed something is told the whole view on the next one.
func (s *Server) onDelta(d *words.ViewDelta) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.Revision <= s.view.Revision {
		return nil // heard before
	}
	v, err := d.Apply(s.view)
	if err == nil {
		s.take(v)
	}
	return err
}

// take needs s.mu.
func (s *Server) take(v words.View) {
	if v.Revision <= s.view.Revision && s.view.Revision != 0 {
		return
	}
	s.view = &v
	s.door.Expect(len(v.Slots) + len(v.Shards))
	s.fenceConns()
	used := map[*peer]bool{}
	for i := range v.Shards {
		id := perdure.ShardID(i)
		sh := s.shards[id]
		at, held := s.placeOf(&v, id)
		if !held || sh != nil && (sh.since != at.Since || sh.named.Load().Generation != v.Generation) {
			if sh != nil {
				sh.retire()
			}
			sh = nil
			if !held {
				continue
			}
		}
		used[at.succ], used[at.join], used[at.soon] = true, true, true
		if sh == nil {
			s.begins(id, at)
			continue
		}
		s.bring(sh, at)
	}
	s.peers.drop(used)
	s.leaving.ifFree()
	s.notify()
}

// begins begins a shard that the present view gives to this server. It knows its place before its rows
// come. It needs s.mu.
func (s *Server) begins(id perdure.ShardID, at place) {
	v := s.view
	sh := newShard(s, id, link.Name{Shard: id, Generation: v.Generation, Epoch: at.Epoch}, at.Since)
	s.shards[id] = sh
	comes := sh.stream == nil && at.Joining // along the chain
	if comes {
		sh.link.Join()
	}
	sh.mu.Lock() // no other goroutine knows the shard yet
	sh.follow(v, &at)
	sh.mu.Unlock()
	s.wg.Go(func() { s.opened(id) })
	switch {
	case sh.stream != nil:
		s.wg.Go(func() { newReplay(s, sh).run(v) })
	case !comes:
		s.wg.Go(func() { s.restore(sh, v) })
	}
}

// follows is how a shard gets to follow the newest view, whatever its lock is held for. Server.mu guards it.
type follows struct {
	running bool        // a goroutine is about to follow view, or follows an older one
	view    *words.View // the newest view that the shard must follow; nil: none
	at      place       // the shard's, as of view
}

// pending reports whether the shard has not followed the newest view yet.
func (f *follows) pending() bool { return f.running }

// bring lets a shard follow the present view as soon as its lock is free. Views that come until then are
// skipped but for the newest: a shard acts on that, whatever it missed. It needs s.mu.
func (s *Server) bring(sh *shard, at place) {
	sh.follows.view, sh.follows.at = s.view, at
	if sh.follows.running {
		return
	}
	sh.follows.running = true
	s.wg.Go(func() {
		for v, at := sh.follows.next(&s.mu); v != nil; v, at = sh.follows.next(&s.mu) {
			sh.mu.Lock()
			if !sh.retired() {
				sh.follow(v, &at)
			}
			sh.mu.Unlock()
			s.opened(sh.id)
		}
		s.notify()
	})
}

// next takes the view that the shard must follow next; nil: none. mu is Server.mu.
func (f *follows) next(mu *lock) (v *words.View, at place) {
	mu.Lock()
	defer mu.Unlock()
	v, at = f.view, f.at
	*f = follows{running: v != nil}
	return v, at
}

// fenceConns ends the connections of superseded processes. It needs s.mu.
func (s *Server) fenceConns() {
	for c := range s.conns {
		if c.Slot < 0 || int(c.Slot) >= len(s.view.Slots) {
			continue
		}
		if now := s.view.Slots[c.Slot].Incarnation; c.Incarnation < now {
			_ = transport.Refuse(c.tc, wire.Refusal{
				Fenced: true,
				Reason: fmt.Sprintf("slot %d was taken by incarnation %d", c.Slot, now),
			})
			c.end()
		}
	}
}

// restore fills a shard's rows from the cut of its generation, then lets it
// follow the newest view that it has seen. It runs in a goroutine of its own; a shard that
// was retired meanwhile ignores what it brings. A checkpoint that is not there may have
// been deleted since: then others have the shard, and a newer view is on its way.
func (s *Server) restore(sh *shard, v *words.View) {
	var content replica.Content
	err := sh.saver.Insist("cannot read a checkpoint; training waits", func() (err error) {
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
		sh.fill(content, v)
	}
	sh.mu.Unlock()
	s.opened(sh.id)
	s.notify()
}

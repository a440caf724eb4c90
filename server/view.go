package server

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/transport"
	"github.com/perdure/perdure/wire"
)

// onView brings this server to what the view says.
func (s *Server) onView(v perdure.View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.Revision <= s.view.Revision && s.view.Revision != 0 {
		return
	}
	s.view = v
	s.fenceConns()
	for i := range v.Shards {
		id, want := perdure.ShardID(i), &v.Shards[i]
		sh := s.shards[id]
		if want.Server != s.index || want.Incarnation != s.incarnation {
			if sh != nil {
				sh.retire()
				delete(s.shards, id)
			}
			continue
		}
		n := shardName{v.Generation, want.Epoch}
		if sh == nil || sh.name != n {
			if sh != nil {
				sh.retire()
			}
			sh = newShard(s, id, n)
			s.shards[id] = sh
			s.wg.Go(func() { s.restore(sh, v) })
			continue
		}
		s.bring(sh)
	}
	s.notify()
}

// bring lets a restored shard follow the present view. It needs s.mu.
func (s *Server) bring(sh *shard) {
	if sh.follow(&s.view) {
		s.opened(sh)
	}
}

// fenceConns ends the connections of superseded processes. It needs s.mu.
func (s *Server) fenceConns() {
	for c := range s.conns {
		if c.slot < 0 || int(c.slot) >= len(s.view.Slots) {
			continue
		}
		if now := s.view.Slots[c.slot].Incarnation; c.incarnation < now {
			_ = transport.Refuse(c.tc, wire.Refusal{Fenced: true, Reason: fmt.Sprintf("slot %d was taken by incarnation %d", c.slot, now)})
			go c.tc.Close() // it may take a moment
		}
	}
}

// restore fills a shard's rows from the cut of its generation, then lets it
// follow the view of the day. It runs in a goroutine of its own; a shard that
// was retired meanwhile ignores what it brings.
func (s *Server) restore(sh *shard, v perdure.View) {
	content, err := s.loadContent(sh.id, &v)
	if err != nil {
		if !sh.retired() {
			s.fail(fmt.Errorf("%w: restore shard %d at clock %d: %w", ErrCheckpoint, sh.id, v.Cut, err))
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shards[sh.id] != sh {
		return
	}
	sh.fill(content)
	s.bring(sh)
	s.notify()
}

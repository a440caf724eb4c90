package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// peer is another server that is the successor of some shards here, or joins them.
type peer struct {
	s       *Server
	addr    string
	ctx     context.Context // ends when no shard here needs the peer any more
	cancel  context.CancelFunc
	copying *semaphore.Weighted // copyRoom, for snapshots to it
	box     outbox              // of the goroutine that receives

	mu  sync.Mutex // guards what follows
	out *conn      // nil while there is no connection
}

// conn returns the present connection, nil if there is none. A nil peer has none.
func (p *peer) conn() *conn {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out
}

func (p *peer) set(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out = c
}

// awayPause is when a server that has turned this one away is tried again.
const awayPause = time.Second

// peerAt returns the peer at an address, connecting to it if need be. It needs s.mu.
func (s *Server) peerAt(addr string) *peer {
	if p := s.peers[addr]; p != nil {
		return p
	}
	ctx, cancel := context.WithCancel(s.ctx)
	p := &peer{s: s, addr: addr, ctx: ctx, cancel: cancel, copying: semaphore.NewWeighted(copyRoom)}
	s.peers[addr] = p
	link := transport.Link{
		Network: s.cfg.Network, Addr: addr, Hello: s.hello,
		Up: func(tc transport.Conn, _ *wire.Frame) {
			p.set(&conn{Reader: replica.Reader{Slot: perdure.NoSlot}, tc: tc, log: s.cfg.Log})
			for _, sh := range s.held() {
				sh.relink(p)
			}
		},
		Frame: func(_ transport.Conn, f *wire.Frame) error {
			if f.Kind != wire.KindHave && f.Kind != wire.KindCommitted {
				return fmt.Errorf("unexpected frame of kind %d from a successor", f.Kind)
			}
			if sh := s.shard(f); sh != nil {
				sh.fromSuccessor(p, f)
			}
			return nil
		},
		Down: func(_ transport.Conn, err error) {
			p.box.flush()
			p.set(nil)
			s.cfg.Log.Info("lost a server", "addr", addr, "err", err)
		},
		Wait: p.box.flush,
	}
	s.wg.Go(func() {
		for {
			err := link.Run(ctx)
			if ctx.Err() != nil {
				return
			}
			s.cfg.Log.Warn("a server turns this one away", "addr", addr, "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(awayPause): // another process may listen there by then
			}
		}
	})
	return p
}

// peers are the servers that this one connects to, by address.
type peers map[string]*peer

// drop ends connections that no shard needs any more.
func (all peers) drop(used map[*peer]bool) {
	for addr, p := range all {
		if !used[p] {
			p.cancel()
			delete(all, addr)
		}
	}
}

// placeOf returns this server's part in a shard's chain; false if it has none. It
// needs s.mu.
func (s *Server) placeOf(v *perdure.View, id perdure.ShardID) (at place, held bool) {
	sv := &v.Shards[id]
	mine := func(h *perdure.Holder) bool { return h.Server == s.index && h.Incarnation == s.incarnation }
	eager := s.traits.Early
	at.Config = chain.Config{Epoch: sv.Epoch, Eager: eager, Periodic: s.traits.Period > 0}
	if sv.Joining != nil && mine(sv.Joining) {
		at.Joining, at.Joiner, at.Since, at.Pred = true, sv.Joining.Since, sv.Joining.Since, sv.Tail()
		return at, true
	}
	for i := range sv.Replicas() {
		h := sv.Replica(i)
		if !mine(&h) {
			continue
		}
		at.Since, at.Head, at.Tail = h.Since, i == 0, i == sv.Replicas()-1
		if i > 0 {
			at.Pred = sv.Replica(i - 1)
		}
		if s.traits.Logged() {
			return at, true // nobody follows anybody, but all the same stream
		}
		if !at.Tail {
			at.succ = s.peerAt(sv.Replica(i + 1).Addr)
			if sv.Joining != nil {
				at.next = s.peerAt(sv.Joining.Addr)
			}
		} else if sv.Joining != nil {
			at.Joiner, at.join = sv.Joining.Since, s.peerAt(sv.Joining.Addr)
		}
		return at, true
	}
	return at, false
}

// outbox holds back what is sent until all that has come together is dealt with, so
// that the answers go out together. It belongs to the goroutine that receives.
type outbox struct{ conns []*conn }

func (o *outbox) put(c *conn, frames []wire.Frame) {
	if c.queue(frames) && !slices.Contains(o.conns, c) {
		o.conns = append(o.conns, c)
	}
}

func (o *outbox) flush() {
	for i, c := range o.conns {
		c.sendHeld()
		o.conns[i] = nil
	}
	o.conns = o.conns[:0]
}

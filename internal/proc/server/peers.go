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
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/transport"
)

// peer is another server that is the successor of, or a joiner to, some shards of this one.
type peer struct {
	s       *Server
	addr    string
	reach   *transport.PeerMonitor
	ctx     context.Context // ends when no shard here needs the peer any more
	cancel  context.CancelFunc
	copySem *semaphore.Weighted // capacity copyCapacity, for snapshots to the peer
	batch   batch               // owned by the receiving goroutine

	mu  sync.Mutex // guards the fields below
	out *conn      // nil while there is no connection
}

// conn returns the current connection, or nil if there is none. A nil peer has none.
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

// rejectedPause is the delay before a server that rejected this one is tried again.
const rejectedPause = time.Second

// connectPeerLocked returns the peer that holds a replica and starts to connect to it if necessary. It returns nil if h
// is nil. The caller must hold s.mu.
func (s *Server) connectPeerLocked(h *protocol.Holder) *peer {
	if h == nil {
		return nil
	}
	addr := h.Addr
	if p := s.peers.byAddr[addr]; p != nil {
		return p
	}
	ctx, cancel := context.WithCancel(s.ctx)
	p := &peer{
		s: s, addr: addr, reach: s.peers.contact.Watch(addr), ctx: ctx, cancel: cancel,
		copySem: semaphore.NewWeighted(copyCapacity),
	}
	s.peers.byAddr[addr] = p
	way := transport.Link{
		Network: s.cfg.Network, Addr: addr, PeerRole: keys.Server, Hello: s.hello,
		Up: func(tc transport.Conn, _ *wire.Frame) {
			p.reach.Received()
			p.set(&conn{Reader: replica.Reader{Slot: perdure.NoSlot}, tc: tc, log: s.admission.Connections()})
			for _, sh := range s.heldShards() {
				sh.relink(p)
			}
		},
		Frame: func(_ transport.Conn, f *wire.Frame) error {
			p.reach.Received()
			if f.Kind != wire.KindHave && f.Kind != wire.KindCommitted {
				return fmt.Errorf("unexpected frame of kind %d from a successor", f.Kind)
			}
			if sh := s.shard(f); sh != nil {
				sh.fromSuccessor(p, f)
			}
			return nil
		},
		Down: func(_ transport.Conn, err error) {
			p.batch.flush()
			p.set(nil)
			s.cfg.Log.Info("lost a server", "addr", addr, "err", err)
		},
		OnWait: p.batch.flush,
	}
	s.wg.Go(func() {
		for {
			err := way.Run(ctx)
			if ctx.Err() != nil {
				return
			}
			s.cfg.Log.Warn("another server rejects this one; retrying", "addr", addr, "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(rejectedPause): // another process may listen there by then
			}
		}
	})
	return p
}

// peers are the servers that this one connects to.
type peers struct {
	byAddr  map[string]*peer // by address
	contact *transport.Reachability
}

// drop closes connections that no shard needs any more.
func (all *peers) drop(used map[*peer]bool) {
	for addr, p := range all.byAddr {
		if !used[p] {
			p.cancel()
			all.contact.Unwatch(p.reach)
			delete(all.byAddr, addr)
		}
	}
}

// chainPositionLocked returns this server's position in a shard's chain, and connects to the servers that receive
// entries. held is false if the server is not in the chain. The caller must hold s.mu.
func (s *Server) chainPositionLocked(v *protocol.View, id perdure.ShardID) (at chainPosition, held bool) {
	at.Role, held = chain.RoleOf(v, id, s.index, s.incarnation, &s.traits)
	at.successor, at.joiner, at.nextSuccessor = s.connectPeerLocked(at.Succ), s.connectPeerLocked(
		at.Join), s.connectPeerLocked(
		at.NextJoin,
	)
	return at, held
}

// batch holds back frames until all frames that arrived together are handled, so that the answers are sent together. It
// belongs to the receiving goroutine.
type batch struct{ conns []*conn }

func (b *batch) put(c *conn, frames []wire.Frame) {
	if c.queue(frames) && !slices.Contains(b.conns, c) {
		b.conns = append(b.conns, c)
	}
}

func (b *batch) flush() {
	for i, c := range b.conns {
		c.sendHeld()
		b.conns[i] = nil
	}
	b.conns = b.conns[:0]
}

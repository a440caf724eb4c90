package worker

import (
	"context"
	"errors"
	"slices"

	"github.com/perdure/perdure/internal/core/reads"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// peer is a server's address and the connection to it.
type peer struct {
	addr   string
	cancel context.CancelFunc

	// Guarded by Client.mu.
	conn    transport.Conn // nil while there is none
	batch   []wire.Frame   // to be sent by flush
	behind  transport.Conn // who takes so little that others send to it; nil: nobody
	answers reads.Source   // that come on it
}

// route is a way to a server: shards are spread over several connections where
// they are asked for.
type route struct {
	addr string
	lane int
}

// peer returns the peer by a route, connecting to it if need be. It needs c.mu.
func (c *Client) peer(to route) *peer {
	if p := c.peers[to]; p != nil {
		return p
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &peer{addr: to.addr, cancel: cancel}
	c.peers[to] = p
	link := transport.Link{
		Network: c.cfg.Network, Addr: to.addr, Hello: c.hello,
		Place: func(f *wire.Frame, n int) []byte { return c.place(p, f, n) },
		Up: func(conn transport.Conn, _ *wire.Frame) {
			c.heard.note()
			c.mu.Lock()
			defer c.mu.Unlock()
			p.conn = conn
			for _, sh := range c.shards {
				if sh.uses(p) {
					c.sendOpen(sh, p)
				}
			}
		},
		Frame: func(_ transport.Conn, f *wire.Frame) error {
			c.heard.note()
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.fromServer(p, f)
		},
		Down: func(_ transport.Conn, err error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.peerDown(p)
			c.cfg.Log.Info("lost a server", "addr", to.addr, "err", err)
		},
	}
	c.done.Go(func() {
		if err := link.Run(ctx); ctx.Err() == nil {
			c.fail(err)
		}
	})
	return p
}

// peerDown notes that a connection has broken. It needs c.mu.
func (c *Client) peerDown(p *peer) {
	c.settle(p)
	p.conn, p.behind = nil, nil
	p.forgetBatch()
	for _, sh := range c.shards {
		if sh.head == p {
			sh.headOpen = false
		}
		if sh.reader == p {
			c.closed(sh)
		}
	}
	c.carryOut()
}

// uses reports whether a shard's updates go to a peer, or its rows come from it.
func (sh *shardLink) uses(p *peer) bool { return sh.head == p || sh.reader == p }

// dropPeers ends connections that no shard needs any more. It needs c.mu.
func (c *Client) dropPeers() {
	for to, p := range c.peers {
		if !slices.ContainsFunc(c.shards, func(sh *shardLink) bool { return sh.uses(p) || sh.next == p }) {
			p.cancel()
			delete(c.peers, to)
		}
	}
}

// flush sends what was gathered for each server, as one batch. It needs c.mu.
func (c *Client) flush() {
	for _, p := range c.peers {
		c.flushTo(p)
	}
}

// post sends a frame to a server, behind what was gathered for it. It needs c.mu.
func (c *Client) post(p *peer, f wire.Frame) {
	p.batch = append(p.batch, f)
	c.flushTo(p)
}

// flushTo sends what was gathered for a server. A broken connection says so itself,
// and what it lost is sent again when shards are opened anew. A server that takes
// nothing for now is left to another goroutine: nobody who talks to others waits
// for it, least of all the view that will say that it is gone. It needs c.mu.
func (c *Client) flushTo(p *peer) {
	if len(p.batch) == 0 || p.behind != nil {
		return
	}
	if p.conn != nil && errors.Is(p.conn.TrySend(p.batch...), transport.ErrFull) {
		conn, batch := p.conn, p.batch
		p.behind, p.batch = conn, nil
		c.done.Go(func() { c.follow(p, conn, batch) }) // the link still runs, so Close waits for both
		return
	}
	p.forgetBatch()
}

// follow sends batches to a server as it takes them, until it has them all.
func (c *Client) follow(p *peer, conn transport.Conn, batch []wire.Frame) {
	for len(batch) > 0 {
		_ = conn.Send(batch...) // a broken connection says it itself
		c.mu.Lock()
		batch = nil
		if p.behind == conn {
			batch, p.batch = p.batch, nil
			if len(batch) == 0 {
				p.behind = nil
			}
		}
		c.mu.Unlock()
	}
}

// forgetBatch empties what was gathered, and lets the payloads go.
func (p *peer) forgetBatch() {
	clear(p.batch)
	p.batch = p.batch[:0]
}

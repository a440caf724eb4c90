package worker

import (
	"context"
	"errors"
	"sync"

	"github.com/perdure/perdure/internal/core/reads"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/transport"
)

// servers holds the connections to the servers that have shards. mu guards it: callers of its methods must hold mu,
// except for follow.
type servers struct {
	mu      *sync.Mutex
	done    *sync.WaitGroup // of the goroutines that send
	peers   map[route]*peer
	start   func(*peer) // starts to connect, in new goroutines
	contact *transport.Reachability
}

// peer is a server's address and the connection to it.
type peer struct {
	addr   string
	reach  *transport.PeerMonitor
	ctx    context.Context // of its connection; cancel ends it
	cancel context.CancelFunc

	conn     transport.Conn // nil while there is none
	batch    []wire.Frame   // to be sent by flush
	slowConn transport.Conn // slow connection to which a goroutine sends; nil: flushTo sends directly
	answers  reads.Source   // answers received on the connection
}

// route identifies a connection to a server. Shards are spread over several connections if Config.Connections asks for
// them.
type route struct {
	addr string
	lane int
}

// to returns the peer for a route, and starts to connect if it is new.
func (s *servers) to(way route) *peer {
	p := s.peers[way]
	if p == nil {
		p = &peer{addr: way.addr, reach: s.contact.Watch(way.addr)}
		p.ctx, p.cancel = context.WithCancel(context.Background())
		s.peers[way] = p
		s.start(p)
	}
	return p
}

// closeUnused ends the connections to all servers except the wanted ones.
func (s *servers) closeUnused(wanted func(*peer) bool) {
	for to, p := range s.peers {
		if !wanted(p) {
			p.cancel()
			s.contact.Unwatch(p.reach)
			delete(s.peers, to)
		}
	}
}

// end ends all connections.
func (s *servers) end() {
	for _, p := range s.peers {
		p.cancel()
	}
}

// flush sends each server the frames queued for it, as one batch.
func (s *servers) flush() {
	for _, p := range s.peers {
		s.flushTo(p)
	}
}

// post sends a frame to a server, after the frames already queued for it.
func (s *servers) post(p *peer, f wire.Frame) {
	p.batch = append(p.batch, f)
	s.flushTo(p)
}

// postAll sends a frame to all servers that accept frames now.
func (s *servers) postAll(f wire.Frame) {
	for _, p := range s.peers {
		if p.conn != nil && p.slowConn == nil {
			s.post(p, f)
		}
	}
}

// count returns the number of servers with connections.
func (s *servers) count() int {
	addrs := map[string]bool{}
	for way := range s.peers {
		addrs[way.addr] = true
	}
	return len(addrs)
}

// closeSource closes the connection on which answers of the source arrive.
func (s *servers) closeSource(from *reads.Source) {
	for _, p := range s.peers {
		if &p.answers == from && p.conn != nil {
			go p.conn.Close()
		}
	}
}

// flushTo sends a server the frames queued for it. The link reports a broken connection, and lost frames are sent again
// when the shards are reopened. If a server accepts nothing for now, another goroutine sends to it, so that frames for
// other servers do not wait. In particular, the view that reports the slow server as dead must not wait.
func (s *servers) flushTo(p *peer) {
	if len(p.batch) == 0 || p.slowConn != nil {
		return
	}
	if p.conn != nil && errors.Is(p.conn.TrySend(p.batch...), transport.ErrFull) {
		conn, batch := p.conn, p.batch
		p.slowConn, p.batch = conn, nil
		s.done.Go(func() { s.follow(p, conn, batch) }) // the link still runs, so Close waits for both
		return
	}
	p.forgetBatch()
}

// follow sends batches to a slow server until the queue is empty. It acquires mu itself.
func (s *servers) follow(p *peer, conn transport.Conn, batch []wire.Frame) {
	for len(batch) > 0 {
		_ = conn.Send(batch...) // the link reports a broken connection
		s.mu.Lock()
		batch = nil
		if p.slowConn == conn {
			batch, p.batch = p.batch, nil
			if len(batch) == 0 {
				p.slowConn = nil
			}
		}
		s.mu.Unlock()
	}
}

// down drops a broken connection and the frames queued for it.
func (p *peer) down() {
	p.conn, p.slowConn = nil, nil
	p.forgetBatch()
}

// forgetBatch empties the queue and releases the payloads.
func (p *peer) forgetBatch() {
	clear(p.batch)
	p.batch = p.batch[:0]
}

// connect starts to connect to a server.
func (c *Client) connect(p *peer) {
	link := transport.Link{
		Network: c.cfg.hooks.Network, Addr: p.addr, PeerRole: keys.Server, Hello: c.hello,
		PayloadBuffer: func(f *wire.Frame, n int) []byte { // memory for an answer: see reads.Reader.AnswerBuffer
			if f.Kind != wire.KindRows {
				return nil
			}
			l := c.lock()
			defer c.mu.Unlock()
			l.settle(p)
			return l.reads.AnswerBuffer(&p.answers, f, n)
		},
		Up: func(conn transport.Conn, _ *wire.Frame) {
			c.liveness.RecordMessage()
			p.reach.Received()
			l := c.lock()
			defer c.mu.Unlock()
			p.conn = conn
			for _, sh := range l.shards {
				if sh.uses(p) {
					l.sendOpen(sh, p)
				}
			}
		},
		Frame: func(_ transport.Conn, f *wire.Frame) error {
			c.liveness.RecordMessage()
			p.reach.Received()
			l := c.lock()
			defer c.mu.Unlock()
			return l.fromServer(p, f)
		},
		Down: func(_ transport.Conn, err error) {
			l := c.lock()
			defer c.mu.Unlock()
			l.peerDown(p)
			c.cfg.Log.Info("lost a server", "addr", p.addr, "err", err)
		},
		OnRefused: func(err error) {
			c.cfg.Log.Warn("another process now listens on the server's address and rejected the connection",
				"addr", p.addr, "err", err)
		},
	}
	c.done.Go(func() {
		if err := link.Run(p.ctx); p.ctx.Err() == nil {
			c.fail(err)
		}
	})
}

// peerDown handles a broken connection.
func (l *locked) peerDown(p *peer) {
	l.settle(p)
	p.down()
	for _, sh := range l.shards {
		if sh.head == p {
			sh.headOpen = false
		}
		if sh.reader == p {
			sh.open = false
			l.reads.Closed(sh.rows)
		}
	}
	l.carryOut()
}

package worker

import (
	"context"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/transport"
	"github.com/perdure/perdure/wire"
)

// shardLink is this client's side of one shard: which life of it is meant,
// whether that is open, and the updates that are not safe there yet.
type shardLink struct {
	id       perdure.ShardID
	epoch    perdure.Epoch
	gen      perdure.Generation
	peer     *peer
	open     bool // the server has said Opened for (gen, epoch) on the present connection
	kept     []*update
	counts   perdure.Counts // as acknowledged
	minClock perdure.Clock  // newest MinClock heard of

	// What earlier processes of the slot had done when this one first opened the
	// shard in this generation: its own updates of these clocks are ignored there.
	inherited perdure.Clock
	met       bool // that is known

	renewals []*get    // requests that go out with the next update
	building *update   // of the present clock, the last of kept; nil: none yet
	last     *reading  // of the newest answer
	free     []*update // to be used again

	subs    uint64    // how often it was said what is not pushed any more
	current *reading  // of the rows that are pushed: see reading.now
	joining []joining // rows that are pushed and have a reading of their own
	late    []joining // room for the next ones
}

// peer is a server's address and the connection to it.
type peer struct {
	addr   string
	cancel context.CancelFunc

	// Guarded by Client.mu.
	conn    transport.Conn  // nil while there is none
	batch   []wire.Frame    // to be sent by flush
	asked   int             // bytes of answers that are to come
	placing *get            // an answer to it is being received into its reader's memory
	placed  []chan struct{} // closed when that is over
}

// route is a way to a server: shards are spread over several connections where
// they are asked for.
type route struct {
	addr string
	lane int
}

// direct points a shard at its present holder. It needs c.mu.
func (c *Client) direct(sh *shardLink, sv *perdure.ShardView) {
	if sh.peer != nil && sh.peer.addr == sv.Addr && sh.epoch == sv.Epoch && sh.gen == c.generation {
		return
	}
	if sh.peer == nil || sh.peer.addr != sv.Addr {
		sh.peer = c.peer(route{sv.Addr, int(sh.id) % c.cfg.Connections})
	}
	for _, u := range sh.kept {
		u.again = u.again || u.sent > 0 // it may be queued for the former holder still
	}
	sh.epoch, sh.gen, sh.open = sv.Epoch, c.generation, false
	c.sendOpen(sh)
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
			c.mu.Lock()
			defer c.mu.Unlock()
			p.conn = conn
			for _, sh := range c.shards {
				if sh.peer == p {
					c.sendOpen(sh)
				}
			}
		},
		Frame: func(_ transport.Conn, f *wire.Frame) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.fromServer(p, f)
		},
		Down: func(_ transport.Conn, err error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			p.settle()
			p.conn = nil
			for _, sh := range c.shards {
				if sh.peer == p {
					sh.open = false
					c.endPushes(sh)
				}
			}
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

// dropPeers ends connections that no shard needs any more. It needs c.mu.
func (c *Client) dropPeers() {
	for to, p := range c.peers {
		if !slices.ContainsFunc(c.shards, func(sh *shardLink) bool { return sh.peer == p }) {
			p.cancel()
			delete(c.peers, to)
		}
	}
}

// send queues frames for a shard's server. A broken connection says so itself,
// and what it lost is sent again when the shard is opened anew. It needs c.mu.
func (sh *shardLink) send(frames ...wire.Frame) {
	if len(frames) > 0 && sh.peer != nil && sh.peer.conn != nil {
		_ = sh.peer.conn.Send(frames...)
	}
}

func (c *Client) shardFrame(sh *shardLink, kind wire.Kind) wire.Frame {
	return wire.Frame{Header: wire.Header{
		Kind: kind, Generation: sh.gen, Epoch: sh.epoch, Shard: sh.id, Slot: c.slot, Incarnation: c.incarnation,
	}}
}

// sendOpen asks for the shard's present life; all else waits for the answer.
func (c *Client) sendOpen(sh *shardLink) {
	sh.open = false
	c.endPushes(sh)
	sh.send(c.shardFrame(sh, wire.KindOpen))
}

// fromServer handles a frame from a server. It needs c.mu.
func (c *Client) fromServer(p *peer, f *wire.Frame) error {
	p.settle()
	if int(f.Shard) < 0 || int(f.Shard) >= len(c.shards) {
		return nil
	}
	sh := c.shards[f.Shard]
	if (sh.gen != f.Generation || sh.epoch != f.Epoch || sh.peer != p) && !c.cfg.WeakenedGenerations {
		return nil // of another life of the shard
	}
	switch f.Kind {
	case wire.KindOpened, wire.KindAck:
		counts, err := wire.ParseCounts(f.Payload)
		if err != nil {
			return err
		}
		sh.minClock = max(sh.minClock, f.Clock)
		if f.Kind == wire.KindOpened {
			sh.open = true
			sh.counts = counts
			if !sh.met {
				sh.met, sh.inherited = true, counts.Applied
			}
			c.keepStateSafe(sh)
		} else {
			sh.counts = perdure.Counts{
				Staged: max(sh.counts.Staged, counts.Staged), Ticked: max(sh.counts.Ticked, counts.Ticked),
				Applied: max(sh.counts.Applied, counts.Applied), Seen: max(sh.counts.Seen, counts.Seen),
			}
		}
		c.dropSafe(sh)
		if f.Kind == wire.KindOpened {
			c.resend(sh)
		}
		if c.finished {
			c.notify()
		}
		c.broadcast()
	case wire.KindRows:
		return c.onRows(sh, f)
	case wire.KindState:
		if g := c.gets[f.Request]; g != nil && g.kind == wire.KindLoad {
			if f.Flags&wire.FlagNone == 0 {
				g.batches[0].state = append([]byte{}, f.Payload...)
			}
			c.answered(g, false)
		}
	case wire.KindIDs:
		return c.onIDs(f)
	case wire.KindPush:
		return c.onPush(sh, f)
	case wire.KindMoved:
		c.sendOpen(sh)
	}
	return nil
}

// keepStateSafe sends the program's saved state again with the next update when
// its home shard has begin anew from rows that may lack it. It needs c.mu.
func (c *Client) keepStateSafe(sh *shardLink) {
	if c.view.Shards[sh.id].Lost && c.state != nil && sh.id == c.home() {
		c.stateDirty = true
	}
}

// dropSafe forgets the updates that are safe: under the strategies there are,
// those applied. Under vap what others cannot see yet is kept, too. It needs c.mu.
func (c *Client) dropSafe(sh *shardLink) {
	n := 0
	for n < len(sh.kept) && sh.kept[n].clock < sh.counts.Seen && !sh.kept[n].open && !sh.kept[n].held {
		c.keptBytes -= sh.kept[n].bytes
		sh.recycle(sh.kept[n])
		n++
	}
	sh.kept = slices.Delete(sh.kept, 0, n)
}

// lastEnded returns the newest kept update of a clock that is over, nil if there is
// none.
func (sh *shardLink) lastEnded() *update {
	for i := len(sh.kept) - 1; i >= 0; i-- {
		if !sh.kept[i].open {
			return sh.kept[i]
		}
	}
	return nil
}

// resend sends what the shard has not got, and asks again for what is wanted
// from it. It needs c.mu.
func (c *Client) resend(sh *shardLink) {
	for _, u := range sh.kept {
		switch {
		case u.held:
		case u.clock >= sh.counts.Staged:
			u.again = u.again || u.sent > 0
			sh.peer.batch = c.addUpdate(sh, u, 0, sh.peer.batch)
		case u.ticked && u.clock >= sh.counts.Ticked:
			sh.peer.batch = append(sh.peer.batch, c.tickFrame(sh, u.clock))
		}
	}
	for _, g := range c.gets {
		if g.shard == sh.id && g.asked {
			g.asked = false
			g.count(nil)
			c.queue = append(c.queue, g)
		}
	}
	sh.renewals = sh.renewals[:0] // they were among them
	c.pump()
}

func (c *Client) tickFrame(sh *shardLink, clock perdure.Clock) wire.Frame {
	f := c.shardFrame(sh, wire.KindTick)
	f.Clock = clock
	return f
}

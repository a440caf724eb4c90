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
	renewals []uint64       // requests that go out with the next update
	spare    [][]byte       // payloads to be used again
}

// update is one of this slot's updates to one shard, kept until it is safe.
type update struct {
	clock  perdure.Clock
	parts  [][]byte     // payloads
	blocks []wire.Block // what is in them, aliasing the payloads
	bytes  int64
	sends  int  // how often it was sent
	ticked bool // staged on all shards: to be applied whatever happens

	// Room for the one part and the one block that most updates have.
	onePart  [1][]byte
	oneBlock [1]wire.Block
}

func newUpdate(clock perdure.Clock) *update {
	u := &update{clock: clock}
	u.parts, u.blocks = u.onePart[:0], u.oneBlock[:0]
	return u
}

// peer is a server's address and the connection to it.
type peer struct {
	addr   string
	cancel context.CancelFunc
	conn   transport.Conn // nil while there is none; guarded by Client.mu
	batch  []wire.Frame   // room for eachPeer
}

// direct points a shard at its present holder. It needs c.mu.
func (c *Client) direct(sh *shardLink, sv *perdure.ShardView) {
	if sh.peer != nil && sh.peer.addr == sv.Addr && sh.epoch == sv.Epoch && sh.gen == c.generation {
		return
	}
	if sh.peer == nil || sh.peer.addr != sv.Addr {
		sh.peer = c.peer(sv.Addr)
	}
	sh.epoch, sh.gen, sh.open = sv.Epoch, c.generation, false
	c.sendOpen(sh)
}

// peer returns the peer at an address, connecting to it if need be. It needs c.mu.
func (c *Client) peer(addr string) *peer {
	if p := c.peers[addr]; p != nil {
		return p
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &peer{addr: addr, cancel: cancel}
	c.peers[addr] = p
	link := transport.Link{
		Network: c.cfg.Network, Addr: addr, Hello: c.hello,
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
			p.conn = nil
			for _, sh := range c.shards {
				if sh.peer == p {
					sh.open = false
				}
			}
			c.cfg.Log.Info("lost a server", "addr", addr, "err", err)
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
	for addr, p := range c.peers {
		if !slices.ContainsFunc(c.shards, func(sh *shardLink) bool { return sh.peer == p }) {
			p.cancel()
			delete(c.peers, addr)
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
	sh.send(c.shardFrame(sh, wire.KindOpen))
}

// fromServer handles a frame from a server. It needs c.mu.
func (c *Client) fromServer(p *peer, f *wire.Frame) error {
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
			c.keepStateSafe(sh)
		} else {
			sh.counts = perdure.Counts{
				Staged: max(sh.counts.Staged, counts.Staged), Ticked: max(sh.counts.Ticked, counts.Ticked),
				Applied: max(sh.counts.Applied, counts.Applied),
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
		return c.rows(sh, f)
	case wire.KindState:
		if g := c.gets[f.Request]; g != nil {
			g.state, g.done = slices.Clone(f.Payload), true
			if f.Flags&wire.FlagNone != 0 {
				g.state = nil
			}
			c.broadcast()
		}
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
// those applied. It needs c.mu.
func (c *Client) dropSafe(sh *shardLink) {
	n := 0
	for n < len(sh.kept) && sh.kept[n].clock < sh.counts.Applied {
		c.keptBytes -= sh.kept[n].bytes
		sh.recycle(sh.kept[n])
		n++
	}
	sh.kept = slices.Delete(sh.kept, 0, n)
}

// A shard keeps so many payloads, of so many bytes, to be used again.
const (
	mostSpare  = 4
	spareBytes = 256 << 10
)

// recycle keeps the payloads of an update that is safe. One that was sent again
// may still be queued on a connection.
func (sh *shardLink) recycle(u *update) {
	if u.sends == 1 && u.bytes <= spareBytes && len(u.blocks) > 0 && len(sh.spare)+len(u.parts) <= mostSpare {
		sh.spare = append(sh.spare, u.parts...)
	}
}

// resend sends what the shard has not got, and asks again for what is wanted
// from it. It needs c.mu.
func (c *Client) resend(sh *shardLink) {
	for _, u := range sh.kept {
		switch {
		case u.clock >= sh.counts.Staged:
			sh.send(c.addUpdate(sh, u, nil)...)
		case u.ticked && u.clock >= sh.counts.Ticked:
			sh.send(c.tickFrame(sh, u.clock))
		}
	}
	sh.renewals = sh.renewals[:0] // among those that follow
	for id, g := range c.gets {
		if g.shard == sh.id && !g.done {
			sh.send(c.getFrame(sh, id, g))
		}
	}
}

// addUpdate appends an update's frames.
func (c *Client) addUpdate(sh *shardLink, u *update, frames []wire.Frame) []wire.Frame {
	u.sends++
	for i, p := range u.parts {
		f := c.shardFrame(sh, wire.KindUpdate)
		f.Clock, f.Part, f.Parts, f.Payload = u.clock, uint16(i), uint16(len(u.parts)), p
		if u.ticked {
			f.Flags = wire.FlagTicked
		}
		frames = append(frames, f)
		c.stats.pushed += int64(wire.HeaderBytes + len(p))
	}
	return frames
}

func (c *Client) tickFrame(sh *shardLink, clock perdure.Clock) wire.Frame {
	f := c.shardFrame(sh, wire.KindTick)
	f.Clock = clock
	return f
}

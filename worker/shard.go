package worker

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/outbox"
	"github.com/perdure/perdure/internal/core/reads"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
)

// shardLink is this client's side of one shard: which life of it is meant, and whom
// it talks to about it.
//
// Updates and ticks go to the head of the shard's chain. All else goes to the
// replica that is read from, which also says what is staged, applied and safe: what
// it has acknowledged it shows. They may be one server, and are without followers.
type shardLink struct {
	id       perdure.ShardID
	epoch    perdure.Epoch
	gen      perdure.Generation
	head     *peer
	headOpen bool          // it has said Opened for (gen, epoch) on the present connection
	reader   *peer         // to the replica that is read from
	open     bool          // likewise
	next     *peer         // to who joins the chain, and may be read from soon; nil: nobody
	out      *outbox.Shard // what it is to get
	outage
	rest rest

	rows *reads.Shard // what was read of it
}

// closed notes that the replica that is read from does not answer for the shard's present
// life, until it has said Opened. It needs c.mu.
func (c *Client) closed(sh *shardLink) {
	sh.open = false
	c.reads.Closed(sh.rows)
}

// direct points a shard at its present head, and at the replica to read from. It
// needs c.mu.
func (c *Client) direct(sh *shardLink, sv *perdure.ShardView) {
	head, reader := sh.head, sh.reader // of a shard that nobody has now nobody answers for this life
	lane := int(sh.id) % c.cfg.Connections
	if sh.next = nil; sv.Joining != nil && !c.traits.Early {
		sh.next = c.peer(route{sv.Joining.Addr, lane}) // now, since nobody waits for it yet
	}
	if sv.Replicas() > 0 {
		reader = c.peer(route{c.readsFrom(sh, sv).Addr, lane})
		if head = reader; !c.cfg.Observer && !c.logs() { // who has no updates for it needs no head
			head = c.peer(route{sv.Addr, lane})
		}
	}
	if sh.head == head && sh.reader == reader && sh.epoch == sv.Epoch && sh.gen == c.generation {
		return
	}
	sh.out.Redirect()
	sh.head, sh.reader, sh.epoch, sh.gen = head, reader, sv.Epoch, c.generation
	if reader != nil {
		c.reads.Direct(sh.rows, &reader.answers, sh.epoch)
	}
	if head != nil {
		c.sendOpen(sh, head)
	}
	if reader != head {
		c.sendOpen(sh, reader)
	}
}

// readsFrom chooses the member of a shard's chain that this client reads from. A
// head that acknowledges early is ahead of all others. Else, where who knows first
// or knows all is wanted, that is the tail; and where not, the slots spread over the
// members, and an observer reads as slot 0 does. It needs c.mu.
func (c *Client) readsFrom(sh *shardLink, sv *perdure.ShardView) perdure.Holder {
	switch {
	case c.traits.Early:
		return sv.Holder
	case c.job.TailReads(c.view.Tables):
		return sv.Tail()
	}
	return sv.Replica((int(max(c.slot, 0)) + int(sh.id)) % sv.Replicas())
}

// header is what all frames about a shard have in common.
func (c *Client) header(sh *shardLink) wire.Header {
	return wire.Header{Generation: sh.gen, Epoch: sh.epoch, Shard: sh.id, Slot: c.slot, Incarnation: c.incarnation}
}

func (c *Client) shardFrame(sh *shardLink, kind wire.Kind) wire.Frame {
	f := wire.Frame{Header: c.header(sh)}
	f.Kind = kind
	return f
}

// sendOpen asks the shard's head, the replica that is read from, or whoever is both,
// for the shard's present life; all else to it waits for the answer. It needs c.mu.
func (c *Client) sendOpen(sh *shardLink, to *peer) {
	f := c.shardFrame(sh, wire.KindOpen)
	if f.Clock = c.out.Clock(); c.out.Phase() == outbox.Rolled || c.slot < 0 {
		f.Clock = 0 // nothing is in this generation of it
	}
	if to == sh.head {
		sh.headOpen = false
	}
	if to == sh.reader {
		c.closed(sh)
		c.carryOut()
	} else {
		f.Flags = wire.FlagWrites
	}
	c.post(to, f)
}

// fromServer handles a frame from a server. It needs c.mu.
func (c *Client) fromServer(p *peer, f *wire.Frame) error {
	c.settle(p)
	if int(f.Shard) < 0 || int(f.Shard) >= len(c.shards) {
		return nil
	}
	sh := c.shards[f.Shard]
	writes, reads := p == sh.head, p == sh.reader
	if c.cfg.WeakenedGenerations {
		writes, reads = true, true
	} else if sh.gen != f.Generation || sh.epoch != f.Epoch {
		return nil // of another life of the shard
	}
	switch {
	case f.Kind == wire.KindMoved && sh.uses(p):
		c.sendOpen(sh, p)
	case f.Kind == wire.KindOpened && (writes || reads):
		return c.onOpened(sh, f, writes, reads)
	case !reads: // who only takes updates has no say in what is read, or safe
	case f.Kind == wire.KindAck:
		return c.onAck(sh, f)
	case f.Kind == wire.KindRows:
		return c.taken(c.reads.Take(sh.rows, f, c.out))
	case f.Kind == wire.KindState:
		c.reads.TakeState(f)
		c.carryOut()
	case f.Kind == wire.KindEcho:
		c.onEcho(sh, f)
	case f.Kind == wire.KindIDs:
		return c.taken(c.reads.TakeIDs(f))
	case f.Kind == wire.KindPush:
		return c.taken(c.reads.TakePush(sh.rows, f, c.out))
	}
	return nil
}

// onOpened goes on with a shard: with what it is to be sent, where its head has
// answered, with all else, where the replica that is read from has. It needs c.mu.
func (c *Client) onOpened(sh *shardLink, f *wire.Frame, writes, reads bool) error {
	counts, err := wire.ParseCounts(f.Payload)
	if err != nil {
		return err
	}
	if reads && c.isBack(sh, counts) {
		err := updatelog.Damaged(updatelog.StreamName(c.job.ID, int(sh.id)), "shard %d has %d clocks of slot %d where it had %d: the log has lost some, or is another one",
			sh.id, counts.Applied, c.slot, sh.out.Counts().Applied)
		c.done.Go(func() { c.logFails(err) })
		return nil
	}
	if reads {
		sh.open = true
		sh.rest.opened, sh.rest.opens = time.Now(), sh.rest.opens+1
		sh.out.Opened(counts, c.view.Shards[sh.id].Lost)
		c.acknowledged(sh, f.Clock)
	}
	if writes {
		sh.headOpen = true
		sh.out.HeadHas(counts.Applied)
	}
	if writes && !c.logs() {
		if sh.head.batch, err = sh.out.Resend(counts, c.header(sh), sh.head.batch); err != nil {
			c.err = err
			c.broadcast()
		}
	}
	if reads {
		c.tellsEnded(sh)
		c.askAgain(sh)
	}
	if sh.open && sh.headOpen {
		c.answers(sh)
	}
	c.flush()
	return nil
}

// onAck takes the word of the replica that is read from of how far this slot's
// updates have come. It needs c.mu.
func (c *Client) onAck(sh *shardLink, f *wire.Frame) error {
	counts, err := wire.ParseCounts(f.Payload)
	if err != nil {
		return err
	}
	if counts.Applied > sh.out.Counts().Applied {
		c.learns(sh)
		c.answers(sh)
	}
	sh.out.Ack(counts)
	c.acknowledged(sh, f.Clock)
	return nil
}

// acknowledged follows up on a shard's new counts and MinClock. It needs c.mu.
func (c *Client) acknowledged(sh *shardLink, minClock perdure.Clock) {
	sh.rows.Heard(minClock)
	if sh.out.Behind() {
		c.feed(sh)
		c.flush()
	}
	if c.out.Crowds() || c.out.IsLast() {
		c.notify()
	}
	c.broadcast()
}

// askAgain asks the replica that is read from for what is wanted of it. It needs
// c.mu.
func (c *Client) askAgain(sh *shardLink) {
	if sh.out.Awaited() {
		sh.reader.batch = append(sh.reader.batch, c.syncFrame(sh)) // what was asked of another is forgotten
	}
	c.reads.Opened(sh.rows)
	c.carryOut()
}

// syncFrame asks to be told at once when what this slot has done is applied.
func (c *Client) syncFrame(sh *shardLink) wire.Frame {
	f := c.shardFrame(sh, wire.KindSync)
	f.Clock = c.out.Clock()
	return f
}

// feed makes ready to leave what a shard's head has not been sent. It needs c.mu.
func (c *Client) feed(sh *shardLink) {
	if sh.headOpen {
		sh.head.batch = sh.out.Feed(c.header(sh), sh.head.batch)
	}
}

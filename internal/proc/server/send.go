package server

import (
	"errors"
	"fmt"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// A server without a replica's rows receives them as a snapshot. The snapshot has its own connection, so that log
// entries do not queue after it, and updates and reads continue in the meantime. A [shardCopy] is sent; an
// [incomingCopy] is received.
//
// The sender reads rows piece by piece from table memory and locks the replica for one piece at a time. The receiver
// writes them to their final location. Each piece is sent after the previous one was acknowledged, so the sender never
// gets far ahead of a receiver that also serves readers.
//
// Neither side depends on type shard. The sender checks under the shard's lock whether the generation and epoch of the
// copy (link.Name) are still current. The receiver's caller decides which snapshot is wanted.

// pieceBytes is the size of one piece of a snapshot. piecesAhead is the maximum number of unacknowledged pieces. Both
// are small, so that other work waits for at most one piece.
const (
	pieceBytes  = 512 << 10
	piecesAhead = 1
)

// copyCapacity is the capacity of one peer for concurrent snapshots, and minCopyShare the smallest share that one
// snapshot takes. Small snapshots therefore need not wait for each other's acknowledgements, which are slow on a busy
// machine. Of a large snapshot, at most one piece is in flight.
const (
	copyCapacity = pieceBytes
	minCopyShare = copyCapacity / 32
)

// copyShareOf returns the share of copyCapacity that a snapshot with that many bytes of rows takes.
func copyShareOf(bytes int64) int64 { return min(max(bytes, minCopyShare), copyCapacity) }

// errMoved means that the shard's generation or epoch has changed since the copy was requested. The current one
// requests another copy if it needs one.
var errMoved = errors.New("copies: the shard has moved")

// copySource is the source of a copy.
type copySource struct {
	Name    chain.Fence // the generation and epoch of the copy
	Lock    sync.Locker
	Moved   func() bool // reports whether these have changed; called with Lock held
	Buffers *frameBuffers
}

// shardCopy is a snapshot that is being sent.
type shardCopy struct {
	from         copySource
	conn         transport.Conn
	pos          uint64
	head         []byte            // the part of the head that is not sent yet
	rows         []*table.Snapshot // guarded by Lock, like their tables
	rowBytesLeft int64             // bytes of rows that are not sent yet
	nextPiece    uint16            // number of the next piece, modulo 2^16
	nextAck      uint16            // number of the next piece to be acknowledged
	bytes        int64             // bytes sent
}

// newShardCopyLocked starts a copy of a replica's state at a log position. The caller must hold from.Lock.
func newShardCopyLocked(from copySource, st *replica.State, pos uint64) *shardCopy {
	snap := st.Snapshot(replica.LogProgress{})
	return &shardCopy{from: from, pos: pos, head: snap.Header, rows: snap.Rows, rowBytesLeft: snap.Bytes}
}

// Send sends the copy, waits until the receiver has all of it, and returns the number of bytes. errMoved means that the
// copy is no longer wanted.
func (c *shardCopy) Send(conn transport.Conn) (bytes int64, err error) {
	c.conn = conn
	defer c.close()
	if err = c.sendHead(); err == nil {
		err = c.sendRows()
	}
	if err == nil {
		err = c.waitForAcks(1) // until all pieces are acknowledged
	}
	return c.bytes, err
}

// close stops preserving old row values for the copy.
func (c *shardCopy) close() {
	c.from.Lock.Lock()
	defer c.from.Lock.Unlock()
	for _, rows := range c.rows {
		rows.Close()
	}
}

func (c *shardCopy) sendHead() error {
	for more := true; more; {
		n := min(len(c.head), pieceBytes)
		b := c.head[:n]
		c.head, more = c.head[n:], n < len(c.head)
		flags := wire.FlagNone
		if !more {
			flags |= wire.FlagLast
		}
		if err := c.waitForAcks(piecesAhead); err != nil {
			return err
		}
		if err := c.conn.Send(c.frame(flags, b)); err != nil {
			return err
		}
	}
	return nil
}

func (c *shardCopy) sendRows() error {
	for more := true; more; {
		err := c.waitForAcks(piecesAhead)
		if err == nil {
			more, err = c.sendPiece()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// waitForAcks waits until fewer than n pieces are in flight.
func (c *shardCopy) waitForAcks(n uint16) error {
	var f wire.Frame
	for c.nextPiece-c.nextAck >= n {
		if err := c.conn.Recv(&f); err != nil {
			return err
		}
		if f.Kind != wire.KindHave || f.Part != c.nextAck {
			return fmt.Errorf("copies: snapshot piece %d was answered with a frame of kind %d for piece %d",
				c.nextAck, f.Kind, f.Part)
		}
		c.nextAck++
	}
	return nil
}

// frame builds the frame of the next piece.
func (c *shardCopy) frame(flags uint16, body []byte) wire.Frame {
	n := &c.from.Name
	f := wire.Frame{Header: wire.Header{
		Kind: wire.KindSnapshot, Flags: flags, Generation: n.Generation, Epoch: n.Epoch,
		Shard: n.Shard, Slot: perdure.NoSlot, Request: c.pos, Part: c.nextPiece,
	}, Body: body}
	c.nextPiece++
	c.bytes += int64(len(body))
	return f
}

// sendPiece sends the next rows from table memory. The shard pauses while the network accepts what it can without
// blocking. Rows that updates have changed since the start of the copy are sent with their old values.
func (c *shardCopy) sendPiece() (more bool, err error) {
	a := c.from.Buffers.Answer(0)
	c.from.Lock.Lock()
	defer c.from.Lock.Unlock()
	if c.from.Moved() {
		a.Release()
		return false, errMoved
	}
	var b []byte
	var live bool
	for len(c.rows) > 0 && len(b) == 0 {
		b, live = c.rows[0].Next(pieceBytes, a.CopyBuffer)
		if len(b) == 0 {
			c.rows[0].Close()
			c.rows = c.rows[1:]
		}
	}
	c.rowBytesLeft -= int64(len(b))
	flags := uint16(0)
	if c.rowBytesLeft == 0 {
		flags = wire.FlagLast
	}
	f := c.frame(flags, b)
	f.Lent, f.Release = live, a
	return c.rowBytesLeft > 0, c.conn.TrySend(f)
}

package server

import (
	"errors"
	"fmt"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/link"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// A server that lacks a replica's rows receives them as a snapshot. The snapshot has a connection of its own, so that
// entries of the log do not queue behind it, and updates and reads continue meanwhile. A [shardCopy] is sent, an
// [incomingCopy] is received.
//
// The sender reads rows piece by piece from where they lie, and locks the replica for one piece at a time. The receiver
// writes them to where they stay. A piece is sent when the one before has been taken in, so that the sender is never
// far ahead of a receiver that also has readers to serve.
//
// Neither side knows the shard around the replica. The sender asks, under the shard's lock, whether the life of the
// shard that it copies (link.Name) still lasts; the receiver is told what is wanted.

// pieceBytes is how much of a snapshot is sent at once, and piecesAhead how many pieces are sent
// ahead of what the receiver says it has taken in. Both are small: nobody waits for more than a piece.
const (
	pieceBytes  = 512 << 10
	piecesAhead = 1
)

// copyRoom is what snapshots to one server may take side by side, and leastRoom what each counts at
// least. So small ones need not wait for each other's answers, which a busy machine makes slow, and
// no more is on its way than one piece of a large one.
const (
	copyRoom  = pieceBytes
	leastRoom = copyRoom / 32
)

// copyRoomOf is what a snapshot takes of Room, by the bytes of its rows.
func copyRoomOf(bytes int64) int64 { return min(max(bytes, leastRoom), copyRoom) }

// errMoved means that the shard is not in the life that a copy is of any more: its successor, if it
// has one, is asked anew.
var errMoved = errors.New("copies: the shard has moved")

// copySource is what a copy is made of.
type copySource struct {
	Name    link.Name // the life that the copy is of
	Lock    sync.Locker
	Moved   func() bool // that life has ended; it is asked with the lock
	Buffers *frameBuffers
}

// shardCopy is a snapshot that is being sent.
type shardCopy struct {
	from  copySource
	conn  transport.Conn
	pos   uint64
	words []byte            // the head
	rows  []*table.Snapshot // guarded by the lock, as what they are of
	left  int64             // bytes of rows
	part  uint16            // the next piece's number, modulo 2^16
	taken uint16            // the next piece's that the receiver will have taken in
	bytes int64             // sent
}

// beginCopy begins a copy of a replica's state, at a position of its log. It needs the lock.
func beginCopy(from copySource, st *replica.State, pos uint64) *shardCopy {
	snap := st.Snapshot(replica.Life{})
	return &shardCopy{from: from, pos: pos, words: snap.Words, rows: snap.Rows, left: snap.Bytes}
}

// Send sends the copy, until the receiver has all of it, and returns how many bytes that were.
// errMoved means that nobody wants it any more.
func (c *shardCopy) Send(conn transport.Conn) (bytes int64, err error) {
	c.conn = conn
	defer c.close()
	if err = c.sendHead(); err == nil {
		err = c.sendRows()
	}
	if err == nil {
		err = c.turn(1) // until it has all
	}
	return c.bytes, err
}

// close ends what updates do for the copy.
func (c *shardCopy) close() {
	c.from.Lock.Lock()
	defer c.from.Lock.Unlock()
	for _, rows := range c.rows {
		rows.Close()
	}
}

func (c *shardCopy) sendHead() error {
	for more := true; more; {
		n := min(len(c.words), pieceBytes)
		b := c.words[:n]
		c.words, more = c.words[n:], n < len(c.words)
		flags := wire.FlagNone
		if !more {
			flags |= wire.FlagLast
		}
		if err := c.turn(piecesAhead); err != nil {
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
		err := c.turn(piecesAhead)
		if err == nil {
			more, err = c.sendPiece()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// turn waits until fewer than n pieces are on their way.
func (c *shardCopy) turn(n uint16) error {
	var f wire.Frame
	for c.part-c.taken >= n {
		if err := c.conn.Recv(&f); err != nil {
			return err
		}
		if f.Kind != wire.KindHave || f.Part != c.taken {
			return fmt.Errorf("copies: piece %d of a snapshot was answered with a frame of kind %d, of piece %d",
				c.taken, f.Kind, f.Part)
		}
		c.taken++
	}
	return nil
}

// frame makes the next piece.
func (c *shardCopy) frame(flags uint16, body []byte) wire.Frame {
	n := &c.from.Name
	f := wire.Frame{Header: wire.Header{
		Kind: wire.KindSnapshot, Flags: flags, Generation: n.Generation, Epoch: n.Epoch,
		Shard: n.Shard, Slot: perdure.NoSlot, Request: c.pos, Part: c.part,
	}, Body: body}
	c.part++
	c.bytes += int64(len(body))
	return f
}

// sendPiece sends the next rows from where they lie: the shard stands still while the network takes
// what it takes at once. What updates have changed meanwhile is sent as it was.
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
		b, live = c.rows[0].Next(pieceBytes, a.Copied)
		if len(b) == 0 {
			c.rows[0].Close()
			c.rows = c.rows[1:]
		}
	}
	c.left -= int64(len(b))
	flags := uint16(0)
	if c.left == 0 {
		flags = wire.FlagLast
	}
	f := c.frame(flags, b)
	f.Lent, f.Release = live, a
	return c.left > 0, c.conn.TrySend(f)
}

package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/link"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// A snapshot goes to a replica that lacks it over a connection of its own, so that the log's
// entries need not queue behind it, and while updates and reads go on: rows are sent piece by
// piece from where they lie, and the shard is locked for one piece at a time.

// snapshotPiece is how much of a snapshot is sent at once, and piecesAhead how many pieces
// are sent ahead of what the receiver says it has taken in. As long as it has nothing to
// do, a process looks after those who read from it, so both are small: nobody waits for
// more than a piece, and neither side is ever far ahead.
const (
	snapshotPiece = 512 << 10
	piecesAhead   = 1
)

// snapshot is what is being sent.
type snapshot struct {
	sh    *shard
	name  link.Name
	tc    transport.Conn
	pos   uint64
	words []byte            // the head
	rows  []*table.Snapshot // guarded by sh.mu, as what they are of
	left  int64             // bytes of rows
	part  uint16            // the next piece's number, modulo 2^16
	taken uint16            // the next piece's that the receiver will have taken in
	bytes int64             // sent
}

// copyRoom is what snapshots to one server may take side by side, and leastCopy what each
// counts at least. So small ones need not wait for each other's answers, which a busy
// machine makes slow, and no more is on its way than one piece of a large one. Who came
// first goes first: a large one is not overtaken by small ones for ever.
const (
	copyRoom  = snapshotPiece
	leastCopy = copyRoom / 32
)

// roomOf is what a snapshot takes of copyRoom, by the bytes of its rows.
func roomOf(bytes int64) int64 { return min(max(bytes, leastCopy), copyRoom) }

// copyPause is when a snapshot that could not be sent is tried again.
const copyPause = 100 * time.Millisecond

// copyTo sends a peer a snapshot, in a goroutine of its own, in its turn. It needs
// sh.mu.
func (sh *shard) copyTo(p *peer) {
	name, room := sh.name, roomOf(sh.rep.State.Bytes())
	sh.s.wg.Go(func() {
		if p.copying.Acquire(sh.s.ctx, room) != nil {
			return // the server ends
		}
		err := sh.sendSnapshot(p, name)
		p.copying.Release(room)
		if err == nil || sh.s.ctx.Err() != nil {
			return
		}
		sh.s.cfg.Log.Warn("cannot send a snapshot now", "shard", sh.id, "to", p.addr, "err", err)
		select {
		case <-sh.s.ctx.Done():
		case <-time.After(copyPause):
			sh.relink(p)
		}
	})
}

// errMoved means that the shard is not in the life that a snapshot is of any more: its
// successor, if it has one, is asked anew.
var errMoved = errors.New("server: the shard has moved")

// sendSnapshot connects to a peer, and sends it the shard's state if the shard is still
// in the life of that name.
func (sh *shard) sendSnapshot(p *peer, name link.Name) error {
	s := sh.s
	begin := time.Now()
	tc, err := transport.Call(p.ctx, s.cfg.Network, p.addr, s.hello())
	if err != nil {
		return err
	}
	defer tc.Close()
	defer context.AfterFunc(p.ctx, func() { tc.Close() })()
	snap, err := sh.snapshot(tc, name)
	if err == nil {
		err = snap.send()
		snap.close()
	}
	if errors.Is(err, errMoved) {
		return nil
	}
	if err != nil {
		return err
	}
	s.cfg.Log.Info("sent a snapshot", "shard", sh.id, "to", p.addr, "bytes", snap.bytes, "seconds",
		time.Since(begin).Seconds())
	return nil
}

// snapshot begins a snapshot of the shard as it is.
func (sh *shard) snapshot(tc transport.Conn, name link.Name) (*snapshot, error) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	snap := &snapshot{sh: sh, name: name, tc: tc}
	if snap.moved() {
		return nil, errMoved
	}
	state := sh.rep.State.Snapshot(replica.Life{})
	snap.words, snap.rows, snap.left = state.Words, state.Rows, state.Bytes
	snap.pos = sh.link.Log().Applied()
	return snap, nil
}

// moved reports whether the shard's life has ended that the snapshot is of. It needs
// sh.mu.
func (snap *snapshot) moved() bool { return snap.sh.name != snap.name || snap.sh.retired() }

// close ends what the shard's updates do for the snapshot.
func (snap *snapshot) close() {
	snap.sh.mu.Lock()
	defer snap.sh.mu.Unlock()
	for _, rows := range snap.rows {
		rows.Close()
	}
}

func (snap *snapshot) send() error {
	for head := true; head; {
		n := min(len(snap.words), snapshotPiece)
		b := snap.words[:n]
		snap.words, head = snap.words[n:], n < len(snap.words)
		flags := wire.FlagNone
		if !head {
			flags |= wire.FlagLast
		}
		if err := snap.turn(piecesAhead); err != nil {
			return err
		}
		if err := snap.tc.Send(snap.frame(flags, b)); err != nil {
			return err
		}
	}
	for more := true; more; {
		err := snap.turn(piecesAhead)
		if err == nil {
			more, err = snap.sendRows()
		}
		if err != nil {
			return err
		}
	}
	return snap.turn(1) // until it has all
}

// turn waits until fewer than n pieces are on their way.
func (snap *snapshot) turn(n uint16) error {
	var f wire.Frame
	for snap.part-snap.taken >= n {
		if err := snap.tc.Recv(&f); err != nil {
			return err
		}
		if f.Kind != wire.KindHave || f.Part != snap.taken {
			return fmt.Errorf("server: piece %d of a snapshot was answered with a frame of kind %d, of piece %d",
				snap.taken, f.Kind, f.Part)
		}
		snap.taken++
	}
	return nil
}

// frame makes the next piece.
func (snap *snapshot) frame(flags uint16, body []byte) wire.Frame {
	f := wire.Frame{Header: wire.Header{
		Kind: wire.KindSnapshot, Flags: flags, Generation: snap.name.Generation, Epoch: snap.name.Epoch,
		Shard: snap.sh.id, Slot: perdure.NoSlot, Request: snap.pos, Part: snap.part,
	}, Body: body}
	snap.part++
	snap.bytes += int64(len(body))
	return f
}

// sendRows sends the next rows from where they lie: the shard stands still while the
// network takes what it takes at once. What updates have changed meanwhile is sent as it
// was.
func (snap *snapshot) sendRows() (more bool, err error) {
	sh := snap.sh
	a := sh.s.buffers.Answer(0)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if snap.moved() {
		a.Release()
		return false, errMoved
	}
	var b []byte
	var live bool
	for len(snap.rows) > 0 && len(b) == 0 {
		b, live = snap.rows[0].Next(snapshotPiece, a.Copied)
		if len(b) == 0 {
			snap.rows[0].Close()
			snap.rows = snap.rows[1:]
		}
	}
	snap.left -= int64(len(b))
	flags := uint16(0)
	if snap.left == 0 {
		flags = wire.FlagLast
	}
	f := snap.frame(flags, b)
	f.Lent, f.Release = live, a
	return snap.left > 0, snap.tc.TrySend(f)
}

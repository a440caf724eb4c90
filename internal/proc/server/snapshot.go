package server

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// A snapshot is a shard's whole state at a position of its log, on its way to a
// replica that lacks it. It goes over a connection of its own, so that the log's entries
// need not queue behind it, and while updates and reads go on: rows are sent piece by
// piece from where they lie, and the shard is locked for one piece at a time.
//
// First comes the head: its size in 8 bytes, JSON, what slots have saved, and the parts
// of the updates that are not applied yet. Then the rows, as a table.Snapshot gives them.
type snapshotHead struct {
	Seq      uint64            `json:"seq"`
	Cut      perdure.Clock     `json:"cut"`               // the newest that it has gone on after
	Writing  perdure.Clock     `json:"writing,omitempty"` // one that it has gone on after, and that is not known to be saved
	End      perdure.Clock     `json:"end"`
	Named    perdure.Clock     `json:"named,omitempty"`
	Segments []perdure.Segment `json:"segments,omitempty"`
	States   []int             `json:"states"` // by slot: bytes that it has saved; -1: nothing
	Tables   []snapshotTable   `json:"tables"`
	Intake   consistency.State `json:"intake"`
	// Of an update log: the newest epoch that has begun in it, and how many facts of
	// that one are in the state.
	Life  perdure.Epoch `json:"life,omitempty"`
	Facts uint64        `json:"facts,omitempty"`
}

type snapshotTable struct {
	Spec perdure.TableSpec `json:"spec"`
	Rows int               `json:"rows"` // that the shard holds
}

// pieceBytes is how much of a snapshot is sent at once, and piecesAhead how many pieces
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
	name  shardName
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

// roomOf is what a snapshot of so many bytes takes of copyRoom.
func roomOf(bytes int64) int64 { return min(max(bytes, leastCopy), copyRoom) }

// copyPause is when a snapshot that could not be sent is tried again.
const copyPause = 100 * time.Millisecond

// copyTo sends a peer a snapshot, in a goroutine of its own, in its turn. It needs
// sh.mu.
func (sh *shard) copyTo(p *peer) {
	name, room := sh.name, roomOf(sh.rowBytes())
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

// rowBytes returns about how many bytes of rows there are. It needs sh.mu.
func (sh *shard) rowBytes() (n int64) {
	for _, p := range sh.parts {
		_, all := p.ChangedBytes()
		n += all
	}
	return n
}

// errMoved means that the shard is not in the life that a snapshot is of any more: its
// successor, if it has one, is asked anew.
var errMoved = errors.New("server: the shard has moved")

// sendSnapshot connects to a peer, and sends it the shard's state if the shard is still
// in the life of that name.
func (sh *shard) sendSnapshot(p *peer, name shardName) error {
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
	s.cfg.Log.Info("sent a snapshot", "shard", sh.id, "to", p.addr, "bytes", snap.bytes, "seconds", time.Since(begin).Seconds())
	return nil
}

// snapshot begins a snapshot of the shard as it is.
func (sh *shard) snapshot(tc transport.Conn, name shardName) (*snapshot, error) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	snap := &snapshot{sh: sh, name: name, tc: tc}
	if snap.moved() {
		return nil, errMoved
	}
	snap.words, snap.rows, snap.left = sh.picture()
	snap.pos = sh.log.Applied()
	return snap, nil
}

// picture returns the shard as it is: the head of a snapshot, and the rows, whose bytes
// it counts. The rows' snapshots are to be closed. It needs sh.mu.
func (sh *shard) picture() (words []byte, rows []*table.Snapshot, size int64) {
	head := snapshotHead{Seq: sh.seq, Cut: sh.cut, Writing: sh.writing, End: sh.schedule.End, Named: sh.schedule.Named, Segments: sh.segments, Intake: sh.intake.State()}
	if sh.stream != nil {
		head.Life, head.Facts = sh.stream.life, sh.stream.facts
	}
	var bulk [][]byte
	for _, state := range sh.states {
		head.States, bulk = append(head.States, sizeOf(state)), append(bulk, state)
	}
	for _, s := range head.Intake.Slots {
		for _, u := range s.Pending {
			bulk = append(bulk, u.Parts...)
		}
	}
	for _, p := range sh.parts {
		r := p.Snapshot()
		rows, size = append(rows, r), size+r.Bytes()
		head.Tables = append(head.Tables, snapshotTable{p.Spec, r.Rows()})
	}
	b, err := json.Marshal(&head)
	if err != nil { // it is plain data
		panic(fmt.Sprintf("server: encode a snapshot: %v", err))
	}
	words = append(binary.LittleEndian.AppendUint64(nil, uint64(len(b))), b...)
	for _, b := range bulk {
		words = append(words, b...)
	}
	return words, rows, size
}

// sizeOf returns the length of b, -1 of nil.
func sizeOf(b []byte) int {
	if b == nil {
		return -1
	}
	return len(b)
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
			return fmt.Errorf("server: piece %d of a snapshot was answered with a frame of kind %d, of piece %d", snap.taken, f.Kind, f.Part)
		}
		snap.taken++
	}
	return nil
}

// frame makes the next piece.
func (snap *snapshot) frame(flags uint16, body []byte) wire.Frame {
	f := wire.Frame{Header: wire.Header{
		Kind: wire.KindSnapshot, Flags: flags, Generation: snap.name.generation, Epoch: snap.name.epoch,
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
	a := sh.s.buffers.answer(0)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if snap.moved() {
		a.Release()
		return false, errMoved
	}
	var b []byte
	var live bool
	for len(snap.rows) > 0 && len(b) == 0 {
		b, live = snap.rows[0].Next(snapshotPiece, a.copied)
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

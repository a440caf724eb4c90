package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/checkpoint"
	"github.com/perdure/perdure/consistency"
	"github.com/perdure/perdure/table"
	"github.com/perdure/perdure/transport"
	"github.com/perdure/perdure/wire"
)

// A snapshot is a shard's whole state at a position of its log, on its way to a
// replica that lacks it: the size of the head in 8 bytes, the head as JSON, the parts
// of the updates that are not applied yet, and the rows as a checkpoint's segment has
// them. It is sent in pieces, over a connection of its own, so that the log's entries
// need not queue behind it.
type snapshotHead struct {
	Cut      perdure.Clock     `json:"cut"` // the newest that is saved
	End      perdure.Clock     `json:"end"`
	Segments []perdure.Segment `json:"segments,omitempty"`
	Intake   consistency.State `json:"intake"`
	Rows     int64             `json:"rows"` // bytes of the segment
}

// snapshot is a shard's state, copied.
type snapshot struct {
	name  shardName
	pos   uint64
	head  snapshotHead
	state *checkpoint.Segment
}

// snapshot copies the shard's state, into room as far as that fits. It needs sh.mu.
func (sh *shard) snapshot(room []table.Image) *snapshot {
	state := sh.segment()
	for i := range state.Tables {
		var to table.Image
		if i < len(room) {
			to = room[i]
		}
		state.Tables[i].Image = state.Tables[i].Image.Clone(to)
	}
	return &snapshot{
		name: sh.name, pos: sh.log.Applied(), state: state,
		head: snapshotHead{Cut: sh.cut, End: sh.end, Segments: append([]perdure.Segment(nil), sh.segments...), Intake: sh.intake.State()},
	}
}

// copyPause is when a snapshot that could not be sent is tried again.
const copyPause = 100 * time.Millisecond

// copyTo sends a peer a snapshot, in a goroutine of its own, one after the other. It
// needs sh.mu.
func (sh *shard) copyTo(p *peer) {
	name := sh.name
	sh.s.wg.Go(func() {
		select {
		case p.copying <- struct{}{}:
		case <-sh.s.ctx.Done():
			return
		}
		err := sh.sendSnapshot(p, name)
		<-p.copying
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

// room returns memory for a copy of the rows: the shard need not stand still while it
// is got.
func (sh *shard) room() (room []table.Image) {
	sh.mu.Lock()
	var now []table.Image
	for _, p := range sh.parts {
		now = append(now, p.Image())
	}
	sh.mu.Unlock()
	for _, img := range now {
		room = append(room, img.Room()) // only looks at lengths
	}
	return room
}

// sendSnapshot connects to a peer, and sends it the shard's state if the shard is still
// in the life of that name.
func (sh *shard) sendSnapshot(p *peer, name shardName) error {
	room := sh.room()
	sh.mu.Lock()
	if sh.name != name || sh.retired() {
		sh.mu.Unlock()
		return nil // its successor, if it has one, is asked anew
	}
	snap := sh.snapshot(room)
	sh.mu.Unlock()

	s := sh.s
	begin := time.Now()
	tc, err := transport.Call(p.ctx, s.cfg.Network, p.addr, s.hello())
	if err != nil {
		return err
	}
	defer tc.Close()
	defer context.AfterFunc(p.ctx, func() { tc.Close() })()
	w := &pieces{sh: sh, tc: tc, snap: snap}
	if err := snap.write(w); err != nil {
		return err
	}
	if err := w.end(); err != nil {
		return err
	}
	var f wire.Frame
	if err := tc.Recv(&f); err != nil {
		return err
	}
	if f.Kind != wire.KindHave {
		return fmt.Errorf("server: a snapshot was answered with a frame of kind %d", f.Kind)
	}
	s.cfg.Log.Info("sent a snapshot", "shard", sh.id, "to", p.addr, "bytes", w.bytes, "seconds", time.Since(begin).Seconds())
	return nil
}

// write writes the snapshot's bytes.
func (snap *snapshot) write(w io.Writer) error {
	var err error
	if snap.head.Rows, err = checkpoint.EncodedBytes(snap.state); err != nil {
		return err
	}
	head, err := json.Marshal(&snap.head)
	if err != nil {
		return err
	}
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(head)))
	if _, err := w.Write(append(out, head...)); err != nil {
		return err
	}
	for i := range snap.head.Intake.Slots {
		for _, u := range snap.head.Intake.Slots[i].Pending {
			for _, part := range u.Parts {
				if _, err := w.Write(part); err != nil {
					return err
				}
			}
		}
	}
	return checkpoint.Encode(w, snap.state)
}

// pieces sends what is written to it as frames.
type pieces struct {
	sh    *shard
	tc    transport.Conn
	snap  *snapshot
	piece []byte // that is being filled
	part  uint16 // its number, modulo 2^16
	bytes int64
}

// sentPiece gives a piece's memory back when it is on its way.
type sentPiece struct {
	from  *buffers
	bytes []byte
}

func (p sentPiece) Release() { p.from.keep(p.bytes) }

func (w *pieces) Write(b []byte) (n int, err error) {
	n = len(b)
	for len(b) > 0 {
		if w.piece == nil {
			w.piece = w.sh.s.buffers.payload(wire.PartBytes)[:0]
		}
		k := min(len(b), wire.PartBytes-len(w.piece))
		w.piece, b = append(w.piece, b[:k]...), b[k:]
		if len(w.piece) == wire.PartBytes {
			if err := w.send(0); err != nil {
				return 0, err
			}
		}
	}
	return n, nil
}

func (w *pieces) end() error { return w.send(wire.FlagLast) }

func (w *pieces) send(flags uint16) error {
	if w.sh.retired() {
		return errors.New("server: the shard has moved")
	}
	f := wire.Frame{
		Header: wire.Header{
			Kind: wire.KindSnapshot, Flags: flags, Generation: w.snap.name.generation, Epoch: w.snap.name.epoch,
			Shard: w.sh.id, Slot: perdure.NoSlot, Request: w.snap.pos, Part: w.part,
		},
		Body: w.piece, Release: sentPiece{&w.sh.s.buffers, w.piece},
	}
	w.bytes += int64(len(w.piece))
	w.piece, w.part = nil, w.part+1
	if err := w.tc.Send(f); err != nil {
		return err
	}
	time.Sleep(breath)
	return nil
}

// breath is how long a sender of pieces stops after each: who reads from this server
// meanwhile has its turn, also where the process has one core.
const breath = 20 * time.Microsecond

// incoming is a snapshot that is being received: it is read while it comes, so that
// its pieces' memory is used again.
type incoming struct {
	from   *conn
	name   shardName
	pos    uint64
	part   uint16        // the next piece's; guarded by shard.mu
	pieces chan []byte   // closed after the last
	over   chan struct{} // closed when the rest is not to be expected or wanted any more
	ended  bool          // one of the two is closed; guarded by shard.mu
}

// aheadPieces is how many pieces may be received before they are read.
const aheadPieces = 8

// abandon ends what is not complete. It needs shard.mu.
func (in *incoming) abandon() {
	if in != nil && !in.ended {
		in.ended = true
		close(in.over)
	}
}

// errNotWanted ends the connection of a snapshot that is not of the shard's present
// life, or that another one has overtaken.
var errNotWanted = errors.New("server: the snapshot is not wanted")

// piece takes a piece of a snapshot. It waits while too many are not read yet.
func (sh *shard) piece(c *conn, f *wire.Frame) error {
	in, body, err := sh.expected(c, f)
	if err != nil {
		return err
	}
	if len(body) > 0 {
		select {
		case in.pieces <- body:
		case <-in.over:
			return errNotWanted
		}
	}
	if f.Flags&wire.FlagLast == 0 {
		return nil
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if in.ended {
		return errNotWanted
	}
	in.ended = true
	close(in.pieces)
	have := sh.frame(wire.KindHave)
	have.Request = in.pos
	c.send(have) // its sender need not wait until it is read
	return nil
}

// expected returns the snapshot that a piece is the next of, and takes its memory.
func (sh *shard) expected(c *conn, f *wire.Frame) (*incoming, []byte, error) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.log == nil || sh.retired() || sh.place.config.Head || sh.name != name(&f.Header) {
		return nil, nil, errNotWanted
	}
	in := sh.incoming
	if f.Part == 0 && (in == nil || in.from != c) && sh.log.Wants(f.Request) {
		in.abandon()
		in = &incoming{from: c, name: sh.name, pos: f.Request, pieces: make(chan []byte, aheadPieces), over: make(chan struct{})}
		sh.incoming = in
		sh.s.wg.Go(func() { sh.receive(in) })
	}
	if in == nil || in.from != c || in.part != f.Part || in.ended {
		return nil, nil, errNotWanted
	}
	in.part++
	body := f.Body
	f.Body = nil // kept
	return in, body, nil
}

// receive makes the shard what a snapshot says.
func (sh *shard) receive(in *incoming) {
	c, head, err := sh.s.read(sh.id, in)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.incoming != in || sh.retired() {
		return
	}
	if sh.incoming = nil; errors.Is(err, errNotWanted) || sh.name != in.name || !sh.log.Wants(in.pos) {
		return
	}
	if err != nil {
		sh.s.fail(fmt.Errorf("server: shard %d: a snapshot from %s: %w", sh.id, in.from.tc.Peer(), err))
		return
	}
	sh.parts, sh.states, sh.seq = c.parts, c.states, c.seq
	sh.intake = consistency.Restore(&head.Intake, sh.s.cfg.Weakened)
	sh.cut, sh.end, sh.segments = head.Cut, head.End, head.Segments
	clear(sh.logged)
	sh.makeRoom()
	sh.out = sh.newPushes()
	sh.renewed = true
	sh.makeSubs(true)
	sh.applyAll() // what its sender had left to another goroutine
	sh.log.Restored(in.pos)
	sh.carryOut()
	sh.s.notify()
}

// mostHead bounds a snapshot's head.
const mostHead = 1 << 30

// read reads a snapshot.
func (s *Server) read(id perdure.ShardID, in *incoming) (c content, head snapshotHead, err error) {
	job := s.jobSpec()
	r := &pieceReader{in: in, keep: s.buffers.keep}
	var size [8]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return c, head, err
	}
	n := binary.LittleEndian.Uint64(size[:])
	if n > mostHead {
		return c, head, fmt.Errorf("its head has %d bytes", n)
	}
	words := make([]byte, n)
	if _, err := io.ReadFull(r, words); err != nil {
		return c, head, err
	}
	if err := json.Unmarshal(words, &head); err != nil {
		return c, head, err
	}
	if n := len(head.Intake.Slots); n < job.Slots || n > perdure.MaxSlots || len(head.Intake.Applied) != n || len(head.Intake.Spans) != n {
		return c, head, fmt.Errorf("it has %d slots, the job %d", n, job.Slots)
	}
	for i := range head.Intake.Slots {
		for j := range head.Intake.Slots[i].Pending {
			u := &head.Intake.Slots[i].Pending[j]
			for _, size := range u.Sizes {
				if size < 0 {
					u.Parts = append(u.Parts, nil)
					continue
				}
				if size > wire.MaxPayload {
					return c, head, fmt.Errorf("an update's part has %d bytes", size)
				}
				part := make([]byte, size)
				if _, err := io.ReadFull(r, part); err != nil {
					return c, head, err
				}
				u.Parts = append(u.Parts, part)
			}
		}
	}
	c.states = make([][]byte, len(head.Intake.Slots))
	blank := func(spec perdure.TableSpec, first, rows int64) (table.Image, error) {
		p := table.Blank(spec, perdure.TableID(len(c.parts)), job.Seed, perdure.RowID(first), int(rows))
		c.parts = append(c.parts, p)
		return p.Image(), nil
	}
	seg, err := checkpoint.Decode(r, head.Rows, blank)
	if err != nil {
		return c, head, err
	}
	if seg.Job != job.ID || seg.Shard != id {
		return c, head, fmt.Errorf("it is of shard %d of job %q", seg.Shard, seg.Job)
	}
	copy(c.states, seg.States)
	c.seq = seg.Seq
	for _, p := range c.parts {
		if err := p.Restored(); err != nil {
			return c, head, err
		}
	}
	return c, head, nil
}

// pieceReader reads pieces, and gives back each that is read.
type pieceReader struct {
	in   *incoming
	now  bytes.Reader
	keep func([]byte)
	last []byte
}

func (r *pieceReader) Read(b []byte) (int, error) {
	for r.now.Len() == 0 {
		if r.last != nil {
			r.keep(r.last)
			r.last = nil
		}
		more := true
		select {
		case r.last, more = <-r.in.pieces:
		case <-r.in.over:
			return 0, errNotWanted
		}
		if !more {
			return 0, io.EOF
		}
		r.now.Reset(r.last)
	}
	return r.now.Read(b)
}

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
	"github.com/perdure/perdure/chain"
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
}

// snapshot is a shard's state, copied.
type snapshot struct {
	name  shardName
	pos   uint64
	head  snapshotHead
	state *checkpoint.Segment
}

// snapshot copies the shard's state. It needs sh.mu.
func (sh *shard) snapshot() *snapshot {
	state := sh.segment()
	for i := range state.Tables {
		state.Tables[i].Image = state.Tables[i].Image.Clone()
	}
	state.Cut = max(0, state.Cut)
	return &snapshot{
		name: sh.name, pos: sh.log.Applied(), state: state,
		head: snapshotHead{Cut: sh.cut, End: sh.end, Segments: append([]perdure.Segment(nil), sh.segments...), Intake: sh.intake.State()},
	}
}

// copyPause is when a snapshot that could not be sent is tried again.
const copyPause = 100 * time.Millisecond

// copyTo sends a peer a snapshot, in a goroutine of its own, one after the other. It
// needs sh.mu.
func (sh *shard) copyTo(p *peer, to chain.Peer) {
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

// sendSnapshot connects to a peer, and sends it the shard's state if the shard is still
// in the life of that name.
func (sh *shard) sendSnapshot(p *peer, name shardName) error {
	sh.mu.Lock()
	if sh.name != name || sh.retired() {
		sh.mu.Unlock()
		return nil // its successor, if it has one, is asked anew
	}
	snap := sh.snapshot()
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
	return w.tc.Send(f)
}

// incoming is a snapshot that is being received.
type incoming struct {
	from   *conn
	name   shardName
	pos    uint64
	part   uint16 // the next piece's
	pieces [][]byte
	bytes  int64
}

// errNotWanted ends the connection of a snapshot that is not of the shard's present
// life, or that another one has overtaken.
var errNotWanted = errors.New("server: the snapshot is not wanted")

// piece takes a piece of a snapshot.
func (sh *shard) piece(c *conn, f *wire.Frame) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.log == nil || sh.retired() || sh.place.config.Head || sh.name != name(&f.Header) {
		return errNotWanted
	}
	in := sh.incoming
	if f.Part == 0 && (in == nil || in.from != c) && sh.log.Wants(f.Request) {
		in = &incoming{from: c, name: sh.name, pos: f.Request}
		sh.incoming = in
	}
	if in == nil || in.from != c || in.part != f.Part {
		return errNotWanted
	}
	in.part++
	if len(f.Body) > 0 {
		in.pieces = append(in.pieces, f.Body)
		in.bytes += int64(len(f.Body))
		f.Body = nil // kept
	}
	if f.Flags&wire.FlagLast != 0 {
		have := sh.frame(wire.KindHave)
		have.Request = in.pos
		c.send(have) // its sender need not wait until it is read
		sh.s.wg.Go(func() { sh.receive(in) })
	}
	return nil
}

// receive makes the shard what a snapshot says.
func (sh *shard) receive(in *incoming) {
	c, head, err := sh.s.read(sh.id, in)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.incoming != in || sh.retired() {
		return
	}
	if sh.incoming = nil; sh.name != in.name || !sh.log.Wants(in.pos) {
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
	sh.out = sh.newPushes()
	sh.renewed = true
	sh.makeSubs(true)
	sh.applyAll() // what its sender had left to another goroutine
	sh.log.Restored(in.pos)
	sh.carryOut()
	sh.s.notify()
}

// read reads a snapshot.
func (s *Server) read(id perdure.ShardID, in *incoming) (c content, head snapshotHead, err error) {
	job := s.jobSpec()
	r := &pieceReader{in: in, keep: s.buffers.keep}
	var size [8]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return c, head, err
	}
	n := binary.LittleEndian.Uint64(size[:])
	if n > uint64(in.bytes) {
		return c, head, fmt.Errorf("its head has %d bytes, it %d", n, in.bytes)
	}
	words := make([]byte, n)
	if _, err := io.ReadFull(r, words); err != nil {
		return c, head, err
	}
	if err := json.Unmarshal(words, &head); err != nil {
		return c, head, err
	}
	left := in.bytes - 8 - int64(n)
	if len(head.Intake.Applied) != job.Slots || len(head.Intake.Slots) != job.Slots {
		return c, head, fmt.Errorf("it has %d slots, the job %d", len(head.Intake.Slots), job.Slots)
	}
	for i := range head.Intake.Slots {
		for j := range head.Intake.Slots[i].Pending {
			u := &head.Intake.Slots[i].Pending[j]
			for _, size := range u.Sizes {
				if size < 0 {
					u.Parts = append(u.Parts, nil)
					continue
				}
				if int64(size) > left {
					return c, head, fmt.Errorf("an update's part has %d bytes, %d are left", size, left)
				}
				part := make([]byte, size)
				if _, err := io.ReadFull(r, part); err != nil {
					return c, head, err
				}
				u.Parts, left = append(u.Parts, part), left-int64(size)
			}
		}
	}
	c.states = make([][]byte, job.Slots)
	blank := func(spec perdure.TableSpec, first, rows int64) (table.Image, error) {
		p := table.Blank(spec, perdure.TableID(len(c.parts)), job.Seed, perdure.RowID(first), int(rows))
		c.parts = append(c.parts, p)
		return p.Image(), nil
	}
	seg, err := checkpoint.Decode(r, left, blank)
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
		if len(r.in.pieces) == 0 {
			return 0, io.EOF
		}
		r.last, r.in.pieces = r.in.pieces[0], r.in.pieces[1:]
		r.now.Reset(r.last)
	}
	return r.now.Read(b)
}

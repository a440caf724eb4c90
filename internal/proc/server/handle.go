package server

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// update takes one part of an update in, at the head.
func (sh *shard) update(c *conn, f *wire.Frame) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.takesIn() || !sh.seats(c) {
		return nil
	}
	if err := sh.check(c, f); errors.Is(err, errEarly) {
		sh.send(c, sh.frame(wire.KindMoved)) // the answer to its next Open comes after the table
		return nil
	} else if err != nil {
		return err
	}
	h := wire.Header{
		Kind: f.Kind, Flags: f.Flags, Generation: sh.name.generation, Clock: f.Clock, Clocks: f.Clocks, Shard: sh.id,
		Slot: c.slot, Incarnation: c.incarnation, Part: f.Part, Parts: f.Parts,
	}
	e := entry{f: wire.Frame{Header: h, Body: f.Body}, from: c}
	sh.logs(&e.f, 1)
	sh.append(c, e)
	f.Body = nil // the log has it now
	return nil
}

// takesIn reports whether this is the head, and serves. It needs sh.mu.
func (sh *shard) takesIn() bool {
	return sh.stream == nil && sh.ready && !sh.retired() && sh.place.config.Head && !sh.yields()
}

// yields reports whether this is a head that is to be dropped, and takes in nothing
// more: what it is sent, the next one is sent again. It needs sh.mu.
func (sh *shard) yields() bool {
	mine := &sh.view.Shards[sh.id]
	return mine.Yields && sh.place.config.Head && mine.Epoch == sh.name.epoch
}

// append appends an entry that came on a connection. It needs sh.mu.
func (sh *shard) append(c *conn, e entry) {
	sh.box = &c.box
	defer func() { sh.box = nil }()
	sh.log.Append(e)
	sh.carryOut()
}

// sync promises the slot acknowledgements at once until the clocks that it has ended
// are applied.
func (sh *shard) sync(c *conn, f *wire.Frame) error {
	if c.slot < 0 {
		return fmt.Errorf("an observer has no updates to be acknowledged")
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.ready && !sh.retired() && sh.serves(c) {
		sh.applyDue()
		sh.arrears.tell(c.slot, f.Clock)
		sh.prompt[c.slot] = max(sh.prompt[c.slot], f.Clock)
		sh.acknowledge()
	}
	return nil
}

// tick takes the word that an update is staged on all shards, at the head.
func (sh *shard) tick(c *conn, f *wire.Frame) error {
	if c.slot < 0 {
		return fmt.Errorf("an observer cannot tick")
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.takesIn() && sh.seats(c) {
		if n := sh.inLog(c.slot); n > 2*sh.s.cfg.PendingBytes { // an update that is ticked may be as large as what is kept
			return sh.tooMuch(c, f, n)
		}
		sh.logs(f, 1)
		h := wire.Header{
			Kind: f.Kind, Generation: sh.name.generation, Clock: f.Clock, Shard: sh.id, Slot: c.slot, Incarnation: c.incarnation,
		}
		sh.append(c, entry{f: wire.Frame{Header: h}, from: c})
	}
	return nil
}

// errEarly means that an update is of a table that the log does not have yet.
var errEarly = errors.New("server: the table is on its way")

// heavyBytes is the least size of an update that is worth another goroutine.
const heavyBytes = 256 << 10

// heavy reports whether the slot's next update is a large one. It needs sh.mu.
func (sh *shard) heavy(slot perdure.Slot) bool {
	pending := sh.intake.Pending(slot)
	return len(pending) > 0 && (len(pending[0].Parts) > 1 || len(pending[0].Parts) == 1 && len(pending[0].Parts[0]) >= heavyBytes)
}

// catchUp applies what was left to it.
func (sh *shard) catchUp() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.applyDue()
}

// applyDue applies what was left to another goroutine that has not come to it yet:
// a read is answered after the updates before it. It needs sh.mu.
func (sh *shard) applyDue() {
	if sh.due && !sh.retired() {
		sh.due = false
		sh.pump()
	}
}

// check refuses an update that could not be applied, before any of it is. It
// needs sh.mu.
func (sh *shard) check(c *conn, f *wire.Frame) error {
	if c.slot < 0 {
		return fmt.Errorf("an observer cannot update")
	}
	if f.Clock < 0 || f.Until() < 0 || f.Parts > 0 && f.Part >= f.Parts {
		return fmt.Errorf("update of clock %d, part %d of %d", f.Clock, f.Part, f.Parts)
	}
	if n := sh.intake.PendingBytes(c.slot) + sh.inLog(c.slot) + int64(len(f.Body)); n > sh.s.cfg.PendingBytes {
		return sh.tooMuch(c, f, n)
	}
	return sh.checkBlocks(f.Body)
}

// refuseTorn ends the connection of whoever has sent an update only a part of which could
// be applied. The other replicas ignore it, as this one does. In an update log it is there
// for good. It needs sh.mu.
func (sh *shard) refuseTorn(g *chain.Given[entry]) {
	f, c := &g.Entry.f, g.Entry.from
	why := fmt.Sprintf("an update of slot %d is of the clocks %d to %d, of which shard %d may take some and not the others (it has applied those before %d): it takes none",
		f.Slot, f.Clock, f.Until()-1, sh.id, sh.intake.Applied()[f.Slot])
	switch {
	case c != nil:
		sh.s.cfg.Log.Warn("closed a connection", "slot", c.slot, "peer", c.tc.Peer(), "err", why)
		_ = transport.Refuse(c.tc, wire.Refusal{Reason: why}) // it is being closed anyway
		go c.tc.Close()                                       // it may take a moment
	case sh.stream != nil:
		sh.s.fail(fmt.Errorf("%w: shard %d: %s; all before it is whole, and nothing after it can be used: begin the job again", ErrLog, sh.id, why))
	}
}

// checkBlocks needs sh.mu.
func (sh *shard) checkBlocks(payload []byte) error {
	b := wire.ReadBlocks(payload)
	for b.Next() {
		if int(b.Table) >= len(sh.parts) {
			if int(b.Table) < len(sh.view.Tables) {
				return errEarly
			}
			return fmt.Errorf("update of table %d; the job has %d tables", b.Table, len(sh.parts))
		}
		p := sh.parts[b.Table]
		if err := sh.checkRows(p, &b.Rows, len(b.Values)); err != nil {
			return err
		}
		if p.Spec.NonFinite == perdure.AllowNonFinite {
			continue
		}
		if at := table.FirstNonFinite(b.Values); at >= 0 {
			return fmt.Errorf("%w: value %d of row %d of table %s is %v", perdure.ErrNonFinite, at%p.Spec.Dim, b.ID(at/p.Spec.Dim), p.Spec.Name, b.Values[at])
		}
	}
	return b.Err()
}

func (sh *shard) tooMuch(c *conn, f *wire.Frame, n int64) error {
	return fmt.Errorf("slot %d has sent %d bytes of updates to shard %d that are not applied yet, clock %d the last of them; at most %d are kept",
		c.slot, n, sh.id, f.Clock, sh.s.cfg.PendingBytes)
}

// checkRows refuses rows that are not this shard's, and a number of values that
// is not theirs.
func (sh *shard) checkRows(p *table.Part, rows *wire.Rows, values int) error {
	if err := p.CheckRows(rows.First, rows.IDs, rows.Count, values); err != nil || !p.Spec.Sparse {
		return err
	}
	for _, id := range rows.IDs {
		if at := placement.ShardOfID(id, sh.job.Shards); at != sh.id {
			return fmt.Errorf("%w: row %d of table %s is on shard %d, not on shard %d", table.ErrRow, id, p.Spec.Name, at, sh.id)
		}
	}
	return nil
}

// get answers a read, or a scan, now or when the shard's MinClock allows it.
func (sh *shard) get(c *conn, f *wire.Frame) error {
	w := waitingGet{c: c, kind: f.Kind, request: f.Request, need: f.Clock, push: f.Flags&wire.FlagSubscribe != 0}
	rest, err := wire.ParseRows(f.Payload, &w.rows)
	if err != nil {
		return err
	}
	if len(rest) != 0 {
		return fmt.Errorf("%w: %d bytes after a read's rows", wire.ErrPayload, len(rest))
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.ready || sh.retired() {
		return nil
	}
	sh.applyDue()
	if sh.mayAnswer(&w) {
		return sh.answer(&w)
	}
	if int(w.rows.Table) < len(sh.parts) {
		if err := sh.checkRead(&w); err != nil {
			return err
		}
	}
	if n, _ := c.waits(&w, 1); n > mostWaiting {
		c.waits(&w, -1)
		return fmt.Errorf("its reads that wait take %d bytes; at most %d are kept", n, mostWaiting)
	}
	if w.rows.IDs != nil {
		w.rows.IDs = slices.Clone(w.rows.IDs) // the payload may be much larger
	}
	w.since = time.Now()
	sh.waiting = append(sh.waiting, w)
	return nil
}

// bytes returns what the read takes while it waits, about.
func (w *waitingGet) bytes() int64 { return waitingBytes + 8*int64(len(w.rows.IDs)) }

// mayAnswer needs sh.mu. A table that is not known here yet is on its way with
// the next view.
func (sh *shard) mayAnswer(w *waitingGet) bool {
	return int(w.rows.Table) < len(sh.parts) && sh.intake.MinClock() >= w.need && !sh.held()
}

// checkRead refuses a read that cannot be answered. It needs sh.mu.
func (sh *shard) checkRead(w *waitingGet) error {
	p := sh.parts[w.rows.Table]
	if w.kind == wire.KindScan {
		if !p.Spec.Sparse || w.rows.IDs != nil {
			return fmt.Errorf("table %s is not sparse: nobody asks for the rows that it stores", p.Spec.Name)
		}
		return nil
	}
	n := w.rows.Count * p.Spec.Dim
	if err := sh.checkRows(p, &w.rows, n); err != nil {
		return err
	}
	if wire.AnswerHeaderBytes(len(sh.intake.Applied()))+4*n > wire.MaxPayload {
		return fmt.Errorf("%d rows of table %s asked for at once: the answer does not fit in %d bytes", w.rows.Count, p.Spec.Name, wire.MaxPayload)
	}
	return nil
}

// answer sends what a read asks for, as of this moment. It needs sh.mu.
func (sh *shard) answer(w *waitingGet) error {
	if err := sh.checkRead(w); err != nil {
		return err
	}
	if w.kind == wire.KindScan {
		sh.answerScan(w)
		return nil
	}
	p := sh.parts[w.rows.Table]
	sh.subscribeTo(w)
	f := sh.frame(wire.KindRows)
	f.Request, f.Clock = w.request, sh.intake.MinClock()
	a := sh.body(&f, &w.rows, p)
	state := wire.State{Seq: sh.seq, Applied: sh.intake.Applied()}
	if !w.since.IsZero() {
		state.Waited = uint64(max(0, time.Since(w.since).Microseconds()))
	}
	a.head = wire.AppendState(a.head[:0], &state)
	sh.finishBody(&f, a)
	sh.sendWithAck(w, f)
	return nil
}

// body brings rows, which were checked, into a frame: those of a long run from
// where they lie, others gathered. finishBody does the rest once the frame has its
// head. It needs sh.mu.
func (sh *shard) body(f *wire.Frame, rows *wire.Rows, p *table.Part) (a *answer) {
	n := rows.Count * p.Spec.Dim
	if rows.IDs == nil && 4*n >= lentBytes {
		run, _ := p.Run(rows.First, rows.Count)
		a = sh.s.buffers.answer(0)
		f.Body, f.Lent = wire.FloatBytes(run)
	}
	if !f.Lent {
		a = sh.s.buffers.answer(n)
		if err := p.ReadRows(a.values, rows.First, rows.IDs, rows.Count); err != nil {
			panic(fmt.Sprintf("server: rows that were checked cannot be read: %v", err))
		}
		f.Body, _ = wire.FloatBytes(a.values)
	}
	return a
}

func (sh *shard) finishBody(f *wire.Frame, a *answer) {
	if f.Body == nil {
		a.head = wire.AppendFloats(a.head, a.values) // their memory is not as on the wire
	}
	f.Payload, f.Release = a.head, a
}

// lentBytes is the least size of a run of rows that is sent from where it lies.
// The shard stands still while the network takes what it takes at once, and the
// rest is copied.
const lentBytes = 16 << 10

// answerScan sends the ids of rows that a sparse table stores. It needs sh.mu.
func (sh *shard) answerScan(w *waitingGet) {
	p := sh.parts[w.rows.Table]
	from, most := p.Stored(), min(w.rows.Count, wire.PartBytes/8)
	if w.rows.First < perdure.RowID(from) {
		from = int(w.rows.First)
	}
	f := sh.frame(wire.KindIDs)
	f.Request, f.Clock = w.request, sh.intake.MinClock()
	f.Payload = wire.AppendIDs(nil, p.Stored(), p.IDs(from, most))
	sh.sendWithAck(w, f)
}

// sendWithAck sends the answer to a read and, in one batch with it, the
// acknowledgement that its receiver is owed. It needs sh.mu.
func (sh *shard) sendWithAck(w *waitingGet, f wire.Frame) {
	if ack, owed := sh.ack(w.c); owed {
		w.c.queue([]wire.Frame{ack})
	}
	if w.others {
		sh.sendSoon(w.c, f)
	} else {
		w.c.send(f)
	}
}

// answerWaiting answers the reads that the MinClock now allows. It needs sh.mu.
func (sh *shard) answerWaiting() {
	sh.waiting = slices.DeleteFunc(sh.waiting, func(w waitingGet) bool {
		if !sh.mayAnswer(&w) {
			return false
		}
		_, w.others = w.c.waits(&w, -1)
		if err := sh.answer(&w); err != nil {
			sh.s.cfg.Log.Warn("closed a connection", "slot", w.c.slot, "err", err)
			go w.c.tc.Close() // it may take a moment
		}
		return true
	})
}

// load answers with what the slot's program saved last before the clock it is
// to work on: with its newest update that counts, applied or not.
func (sh *shard) load(c *conn, f *wire.Frame) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.ready || sh.retired() {
		return nil
	}
	if f.Slot < 0 || int(f.Slot) >= len(sh.states) {
		return fmt.Errorf("saved state of slot %d of a job of %d", f.Slot, len(sh.states))
	}
	state := sh.states[f.Slot]
	for _, u := range sh.intake.Pending(f.Slot) {
		if !u.Ticked() || u.Clock >= f.Clock {
			break
		}
		for _, payload := range u.Parts {
			b := wire.ReadBlocks(payload)
			for b.Next() {
			}
			if b.State != nil {
				state = b.State
			}
		}
	}
	out := sh.frame(wire.KindState)
	out.Request, out.Slot, out.Payload = f.Request, f.Slot, slices.Clone(state)
	if state == nil {
		out.Flags = wire.FlagNone
	}
	c.send(out)
	return nil
}

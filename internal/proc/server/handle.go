package server

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/frames"
)

// takesIn reports whether this is the head, and serves. It needs sh.mu.
func (sh *shard) takesIn() bool {
	return sh.stream == nil && sh.rep.Ready() && !sh.retired() && sh.link.Place().Head && !sh.link.Yields(sh.view)
}

// answers reports whether the shard serves those who have opened it. It needs sh.mu.
func (sh *shard) answers() bool { return sh.rep.Ready() && !sh.retired() }

// update takes one part of an update in, at the head.
func (sh *shard) update(c *conn, f *wire.Frame) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.takesIn() || !sh.rep.Audience.Seated(&c.Reader) {
		return nil
	}
	e, err := sh.link.Update(&c.Reader, f, &sh.rep.State, len(sh.view.Tables), sh.s.cfg.PendingBytes)
	if errors.Is(err, replica.ErrEarly) {
		sh.send(c, sh.name.Frame(wire.KindMoved)) // the answer to its next Open comes after the table
		return nil
	} else if err != nil {
		return err
	}
	sh.append(c, e)
	f.Body = nil // the log has it now
	return nil
}

// append appends an entry that came on a connection. It needs sh.mu.
func (sh *shard) append(c *conn, e replica.Entry) {
	sh.box = &c.box
	defer func() { sh.box = nil }()
	sh.link.Append(e)
	sh.advance()
}

// sync promises the slot acknowledgements at once until the clocks that it has ended
// are applied.
func (sh *shard) sync(c *conn, f *wire.Frame) error {
	if c.Slot < 0 {
		return fmt.Errorf("an observer has no updates to be acknowledged")
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.answers() && sh.rep.Audience.Serves(&c.Reader) {
		sh.applyDue()
		sh.rep.Prompt(&c.Reader, f.Clock)
		sh.carryOut()
	}
	return nil
}

// tick takes the word that an update is staged on all shards, at the head.
func (sh *shard) tick(c *conn, f *wire.Frame) error {
	if c.Slot < 0 {
		return fmt.Errorf("an observer cannot tick")
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.takesIn() && sh.rep.Audience.Seated(&c.Reader) {
		e, err := sh.link.Tick(&c.Reader, f, sh.s.cfg.PendingBytes)
		if err != nil {
			return err
		}
		sh.append(c, e)
	}
	return nil
}

// get answers a read, or a scan, now or when the shard's MinClock allows it.
func (sh *shard) get(c *conn, f *wire.Frame) error {
	rd := replica.Read{
		Reader: &c.Reader, Scan: f.Kind == wire.KindScan, Request: f.Request, Need: f.Clock,
		Subscribe: f.Flags&wire.FlagSubscribe != 0,
	}
	rest, err := wire.ParseRows(f.Payload, &rd.Rows)
	if err != nil {
		return err
	}
	if len(rest) != 0 {
		return fmt.Errorf("%w: %d bytes after a read's rows", wire.ErrPayload, len(rest))
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.answers() {
		return nil
	}
	sh.applyDue()
	now, err := sh.rep.Read(&rd)
	switch {
	case err != nil:
		return err
	case now:
		sh.answer(&rd, sh.rep.Audience.TakeAck(&c.Reader), false)
		return nil
	}
	if n, _ := c.waits(&rd, 1); n > mostWaiting {
		c.waits(&rd, -1)
		return fmt.Errorf("its reads that wait take %d bytes; at most %d are kept", n, mostWaiting)
	}
	if rd.Rows.IDs != nil {
		rd.Rows.IDs = slices.Clone(rd.Rows.IDs) // the payload may be much larger
	}
	rd.Since = sh.now()
	sh.rep.Audience.Wait(rd)
	return nil
}

// now is how long the shard has lived, in nanoseconds. It is never 0.
func (sh *shard) now() int64 { return int64(time.Since(sh.began)) + 1 }

// answerLate answers a read that had to wait. It needs sh.mu.
func (sh *shard) answerLate(a *replica.Answer) {
	c := connOf(a.Reader)
	_, others := c.waits(&a.Read, -1)
	if a.Err != nil {
		sh.s.cfg.Log.Warn("closed a connection", "slot", c.Slot, "err", a.Err)
		go c.tc.Close() // it may take a moment
		return
	}
	sh.answer(&a.Read, a.Ack, others)
}

// answer sends what a read asks for, as of this moment, and in one batch with it the
// acknowledgement that its reader is owed. others: more of the connection's reads wait, for
// the same, elsewhere, and this answer goes with theirs. It needs sh.mu.
func (sh *shard) answer(rd *replica.Read, ack, others bool) {
	c := connOf(rd.Reader)
	f := sh.name.Frame(wire.KindRows)
	f.Request, f.Clock = rd.Request, sh.rep.State.MinClock()
	if rd.Scan {
		idsFrame(&f, &sh.rep.State, rd)
	} else {
		rowsFrame(&f, &sh.s.buffers, &sh.rep.State, rd, sh.now())
	}
	if ack {
		c.queue([]wire.Frame{sh.countsFrame(c, wire.KindAck)})
	}
	if others {
		sh.sendSoon(c, f)
	} else {
		c.send(f)
	}
}

// rowsFrame makes a frame the answer to a read, as of now.
func rowsFrame(f *wire.Frame, b *frames.Buffers, st *replica.State, rd *replica.Read, now int64) {
	state := wire.State{Seq: st.Seq(), Applied: st.Applied()}
	if rd.Since != 0 {
		state.Waited = uint64(max(0, time.Duration(now-rd.Since).Microseconds()))
	}
	b.Rows(f, &state, &rd.Rows, st.Parts()[rd.Rows.Table])
}

// idsFrame makes a frame the answer to a scan: the ids of rows that a sparse table stores.
func idsFrame(f *wire.Frame, st *replica.State, rd *replica.Read) {
	p := st.Parts()[rd.Rows.Table]
	from, most := p.Stored(), min(rd.Rows.Count, wire.PartBytes/8)
	if rd.Rows.First < perdure.RowID(from) {
		from = int(rd.Rows.First)
	}
	f.Kind, f.Payload = wire.KindIDs, wire.AppendIDs(nil, p.Stored(), p.IDs(from, most))
}

// load answers with what the slot's program saved last before the clock it is
// to work on.
func (sh *shard) load(c *conn, f *wire.Frame) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.answers() {
		return nil
	}
	state, err := sh.rep.State.Saved(f.Slot, f.Clock)
	if err != nil {
		return err
	}
	out := sh.name.Frame(wire.KindState)
	out.Request, out.Slot, out.Payload = f.Request, f.Slot, state
	if state == nil {
		out.Flags = wire.FlagNone
	}
	c.send(out)
	return nil
}

// drop ends subscriptions: the reader has no use for the rows any more.
func (sh *shard) drop(c *conn, f *wire.Frame) error {
	var rows wire.Rows
	if _, err := wire.ParseRows(f.Payload, &rows); err != nil {
		return err
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.answers() {
		return nil
	}
	err := sh.rep.Unsubscribe(&c.Reader, &rows)
	sh.carryOut()
	return err
}

// saw takes a slot's word for which state its cached rows have.
func (sh *shard) saw(c *conn, f *wire.Frame) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.answers() {
		return nil
	}
	err := sh.rep.Saw(&c.Reader, f.Request)
	sh.carryOut()
	return err
}

package server

import (
	"log/slog"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// service answers the readers of a shard. It sends reads' answers, acknowledgements and pushed rows. It turns the
// replica's decisions into frames and sends them. Its only state of its own is the frames in flight. shard.mu guards
// it.
type service struct {
	rep     *replica.Replica
	link    *chain.Link // provides the shard's current generation and epoch
	sender  *sender
	buffers *frameBuffers
	log     *slog.Logger
	began   time.Time
	pushes  pushStreams
	answers int64 // number of answered reads
}

// sendMoved asks a reader to open the shard again.
func (sv *service) sendMoved(c *conn) { sv.sender.send(c, sv.link.Fence().Frame(wire.KindMoved)) }

// sendOpened sends a reader its slot's counts.
func (sv *service) sendOpened(o *replica.Opened) {
	c := connOf(o.Reader)
	c.beginRound()
	if o.Replaces != nil {
		connOf(o.Replaces).closeAsync()
	}
	sv.sender.send(c, sv.countsFrame(c, wire.KindOpened))
}

// sendAck sends a slot its counts.
func (sv *service) sendAck(a *replica.Ack) {
	c := connOf(a.Reader)
	prompt := a.Prompt || c.countStaged(a.Staged)
	if f := sv.countsFrame(c, wire.KindAck); prompt {
		sv.sender.send(c, f)
	} else {
		sv.sender.sendDelayed(c, f)
	}
}

// countsFrame builds a frame with the counts of a connection's slot.
func (sv *service) countsFrame(c *conn, kind wire.Kind) wire.Frame {
	f := sv.link.Fence().Frame(kind)
	f.Slot, f.Incarnation = c.Slot, c.Incarnation
	f.Clock = sv.rep.State.MinClock()
	sv.buffers.Counts(&f, sv.rep.Counts(&c.Reader))
	return f
}

// pendingAcks adds the pending acknowledgements to a map by connection.
func (sv *service) pendingAcks(to map[*conn][]wire.Frame) {
	for _, r := range sv.rep.Readers.TakeAcks(nil) {
		c := connOf(r)
		to[c] = append(to[c], sv.countsFrame(c, wire.KindAck))
	}
}

// rejectTorn closes the connection that sent a partly inapplicable update. The other replicas ignore
// that update, as this one does.
func (sv *service) rejectTorn(t *replica.Torn) {
	c := connOf(t.From)
	sv.log.Warn("closed a connection", "slot", c.Slot, "peer", c.tc.Peer(), "err", t.Reason)
	_ = transport.Refuse(c.tc, wire.Refusal{Reason: t.Reason}) // the connection is closed anyway
	c.closeAsync()
}

// get answers a read or a scan, immediately or when the shard's MinClock allows it. rows are the rows that the frame
// requests.
func (sv *service) get(c *conn, f *wire.Frame, rows *wire.Rows) error {
	rd := replica.Read{
		Reader: &c.Reader, Scan: f.Kind == wire.KindScan, Request: f.Request, MinClock: f.Clock, Rows: *rows,
		Subscribe: f.Flags&wire.FlagSubscribe != 0, Encoding: wire.EncodingOf(f.Flags),
	}
	now, err := sv.rep.Read(&rd)
	switch {
	case err != nil:
		return err
	case now:
		sv.answer(&rd, sv.rep.Readers.TakeAck(&c.Reader), false)
		return nil
	}
	if err := c.addRead(&rd); err != nil {
		return err
	}
	if rd.Rows.IDs != nil {
		rd.Rows.IDs = slices.Clone(rd.Rows.IDs) // the payload may be much larger
	}
	rd.Since = sv.age()
	sv.rep.Readers.AddWaiting(rd)
	return nil
}

// age returns the age of the shard in nanoseconds. It is never 0.
func (sv *service) age() int64 { return int64(time.Since(sv.began)) + 1 }

// answerLate answers a read that had to wait.
func (sv *service) answerLate(a *replica.Answer) {
	c := connOf(a.Reader)
	others := c.removeRead(&a.Read)
	if a.Err != nil {
		sv.log.Warn("closed a connection", "slot", c.Slot, "err", a.Err)
		c.closeAsync()
		return
	}
	sv.answer(&a.Read, a.Ack, others)
}

// answer sends the current values of the rows that a read requests, together with a pending acknowledgement for the
// reader. If others is true, more reads of the connection wait for the same MinClock on other shards, and this answer
// is sent with theirs.
func (sv *service) answer(rd *replica.Read, ack, others bool) {
	c := connOf(rd.Reader)
	sv.answers++
	f := sv.link.Fence().Frame(wire.KindRows)
	f.Request, f.Clock = rd.Request, sv.rep.State.MinClock()
	if rd.Scan {
		idsFrame(&f, &sv.rep.State, rd)
	} else {
		rowsFrame(&f, sv.buffers, &sv.rep.State, rd, sv.age())
	}
	if ack {
		c.queue([]wire.Frame{sv.countsFrame(c, wire.KindAck)})
	}
	if others {
		sv.sender.sendDelayed(c, f)
	} else {
		c.send(f)
	}
}

// rowsFrame fills a frame with the current answer to a read.
func rowsFrame(f *wire.Frame, b *frameBuffers, st *replica.State, rd *replica.Read, now int64) {
	state := wire.State{Seq: st.Seq(), Applied: st.Applied()}
	if rd.Since != 0 {
		state.WaitedMicros = uint64(max(0, time.Duration(now-rd.Since).Microseconds()))
	}
	b.Rows(f, &state, &rd.Rows, rd.Encoding, st.Parts()[rd.Rows.Table])
}

// idsFrame fills a frame with the answer to a scan: the ids of the rows that a sparse table stores.
func idsFrame(f *wire.Frame, st *replica.State, rd *replica.Read) {
	p := st.Parts()[rd.Rows.Table]
	from, most := p.Stored(), min(rd.Rows.Count, wire.PartBytes/8)
	if rd.Rows.First < perdure.RowID(from) {
		from = int(rd.Rows.First)
	}
	f.Kind, f.Payload = wire.KindIDs, wire.AppendIDs(nil, p.Stored(), p.IDs(from, most))
}

// load answers with the slot state that was saved last before the clock in f.
func (sv *service) load(c *conn, f *wire.Frame) error {
	state, err := sv.rep.State.Saved(f.Slot, f.Clock)
	if err != nil {
		return err
	}
	out := sv.link.Fence().Frame(wire.KindState)
	out.Request, out.Slot, out.Payload = f.Request, f.Slot, state
	if state == nil {
		out.Flags = wire.FlagNone
	}
	c.send(out)
	return nil
}

// echo reports to the sender whether the shard lacks updates.
func (sv *service) echo(c *conn, f *wire.Frame, behind bool) {
	out := sv.link.Fence().Frame(wire.KindEcho)
	out.Request = f.Request
	if behind {
		out.Flags = wire.FlagCatchingUp
	}
	c.send(out)
}

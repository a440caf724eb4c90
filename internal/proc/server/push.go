package server

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// pushes are what a shard sends by itself: rows that changed, to the slots that
// have read them. Under essp they go out when its MinClock has advanced, under
// vap with every change. shard.mu guards it.
type pushes struct {
	subs  []*consistency.Subscriptions // by table; nil: its rows are not pushed
	seen  *consistency.Visibility      // nil: no table is vap
	told  []perdure.Clock              // by slot, with seen: how many of its clocks were seen when that was last looked at
	to    []*outflow                   // by slot
	seq   uint64                       // as of the last push
	least perdure.Clock                // MinClock as of the last push
	since time.Time                    // when that was
	ids   []perdure.RowID              // room for one frame's

	frames []wire.Frame // room for those of one push
}

// outflow is the way to one slot on its present connection. A round of rows ends
// with a frame that says which state all of the slot's rows then have, at least.
type outflow struct {
	sh   *shard
	slot perdure.Slot

	round    bool // has begun
	due      bool // another is to follow, for what has changed since
	state    wire.State
	minClock perdure.Clock

	last   *answer     // the memory of the last frame that was sent
	flying atomic.Bool // that is not written yet
	more   atomic.Bool // something is to follow once it is
}

// What is handed to the transport before more is gathered: a slow reader has so
// much under way, and the rest is merged. All shards on one server push over one
// connection, whose gate holds 64 MiB; together they use a quarter of it.
const (
	pushBytes      = 4 << 20
	pushBytesInAll = 16 << 20
)

// pushAtOnce is what a shard hands to the transport.
func (sh *shard) pushAtOnce() int { return min(pushBytes, pushBytesInAll/sh.job.Shards) }

// runBytes is the least size of a run of rows that is pushed as a run.
const runBytes = 4 << 10

func (sh *shard) newPushes() (o pushes) {
	for slot := range perdure.Slot(len(sh.acks)) {
		o.to = append(o.to, &outflow{sh: sh, slot: slot})
	}
	return o
}

// makeSubs makes room for the subscriptions of tables that are pushed. A new
// generation begins with empty caches; where the shard's rows were lost in the
// middle of one, slots may still read what they had of its former life. It needs
// sh.mu.
func (sh *shard) makeSubs(lost bool) {
	o := &sh.out
	for id := len(o.subs); id < len(sh.parts); id++ {
		p, m := sh.parts[id], sh.parts[id].Spec.Consistency
		if !m.Pushed() {
			o.subs = append(o.subs, nil)
			continue
		}
		o.subs = append(o.subs, consistency.NewSubscriptions(len(sh.acks), p.First, p.Rows))
		if m.Kind == perdure.VAP && o.seen == nil && sh.place.read() {
			o.seen = consistency.NewVisibility(sh.intake.Applied(), sh.seq)
			o.told = make([]perdure.Clock, len(sh.acks))
			for slot, c := range sh.acks {
				if c != nil || !lost { // it opened the shard before there was anything to read
					o.seen.Opened(perdure.Slot(slot))
				}
			}
		}
	}
}

// openedBy begins the connection of a slot anew: nothing is pushed until it reads. It
// needs sh.mu.
func (sh *shard) openedBy(c *conn) {
	sh.stopPushing(c.slot)
	sh.spoke[c.slot] = max(sh.spoke[c.slot], c.incarnation)
	sh.opened[c.slot] = max(sh.opened[c.slot], c.incarnation)
	if sh.out.seen != nil {
		sh.out.seen.Opened(c.slot)
		sh.out.seen.SetActive(c.slot, sh.speaks(c.slot))
	}
}

// speaks reports whether a slot has a process that may read, as far as is known: by the
// view, or because it has opened the shard. Who is told the view late, being cut off
// from the coordinator, say, must not think that nobody reads. It needs sh.mu.
func (sh *shard) speaks(slot perdure.Slot) bool {
	var sl perdure.SlotView
	if int(slot) < len(sh.view.Slots) {
		sl = sh.view.Slots[slot]
	}
	switch opened := sh.opened[slot]; {
	case opened > sl.Incarnation:
		return true
	case sl.Incarnation == 0 || sl.Left:
		return false
	default:
		return sl.Settled || opened == sl.Incarnation
	}
}

// stopPushing forgets a connection. It needs sh.mu.
func (sh *shard) stopPushing(slot perdure.Slot) {
	sh.out.to[slot] = &outflow{sh: sh, slot: slot}
	for _, sub := range sh.out.subs {
		if sub != nil {
			sub.Reset(slot)
		}
	}
}

// changed notes what a block of an update of a slot changes. Its sender need not be
// sent that where it can tell itself. It needs sh.mu.
func (sh *shard) changed(b *wire.Block, by perdure.Slot) {
	sub := sh.out.subs[b.Table]
	if b.Count == 0 {
		return // whatever row it names
	}
	if !sh.parts[b.Table].Spec.Rule.Adds() {
		by = perdure.NoSlot
	}
	switch {
	case sub == nil:
	case b.IDs == nil:
		sub.ChangedRun(by, b.First, b.Count)
	default:
		for _, id := range b.IDs {
			sub.Changed(by, id)
		}
	}
}

// subscribeTo notes that a reader is being sent rows, and wants to be sent what
// becomes of them. It needs sh.mu.
func (sh *shard) subscribeTo(w *waitingGet) {
	sub, slot := sh.out.subs[w.rows.Table], w.c.slot
	if !w.push || sub == nil || !sh.serves(w.c) || w.rows.Count == 0 {
		return
	}
	if w.rows.IDs == nil {
		sub.AddRun(slot, w.rows.First, w.rows.Count)
	}
	for _, id := range w.rows.IDs {
		sub.Add(slot, id)
	}
	if sh.parts[w.rows.Table].Spec.Consistency.Kind == perdure.VAP && sh.out.seen != nil {
		sh.out.seen.Answered(slot, sh.seq)
	}
}

// drop ends subscriptions: the reader has no use for the rows any more.
func (sh *shard) drop(c *conn, f *wire.Frame) error {
	var rows wire.Rows
	if _, err := wire.ParseRows(f.Payload, &rows); err != nil {
		return err
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.ready || sh.retired() || !sh.serves(c) {
		return nil
	}
	if int(rows.Table) >= len(sh.parts) || sh.out.subs[rows.Table] == nil {
		return fmt.Errorf("no rows of table %d are pushed", rows.Table)
	}
	p := sh.parts[rows.Table]
	if err := sh.checkRows(p, &rows, rows.Count*p.Spec.Dim); err != nil {
		return err
	}
	for i := range rows.Count {
		sh.out.subs[rows.Table].Drop(c.slot, rows.ID(i))
	}
	if sh.out.seen != nil && !sh.out.wanted(c.slot) {
		sh.out.seen.Opened(c.slot) // it reads nothing from its cache any more
		sh.acknowledge()
	}
	return nil
}

// saw takes a slot's word for which state its cached rows have.
func (sh *shard) saw(c *conn, f *wire.Frame) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.ready || sh.retired() || !sh.serves(c) || sh.out.seen == nil {
		return nil
	}
	if f.Request > sh.seq {
		return fmt.Errorf("it has seen state %d of shard %d, which has come to %d", f.Request, sh.id, sh.seq)
	}
	sh.out.seen.Saw(c.slot, f.Request)
	sh.acknowledge()
	return nil
}

// newlySeen marks the slots of whose clocks more are seen by all than they were
// told. It needs sh.mu.
func (sh *shard) newlySeen() {
	o := &sh.out
	for slot := range o.told {
		if n := o.seen.Seen(perdure.Slot(slot)); n > o.told[slot] {
			o.told[slot] = n
			sh.dirty[slot] = true
		}
	}
}

// push sends what has changed to who has subscribed to it. It needs sh.mu.
func (sh *shard) push() {
	o := &sh.out
	least := sh.intake.MinClock()
	if !slices.ContainsFunc(o.subs, func(s *consistency.Subscriptions) bool { return s != nil }) {
		return
	}
	if least == o.least && (o.seen == nil || sh.seq == o.seq) {
		return
	}
	if least != o.least {
		o.since = time.Now()
	}
	o.least, o.seq = least, sh.seq
	o.advance()
	for slot, c := range sh.acks {
		if c != nil && o.wanted(perdure.Slot(slot)) {
			o.to[slot].due = true
			sh.pushTo(perdure.Slot(slot))
		}
	}
}

// advance makes what has changed due to those who are subscribed to it.
func (o *pushes) advance() {
	for _, sub := range o.subs {
		if sub != nil {
			sub.Advance()
		}
	}
}

// wanted reports whether a slot is subscribed to anything.
func (o *pushes) wanted(slot perdure.Slot) bool {
	return slices.ContainsFunc(o.subs, func(s *consistency.Subscriptions) bool { return s != nil && s.Rows(slot) > 0 })
}

// pushTo goes on with a slot's round, or begins one, unless what was sent before
// is still to be written: then it comes back. It needs sh.mu.
func (sh *shard) pushTo(slot perdure.Slot) {
	o, to := &sh.out, sh.out.to[slot]
	if to.flying.Load() {
		to.more.Store(true)
		if to.flying.Load() || !to.more.Swap(false) {
			return // goOn comes back to it
		}
	}
	begun := !to.round
	if begun {
		if sh.seq != o.seq {
			o.advance() // it had to wait: what changed meanwhile is in its state, too
		}
		to.round, to.due, to.minClock = true, false, o.least
		to.state = wire.State{Seq: sh.seq, Applied: append(to.state.Applied[:0], sh.intake.Applied()...)}
		for _, sub := range o.subs {
			if sub != nil {
				sub.Begin(slot)
			}
		}
	}
	frames, done := sh.gather(slot)
	if to.round = !done; done {
		if n := len(frames); n > 0 && begun {
			frames[n-1].Flags |= wire.FlagLast
		} else {
			a := sh.s.buffers.answer(0)
			to.state.Waited = o.waited()
			a.head = wire.AppendPushHead(a.head[:0], &to.state, &wire.Rows{})
			f := sh.frame(wire.KindPush)
			f.Clock, f.Flags, f.Payload, f.Release = to.minClock, wire.FlagLast, a.head, a
			frames = append(frames, f)
			o.frames = frames
		}
	}
	to.more.Store(!done || to.due)
	to.flying.Store(true)
	last := &frames[len(frames)-1]
	to.last = last.Release.(*answer)
	last.Release = to
	sh.send(sh.acks[slot], frames...)
	clear(frames) // lets the payloads go
}

// waited is how long ago the shard came to its MinClock, in microseconds.
func (o *pushes) waited() uint64 { return uint64(max(0, time.Since(o.since).Microseconds())) }

// gather makes frames of the next rows of a slot's round, and reports whether
// those are its last. It needs sh.mu.
func (sh *shard) gather(slot perdure.Slot) (frames []wire.Frame, done bool) {
	o, left := &sh.out, sh.pushAtOnce()
	frames = o.frames[:0]
	defer func() { o.frames = frames }()
	for id, sub := range o.subs {
		if sub == nil {
			continue
		}
		p := sh.parts[id]
		rowBytes := 4 * p.Spec.Dim
		long := max(2, runBytes/rowBytes)
		for {
			most := max(1, min(left, wire.PartBytes)/(rowBytes+8)) // with the rows' numbers
			first, n, ids := sub.Next(slot, long, most, o.ids)
			if ids != nil {
				o.ids, n = ids, len(ids)
			}
			if n == 0 {
				break
			}
			frames = append(frames, sh.pushFrame(&wire.Rows{Table: perdure.TableID(id), First: first, Count: n, IDs: ids}, p))
			if left -= n * (rowBytes + 8); left <= 0 {
				return frames, false
			}
		}
	}
	return frames, true
}

// pushFrame makes a frame of rows as they are now. It needs sh.mu.
func (sh *shard) pushFrame(rows *wire.Rows, p *table.Part) wire.Frame {
	f := sh.frame(wire.KindPush)
	f.Clock = sh.intake.MinClock()
	a := sh.body(&f, rows, p)
	state := wire.State{Seq: sh.seq, Waited: sh.out.waited(), Applied: sh.intake.Applied()}
	a.head = wire.AppendPushHead(a.head[:0], &state, rows)
	sh.finishBody(&f, a)
	return f
}

// Keep implements wire.Keeper.
func (to *outflow) Keep(body []byte) []byte { return to.last.Keep(body) }

// Release implements wire.Releaser: what was pushed last is written.
func (to *outflow) Release() {
	to.last.Release()
	to.flying.Store(false)
	if to.more.Swap(false) && to.sh.s.ctx.Err() == nil {
		go to.goOn() // Release must not wait
	}
}

// goOn pushes what had to wait.
func (to *outflow) goOn() {
	sh := to.sh
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.ready && !sh.retired() && sh.acks[to.slot] != nil && sh.out.to[to.slot] == to {
		sh.pushTo(to.slot)
	}
}

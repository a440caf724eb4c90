package reads

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// This file implements the world around a Reader, as naively as possible. Slot p's update of clock c adds 1 to value
// p·mostClocks + c of the rows that it touches. So a row's values are the set of updates in it, and a 2 is an update
// that was applied twice. Nothing is ever forgotten: the expected row in any state of its shard is computed from the
// updates.
const (
	slots      = 3 // the reader has slot 0
	shards     = 2
	mostClocks = 24
	rowsOfAll  = 14
)

// touched is the set of rows that an update touches.
type touched map[perdure.RowID]bool

// world holds the shards of a job, the updates of all slots, and one reader.
type world struct {
	rnd    *rand.Rand
	spec   perdure.TableSpec
	dim    int // values of a row; those after the first slots·mostClocks stay 0
	cfg    Config
	made   [slots][mostClocks]touched
	clocks [slots]perdure.Clock // ended by each slot
	end    perdure.Clock        // of the job
	shards []*naiveShard

	r       *Reader
	t       *Table
	calls   []*reading
	lowest  map[perdure.RowID][slots]perdure.Clock // by row, for each other slot: the clocks already read
	outages bool                                   // some shard has been unavailable
	log     []string
}

// reading is a call of the program that waits.
type reading struct {
	call *Call
	rows wire.Rows
	dst  []float32
	// What had been read of other slots before it started. For a row with several answers, any of them may be read.
	// Nil: the cache was emptied since.
	before map[perdure.RowID][slots]perdure.Clock
}

// naiveShard is a server's replica, and the connection to it.
type naiveShard struct {
	id      perdure.ShardID
	epoch   perdure.Epoch
	born    int               // the first state of this life, which has everything that was shown before
	states  [][]perdure.Clock // applied vectors, by seq
	open    bool
	source  *Source
	toShard []wire.Frame
	toSlot  []wire.Frame
	held    []wire.Frame // reads that wait for MinClock
	landing bool         // the first frame of toSlot is being received into its reader's memory
	out     bool

	subs    *consistency.Subscriptions
	least   perdure.Clock // the last MinClock that was pushed
	due     bool          // a round must start
	round   bool          // a round has started, at this state
	begun   wire.State
	begunAt perdure.Clock
}

func newWorld(seed uint64, model perdure.Consistency) *world {
	w := &world{rnd: rand.New(rand.NewPCG(seed, 1)), end: mostClocks, lowest: map[perdure.RowID][slots]perdure.Clock{}}
	if w.dim = slots * mostClocks; w.rnd.IntN(10) == 0 {
		w.dim = passBytes / 4 / (rowsOfAll / 2) // long runs bypass the cache
	}
	w.spec = perdure.TableSpec{
		Name: "t", Rows: rowsOfAll, Dim: w.dim, Consistency: model, Rule: perdure.Rule{Kind: perdure.RuleAdd},
	}
	w.spec.Sparse = w.rnd.IntN(3) == 0
	w.cfg = Config{Slots: slots, Bytes: 1 << 20}
	if w.rnd.IntN(2) == 0 {
		w.cfg.Bytes = (4*w.dim + rowCost) * (1 + w.rnd.IntN(rowsOfAll)) // rows are evicted
	}
	if !model.TwoStep() && w.rnd.IntN(3) == 0 {
		w.cfg.OnOutage = perdure.OnOutage{Continue: true, Clocks: 2}
		w.cfg.OutageRows = []perdure.OutageRows{perdure.RowsFrozen, perdure.RowsApply}[w.rnd.IntN(2)]
	}
	for s := range shards {
		w.shards = append(w.shards, &naiveShard{
			id: perdure.ShardID(s), states: [][]perdure.Clock{make([]perdure.Clock, slots)}, source: &Source{},
		})
	}
	for p := range slots {
		for c := range mostClocks {
			w.made[p][c] = touched{}
			for row := range perdure.RowID(rowsOfAll) {
				if p > 0 && w.rnd.IntN(3) == 0 {
					w.made[p][c][row] = true
				}
			}
		}
	}
	w.r = New(w.cfg, shards)
	w.t = w.r.Table(0, w.spec)
	w.tellMoment()
	for _, s := range w.shards {
		p := w.t.shards[s.id]
		s.subs = consistency.NewSubscriptions(slots, p.first, p.rows)
		w.reopen(s)
	}
	return w
}

func (w *world) say(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *world) tellMoment() {
	w.r.SetProgress(Progress{
		Clock: w.clocks[0], End: w.end, MinReadClock: consistency.AnyClock, Intervals: make([]protocol.Interval, slots),
	})
}

// homeOf returns the shard that has a row.
func (w *world) homeOf(row perdure.RowID) *naiveShard { return w.shards[w.t.shardOf(row).shard.id] }

// HasUpdates implements OwnUpdates. The slot's outbox keeps all its updates.
func (w *world) HasUpdates(s perdure.ShardID, _ perdure.TableID, from perdure.Clock) bool {
	return from <= w.clocks[0]
}

// ApplyTo implements OwnUpdates.
func (w *world) ApplyTo(
	values []float32, _ perdure.ShardID, _ perdure.TableID, first perdure.RowID, n int, from perdure.Clock,
) {
	dim := w.dim
	for i := range n {
		for c := from; c <= w.clocks[0] && c < mostClocks; c++ {
			if w.made[0][c][first+perdure.RowID(i)] {
				values[i*dim+int(c)]++
			}
		}
	}
}

// valuesOf returns a row in a state of its shard.
func (w *world) valuesOf(row perdure.RowID, applied []perdure.Clock) []float32 {
	values := make([]float32, w.dim)
	for p, clocks := range applied {
		for c := range clocks {
			if w.made[p][c][row] {
				values[p*mostClocks+int(c)] = 1
			}
		}
	}
	return values
}

func (s *naiveShard) now() []perdure.Clock { return s.states[len(s.states)-1] }

// apply makes a shard apply the next update of a slot, if the slot has made one.
func (w *world) apply(s *naiveShard, p int) {
	now := s.now()
	if now[p] >= w.clocks[p] {
		return
	}
	next := slices.Clone(now)
	for row := range perdure.RowID(rowsOfAll) {
		if w.made[p][now[p]][row] && w.homeOf(row) == s {
			s.subs.MarkChanged(perdure.Slot(p), row)
		}
	}
	next[p]++
	s.states = append(s.states, next)
	w.say("shard %d applies clock %d of slot %d: %v", s.id, now[p], p, next)
	w.push(s)
	held := s.held
	s.held = nil
	for i := range held {
		w.serve(s, &held[i])
	}
}

// state returns the state that a shard's message carries.
func (s *naiveShard) state() wire.State {
	return wire.State{Seq: uint64(len(s.states) - 1), Applied: s.now()}
}

func (s *naiveShard) header(kind wire.Kind) wire.Header {
	return wire.Header{Kind: kind, Shard: s.id, Epoch: s.epoch, Clock: slices.Min(s.now())}
}

// push makes changed rows due to be pushed, if the shard's state has changed.
func (w *world) push(s *naiveShard) {
	least := slices.Min(s.now())
	if least == s.least && w.spec.Consistency.Kind != perdure.VAP {
		return
	}
	s.least = least
	s.subs.Advance()
	if s.open && s.subs.Rows(0) > 0 {
		s.due = true
		w.goOn(s)
	}
}

// goOn continues a round of pushes, or starts one: it sends some current rows, and finally the message that all others
// are unchanged since the round started.
func (w *world) goOn(s *naiveShard) {
	switch {
	case !s.round && !s.due:
		return
	case !s.round:
		s.subs.Advance()
		s.round, s.due, s.begun, s.begunAt = true, false, s.state(), s.least
		s.subs.StartRound(0)
	}
	f := wire.Frame{Header: s.header(wire.KindPush)}
	first, n, ids := s.subs.Next(0, 2, 1+w.rnd.IntN(4), nil)
	if len(ids) > 0 {
		n = len(ids)
	}
	if n == 0 {
		s.round, f.Clock, f.Flags = false, s.begunAt, wire.FlagLast
		f.Payload = wire.AppendPushHead(nil, &s.begun, &wire.Rows{})
	} else {
		state, rows := s.state(), wire.Rows{First: first, Count: n}
		if len(ids) > 0 {
			rows.First, rows.IDs = 0, ids
		}
		f.Payload = wire.AppendPushHead(nil, &state, &rows)
		for i := range n {
			f.Payload = wire.AppendFloats(f.Payload, w.valuesOf(rows.ID(i), state.Applied))
		}
	}
	s.toSlot = append(s.toSlot, f)
}

// serve answers a frame of the reader, or keeps it until it may be answered.
func (w *world) serve(s *naiveShard, f *wire.Frame) {
	var rows wire.Rows
	if f.Kind != wire.KindSeen {
		if _, err := wire.ParseRows(f.Payload, &rows); err != nil {
			panic(err)
		}
	}
	switch f.Kind {
	case wire.KindUnsubscribe:
		for i := range rows.Count {
			s.subs.Drop(0, rows.ID(i))
		}
	case wire.KindGet:
		if slices.Min(s.now()) < f.Clock {
			if s.held = append(s.held, *f); w.rnd.IntN(10) == 0 {
				w.answer(s, f, &rows, len(s.states)-1) // too early: the reader must ignore it
			}
			return
		}
		seq, behind := len(s.states)-1, !w.spec.Consistency.Pushed() && w.dim == slots*mostClocks
		for behind && seq > s.born && slices.Min(s.states[seq-1]) >= f.Clock && w.rnd.IntN(4) > 0 {
			seq-- // a replica that lags may answer
		}
		w.answer(s, f, &rows, seq)
	}
}

// answer answers a request with the rows of a state.
func (w *world) answer(s *naiveShard, f *wire.Frame, rows *wire.Rows, seq int) {
	state := wire.State{Seq: uint64(seq), Applied: s.states[seq]}
	a := wire.Frame{Header: s.header(wire.KindRows), Payload: wire.AppendState(nil, &state)}
	a.Request, a.Clock = f.Request, slices.Min(state.Applied)
	for i := range rows.Count {
		row := rows.ID(i)
		a.Payload = wire.AppendFloats(a.Payload, w.valuesOf(row, state.Applied))
		if f.Flags&wire.FlagSubscribe != 0 && a.Clock >= f.Clock {
			s.subs.Add(0, row)
		}
	}
	s.toSlot = append(s.toSlot, a)
}

// carryOut plays the shell: it carries out the reader's due actions.
func (w *world) carryOut() {
	due := w.r.TakeActions()
	for _, f := range due.Frames {
		s := w.shards[f.Shard]
		f.Payload = slices.Clone(f.Payload)
		s.toShard = append(s.toShard, f)
	}
	for _, from := range due.Close {
		for _, s := range w.shards {
			if s.source == from {
				w.reopen(s)
			}
		}
	}
}

// reopen breaks the connection to a shard and opens a new one, to the same replica or to one of the shard's next life.
func (w *world) reopen(s *naiveShard) {
	w.say("shard %d: a new connection", s.id)
	w.r.EndReceive(s.source)
	w.r.Closed(w.r.Shard(s.id))
	if w.rnd.IntN(2) == 0 || s.epoch == 0 {
		s.epoch++
		s.born, s.source = len(s.states)-1, &Source{}
	}
	*s = naiveShard{
		id: s.id, epoch: s.epoch, born: s.born, states: s.states, source: s.source, out: s.out,
		subs: s.subs, least: s.least,
	}
	s.subs.Reset(0)
	w.r.SetSource(w.r.Shard(s.id), s.source, s.epoch)
	w.carryOut()
}

// deliver delivers the oldest message of a connection, in one direction.
func (w *world) deliver(s *naiveShard, toSlot bool) error {
	switch {
	case !s.open:
		w.say("shard %d is open", s.id)
		s.open = true
		w.r.Opened(w.r.Shard(s.id))
	case !toSlot && len(s.toShard) > 0:
		f := s.toShard[0]
		s.toShard = s.toShard[1:]
		w.say("shard %d gets %v %d", s.id, f.Kind, f.Request)
		w.serve(s, &f)
	case toSlot && len(s.toSlot) > 0:
		return w.toReader(s)
	}
	w.carryOut()
	return nil
}

// toReader delivers a shard's oldest message to the reader. If the message is received into the reader's own memory,
// its first half is delivered now and the rest by the next call.
func (w *world) toReader(s *naiveShard) error {
	f := &s.toSlot[0]
	if head := wire.AnswerHeaderBytes(slots); f.Kind == wire.KindRows && !s.landing {
		if to := w.r.AnswerBuffer(s.source, f, len(f.Payload)); to != nil {
			copy(to, f.Payload[head:])
			f.Payload, f.Body = f.Payload[:head], to
			s.landing = true
			return nil
		}
	}
	w.r.EndReceive(s.source)
	s.landing, s.toSlot = false, s.toSlot[1:]
	w.say("slot gets from shard %d: %v %d at MinClock %d", s.id, f.Kind, f.Request, f.Clock)
	take := w.r.HandleAnswer
	if f.Kind == wire.KindPush {
		take = w.r.HandlePush
	}
	err := take(w.r.Shard(s.id), f, w)
	w.carryOut()
	return err
}

// needed returns the number of other slots' clocks that a read of the reader must have, at least.
func (w *world) needed(clock perdure.Clock) perdure.Clock {
	need := consistency.RequiredMinClock(w.spec.Consistency, min(clock, w.end))
	if w.outages && w.spec.Consistency.Bounded() {
		need -= w.cfg.OnOutage.Clocks
	}
	return need
}

// check compares rows that were read at a clock with the allowed values.
func (w *world) check(q *reading, clock perdure.Clock) error {
	for i := range q.rows.Count {
		if err := w.checkRow(q, q.rows.ID(i), q.dst[i*w.dim:(i+1)*w.dim], clock); err != nil {
			return err
		}
	}
	return nil
}

// checkRow compares a row that was read at a clock with the allowed values. It must be of one state of its shard, as
// new as the model requires, not older than earlier reads, and contain all updates of the slot itself.
func (w *world) checkRow(q *reading, row perdure.RowID, values []float32, clock perdure.Clock) error {
	s := w.homeOf(row)
	least, most := [slots]perdure.Clock{}, [slots]perdure.Clock{}
	for p := range slots {
		most[p] = mostClocks
		for c, v := range values[p*mostClocks : (p+1)*mostClocks] {
			c, there := perdure.Clock(c), w.made[p][c][row]
			switch {
			case v != 0 && v != 1 || v == 1 && !there:
				return fmt.Errorf("row %d has slot %d's clock %d %v times; touched by it: %v", row, p, c, v, there)
			case v == 1:
				least[p] = c + 1
			case there:
				most[p] = min(most[p], c)
			}
		}
		if least[p] > most[p] {
			return fmt.Errorf("row %d has clock %d of slot %d, but not clock %d", row, least[p]-1, p, most[p])
		}
		if need := w.needed(clock); p > 0 && most[p] < need {
			return fmt.Errorf("row %d lacks clock %d of slot %d; it needs all below %d", row, most[p], p, need)
		}
		if p > 0 && most[p] < q.before[row][p] {
			return fmt.Errorf("row %d lacks clock %d of slot %d, which was read before", row, most[p], p)
		}
	}
	if own := min(w.clocks[0]+1, mostClocks); most[0] < own && !w.outages {
		return fmt.Errorf("row %d lacks the slot's own clock %d", row, most[0])
	}
	lowest := w.lowest[row]
	for p := 0; p < slots && q.before != nil; p++ {
		lowest[p] = max(lowest[p], least[p])
	}
	w.lowest[row] = lowest
	if !slices.ContainsFunc(s.states, func(applied []perdure.Clock) bool {
		for p := 1; p < slots; p++ {
			if applied[p] < least[p] || applied[p] > most[p] {
				return false
			}
		}
		return true
	}) {
		return fmt.Errorf("row %d matches no state of its shard: %v to %v", row, least, most)
	}
	return nil
}

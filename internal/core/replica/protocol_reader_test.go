package replica

import (
	"math/bits"
	"reflect"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/reads"
	"github.com/perdure/perdure/internal/data/wire"
)

// reader is a slot's process: a worker reduced to what it reads and sends. In each clock it reads the rows of its plan
// in order, then ends the clock. Package reads decides how a row is read and how messages from shards are handled.
type reader struct {
	dead  bool
	clock perdure.Clock
	left  rowMask // not yet read in this clock
	sent  bool    // two-step: this clock's update is sent and not ticked
	links [mostShards]shardLink
	last  [mostRows]updateSet // the value of each row's last read
	side  *readerSide
}

// readerSide is the part of a reader that is deep-copied.
type readerSide struct {
	reads   *reads.Reader
	table   *reads.Table
	call    *reads.Call // nil: no call is waiting
	row     int         // the row that it reads
	dst     []float32   // receives the row's value
	rows    wire.Rows
	dropped rowMask // off.note: reported to the shard as dropped, but kept by the reader
}

// shardLink is the knowledge of a reader's shell about a shard.
type shardLink struct {
	connection int
	open       bool
	counts     protocol.Counts
}

func newReader(p *plan, slot int) reader {
	m := reads.New(reads.Config{Slot: perdure.Slot(slot), Slots: p.slots, Bytes: 1 << 20}, p.shards)
	side := &readerSide{reads: m, table: m.Table(0, p.spec()), dst: make([]float32, rowDim)}
	for shard := range p.shards {
		m.SetSource(m.Shard(perdure.ShardID(shard)), &reads.Source{}, 1)
	}
	r := reader{left: p.reads[slot][0], side: side}
	r.tell(p)
	return r
}

// tell passes the clock to package reads.
func (r *reader) tell(p *plan) {
	r.side.reads.SetProgress(reads.Progress{
		Clock: r.clock, MinReadClock: consistency.AnyClock, Intervals: make([]protocol.Interval, p.slots),
	})
}

func (r *reader) shard(shard int) *reads.Shard { return r.side.reads.Shard(perdure.ShardID(shard)) }

// look returns the reader's knowledge about a row.
func (r *reader) look(row int) reads.RowState { return r.side.table.Inspect(perdure.RowID(row)) }

// lookLabel returns the label of a row.
func lookLabel(l *reads.RowState) label { return label{l.Seq, l.MinClock, vectorOf(l.Applied)} }

func (r *reader) key(k *keyOf, p *plan) {
	k.num(int(r.clock), int(r.left), int(r.side.dropped))
	k.flags(r.dead, r.sent, r.side.call != nil)
	for _, a := range r.side.reads.PendingRequests() {
		k.num(int(a.ID), int(a.Rows.ID(0)), int(a.Need))
		k.flags(a.Awaited, a.Subscribes)
	}
	for row := range p.rows {
		l := r.look(row)
		k.flags(l.Known, l.Current, l.Pushed, l.Joining, l.Unwanted, l.WithoutOwn)
		k.num(int(l.FetchedAt), int(l.PendingRequest), int(r.last[row]))
		if l.Known {
			k.num(int(setOf(l.Values)))
			at := lookLabel(&l)
			k.label(&at)
		}
	}
	for i := range p.shards {
		l := &r.links[i]
		k.num(l.connection, int(l.counts.Staged), int(l.counts.Applied), int(l.counts.Seen))
		k.flags(l.open)
	}
}

// own implements reads.OwnUpdates for a slot: its updates are all of its ended clocks.
type own struct {
	*system
	slot int
}

// HasUpdates implements reads.OwnUpdates.
func (o own) HasUpdates(_ perdure.ShardID, _ perdure.TableID, from perdure.Clock) bool {
	return from < o.readers[o.slot].clock
}

// ApplyTo implements reads.OwnUpdates.
func (o own) ApplyTo(
	values []float32, _ perdure.ShardID, _ perdure.TableID, first perdure.RowID, n int, from perdure.Clock,
) {
	for i := range n {
		for clock := from; clock < o.readers[o.slot].clock; clock++ {
			if o.writes[o.slot][clock].has(int(first) + i) {
				for j, d := range deltas(perdure.Slot(o.slot), clock) {
					values[i*rowDim+j] += d
				}
			}
		}
	}
}

// open starts a connection of a slot to a shard. Nothing is pushed on it yet.
func (s *system) open(slot, shard int) {
	r := &s.readers[slot]
	l := &r.links[shard]
	*l = shardLink{connection: l.connection + 1, counts: l.counts}
	r.side.reads.Closed(r.shard(shard))
	s.late[slot][shard] = append(s.late[slot][shard], s.ups[slot][shard]...)
	s.ups[slot][shard], s.downs[slot][shard] = nil, nil
	s.up(slot, shard, frame{kind: openFrame})
	s.sendDue(slot)
}

func (s *system) up(slot, shard int, f frame) {
	f.connection = s.readers[slot].links[shard].connection
	s.ups[slot][shard] = append(s.ups[slot][shard], f)
}

// sendDue plays the shell: it sends the requests that package reads has due.
func (s *system) sendDue(slot int) {
	for _, f := range s.readers[slot].side.reads.TakeActions().Frames {
		shard := int(f.Shard)
		if f.Kind == wire.KindSeen {
			s.up(slot, shard, frame{kind: sawFrame, seq: f.Request})
			continue
		}
		var rows wire.Rows
		if _, err := wire.ParseRows(f.Payload, &rows); err != nil {
			panic(err)
		}
		if f.Kind == wire.KindUnsubscribe {
			s.dropAll(slot, shard, maskOf(&rows))
			continue
		}
		s.up(slot, shard, frame{
			kind: getFrame, request: int(f.Request), row: int(rows.ID(0)), clock: f.Clock,
			subscribe: f.Flags&wire.FlagSubscribe != 0,
		})
	}
}

func maskOf(rows *wire.Rows) (m rowMask) {
	for i := range rows.Count {
		m |= 1 << rows.ID(i)
	}
	return m
}

// dropAll tells a shard which rows no longer need to be pushed.
func (s *system) dropAll(slot, shard int, rows rowMask) {
	if rows != 0 {
		s.up(slot, shard, frame{kind: dropFrame, rows: rows})
		s.say("slot %d drops %v", slot, rows.ids())
	}
}

// nextDeed is the next action of a reader.
type nextDeed int

const (
	waits nextDeed = iota
	readsRow
	asks
	ends  // the clock; under two-step clocks, sends its update
	ticks // the clock
)

func (s *system) next(slot int) nextDeed {
	r := &s.readers[slot]
	switch {
	case r.dead || r.clock >= s.ends[slot] || r.side.call != nil:
		return waits
	case r.left != 0:
		row := bits.TrailingZeros8(uint8(r.left))
		switch r.side.table.Serve(perdure.RowID(row), r.clock) {
		case reads.FromCache:
			return readsRow
		case reads.InFlight:
			return waits
		}
		if !r.links[s.home(row)].open {
			return waits
		}
		return asks
	case r.sent:
		for shard := range s.plan.shards {
			if r.links[shard].counts.Staged <= r.clock {
				return waits
			}
		}
		return ticks
	case !s.maySend(slot):
		return waits
	}
	return ends
}

// maySend reports whether vap allows sending this clock's update.
func (s *system) maySend(slot int) bool {
	r := &s.readers[slot]
	if s.off.Bound || s.model.Kind != perdure.VAP {
		return true
	}
	alone := true
	var sums [mostRows]float64
	for shard := range s.plan.shards {
		first := r.links[shard].counts.Seen
		alone = alone && first == r.clock
		for clock := first; clock <= r.clock; clock++ {
			for row := range s.writes[slot][clock].each {
				if s.home(row) == shard {
					sums[row]++ // an update adds 1 to a value
				}
			}
		}
	}
	return consistency.MaySend(s.model, r.clock, slices.Max(sums[:]), alone)
}

// goOn makes a reader take its next action.
func (s *system) goOn(slot int) error {
	r := &s.readers[slot]
	switch deed := s.next(slot); deed {
	case readsRow, asks:
		return s.begin(slot, deed)
	case ends:
		if s.model.Kind == perdure.VAP {
			if err := s.checkTransit(slot); err != nil {
				return err
			}
		}
		s.say("slot %d sends clock %d", slot, r.clock)
		for shard := range s.plan.shards {
			if r.links[shard].open {
				s.up(slot, shard, frame{kind: updateFrame, clock: r.clock})
			}
		}
		r.sent = s.model.TwoStep()
		if !r.sent {
			return s.endClock(slot)
		}
	case ticks:
		s.say("slot %d ticks clock %d", slot, r.clock)
		for shard := range s.plan.shards {
			if r.links[shard].open {
				s.up(slot, shard, frame{kind: tickFrame, clock: r.clock})
			}
		}
		r.sent = false
		return s.endClock(slot)
	}
	return nil
}

// begin starts to read the next row of the plan.
func (s *system) begin(slot int, deed nextDeed) error {
	r := &s.readers[slot]
	side := r.side
	side.row = bits.TrailingZeros8(uint8(r.left))
	side.rows = (wire.Rows{First: perdure.RowID(side.row), Count: 1})
	if s.sparse {
		side.rows = wire.Rows{Count: 1, IDs: []perdure.RowID{perdure.RowID(side.row)}}
	}
	if deed == asks {
		s.say("slot %d at clock %d asks for row %d", slot, r.clock, side.row)
	}
	side.call = side.table.Read(&side.rows, side.dst, own{s, slot})
	s.sendDue(slot)
	l := r.look(side.row)
	return s.endCall(slot, lookLabel(&l))
}

// endCall ends a reader's call if it is done, and checks the result against the label. If the row has just entered the
// cache, endCall reads it again.
func (s *system) endCall(slot int, is label) error {
	r := &s.readers[slot]
	side := r.side
	if side.call == nil || !side.call.Done() {
		return nil
	}
	_, again, err := side.call.End(&side.rows)
	side.call = nil
	if again || err != nil {
		return err
	}
	return s.read(slot, side.row, setOf(side.dst), is)
}

// endClock ends a clock: the Incs made in it become visible in cached rows, and shards learn which rows no longer
// need to be pushed.
func (s *system) endClock(slot int) error {
	r := &s.readers[slot]
	table := r.side.table
	for row := range s.writes[slot][r.clock].each {
		id, shard := perdure.RowID(row), perdure.ShardID(s.home(row))
		if d := deltas(perdure.Slot(slot), r.clock); s.sparse {
			table.ApplyRowDeltas(shard, []perdure.RowID{id}, []int32{0}, d)
		} else {
			table.ApplyDeltas(shard, row-s.first(int(shard)), 1, d)
		}
	}
	if r.clock++; r.clock < s.ends[slot] {
		r.left = s.reads[slot][r.clock]
	}
	r.tell(s.plan)
	var again rowMask // reported as dropped although they are pushed again
	for row := range s.rows {
		if l := r.look(row); s.off.again && l.Unwanted && l.Pushed {
			again |= 1 << row
		}
	}
	for shard := range s.plan.shards {
		drops := dropsOf(r.shard(shard))
		defer func(before uint64) {
			if s.off.subs {
				*drops = before
			}
		}(*drops)
	}
	r.side.reads.StartClock()
	s.sendDue(slot)
	for row := range (again | r.side.dropped).each {
		s.dropAll(slot, s.home(row), 1<<row)
	}
	r.side.dropped = 0
	return nil
}

// dropsOf returns the counter by which a reader recognizes requests made before a drop.
func dropsOf(s *reads.Shard) *uint64 {
	return (*uint64)(reflect.ValueOf(s).Elem().FieldByName("drops").Addr().UnsafePointer())
}

// unwant ends a subscription at the end of the clock.
func (s *system) unwant(slot, row int) {
	if r := &s.readers[slot]; s.off.note {
		r.side.dropped |= 1 << row
	} else {
		r.side.table.Unsubscribe(perdure.RowID(row))
	}
}

// prefetch requests a row that no call waits for.
func (s *system) prefetch(slot, row int) {
	r := &s.readers[slot]
	if r.side.table.Serve(perdure.RowID(row), r.clock) == reads.ByRequest {
		s.say("slot %d at clock %d asks for row %d", slot, r.clock, row)
	}
	r.side.table.Prefetch([]perdure.RowID{perdure.RowID(row)})
	s.sendDue(slot)
}

// toReader delivers a shard's next message to a reader.
func (s *system) toReader(slot, shard int) error {
	way := &s.downs[slot][shard]
	f := (*way)[0]
	*way = slices.Delete(*way, 0, 1)
	s.say("slot %d gets from shard %d: %v", slot, shard, &f)
	r := &s.readers[slot]
	l := &r.links[shard]
	switch f.kind {
	case openFrame:
		l.open, l.counts = true, f.counts
		s.resend(slot, shard)
		r.side.reads.Opened(r.shard(shard))
	case ackFrame:
		l.counts = f.counts
	case getFrame:
		if err := r.side.reads.HandleAnswer(r.shard(shard), s.answerFrame(&f), own{s, slot}); err != nil {
			return err
		}
	case pushFrame:
		if s.off.saw && s.model.Kind == perdure.VAP && !f.last {
			s.up(slot, shard, frame{kind: sawFrame, seq: f.label.seq})
		}
		if err := r.side.reads.HandlePush(r.shard(shard), s.pushedFrame(&f), own{s, slot}); err != nil {
			return err
		}
	}
	s.sendDue(slot)
	return s.endCall(slot, f.label)
}

// answerFrame returns an answer as a wire frame.
func (s *system) answerFrame(f *frame) *wire.Frame {
	w := &wire.Frame{Header: wire.Header{
		Kind: wire.KindRows, Request: uint64(f.request), Epoch: 1, Clock: f.label.least,
	}}
	w.Payload = wire.AppendFloats(wire.AppendState(nil, s.stateOf(f)), floatsOf(f.values[f.row]))
	return w
}

// pushedFrame returns a push as a wire frame.
func (s *system) pushedFrame(f *frame) *wire.Frame {
	w := &wire.Frame{Header: wire.Header{Kind: wire.KindPush, Epoch: 1, Clock: f.label.least}}
	if f.last {
		w.Flags |= wire.FlagLast
	}
	var rows wire.Rows
	if f.rows != 0 {
		rows.IDs = f.rows.ids()
		rows.Count = len(rows.IDs)
	}
	w.Payload = wire.AppendPushHead(nil, s.stateOf(f), &rows)
	for row := range f.rows.each {
		w.Payload = wire.AppendFloats(w.Payload, floatsOf(f.values[row]))
	}
	return w
}

func (s *system) stateOf(f *frame) *wire.State {
	return &wire.State{Seq: f.label.seq, Applied: f.label.applied[:s.slots]}
}

// floatsOf returns a row's values; setOf is its inverse.
func floatsOf(c updateSet) []float32 {
	const half = 1<<(2*mostClocks) - 1
	return []float32{float32(c & half), float32(c >> (2 * mostClocks))}
}

// resend sends the updates that a shard lacks.
func (s *system) resend(slot, shard int) {
	r := &s.readers[slot]
	l := &r.links[shard]
	end := r.clock
	if r.sent {
		end++
	}
	for clock := l.counts.Ticked; clock < end; clock++ {
		if clock >= l.counts.Staged {
			s.up(slot, shard, frame{kind: updateFrame, clock: clock})
		}
		if s.model.TwoStep() && clock < r.clock {
			s.up(slot, shard, frame{kind: tickFrame, clock: clock})
		}
	}
}

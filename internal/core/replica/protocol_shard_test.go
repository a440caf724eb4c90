package replica

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// shardSide is one shard of the system: a replica without a chain, and the part of a server's shell that belongs to it.
type shardSide struct {
	rep     *Replica
	readers [mostSlots]*Reader // of the newest connection whose Open has arrived; nil: none
	told    [mostSlots]protocol.Counts
	pos     uint64 // position of the last entry
}

// A row has two values, each for the updates of two slots: the update of clock c adds 2 to the power c. So at most 24
// updates fit in one value, and a float32 represents them all exactly.
const rowDim = 2

// pushBytes is the number of bytes that one row takes in a push: its values and its ID.
const pushBytes = 4*rowDim + 8

func (p *plan) spec() perdure.TableSpec {
	spec := perdure.TableSpec{
		Name: "rows", Dim: rowDim, Rule: perdure.Rule{Kind: perdure.RuleAdd}, Consistency: p.model, Sparse: p.sparse,
	}
	if !p.sparse {
		spec.Rows = int64(p.rows)
	}
	return spec
}

// home returns the shard that holds a row.
func (p *plan) home(row int) int {
	spec := p.spec()
	return int(placement.ShardOf(&spec, p.shards, perdure.RowID(row)))
}

func newShardSide(p *plan, shard int) shardSide {
	job := perdure.JobSpec{ID: "job", Slots: p.slots, Servers: 1, Shards: p.shards}
	v := &protocol.View{
		Revision: 1, Generation: 1, Shards: make([]protocol.ShardView, p.shards), Tables: []perdure.TableSpec{p.spec()},
	}
	for range p.slots {
		v.Slots = append(v.Slots, protocol.SlotView{Incarnation: 1, Settled: true})
	}
	sh := shardSide{rep: New(Settings{Shard: perdure.ShardID(shard), Job: job, Mutations: p.off.Set})}
	sh.rep.SetView(v, Role{Head: true, Reads: true}, false)
	sh.rep.SetContent(Content{States: make([][]byte, p.slots), Applied: make([]perdure.Clock, p.slots)}, v)
	sh.rep.ApplyView()
	sh.propose()
	return sh
}

// propose appends the control entries that the replica proposes for its view. It applies them immediately, because no
// other replica has to receive them first.
func (sh *shardSide) propose() {
	for sh.rep.Propose() {
		record := slices.Clone(sh.rep.Effects().ControlEntries)
		sh.rep.Effects().ControlEntries = nil
		for _, f := range record {
			h := wire.Header{Kind: f.Kind, Slot: f.Slot, Incarnation: f.Incarnation, Clock: f.Clock}
			sh.step(nil, wire.Frame{Header: h, Payload: f.Payload})
		}
	}
	sh.rep.Settle()
	sh.rep.Effects().Clear()
}

func (sh *shardSide) step(from *Reader, f wire.Frame) {
	sh.pos++
	sh.rep.Step(&Entry{Frame: f, From: from}, f.Body)
}

func (sh *shardSide) clone() shardSide {
	n := *sh
	n.rep = cloneOf(sh.rep)
	return n
}

// row returns the current value of a row.
func (sh *shardSide) row(row int) updateSet {
	var v [rowDim]float32
	ids := []perdure.RowID{perdure.RowID(row)}
	if err := sh.rep.State.Parts()[0].ReadRows(v[:], 0, ids, 1); err != nil {
		panic(err)
	}
	return setOf(v[:])
}

func setOf(v []float32) updateSet { return updateSet(v[0]) | updateSet(v[1])<<(2*mostClocks) }

// deltas returns the change that a slot's update of a clock makes to each of its rows: it adds a power of two to the
// one of the row's values that belongs to the slot.
func deltas(slot perdure.Slot, clock perdure.Clock) []float32 {
	v := make([]float32, rowDim)
	v[slot/2] = float32(updateSet(1) << (int(slot%2)*mostClocks + int(clock)))
	return v
}

// label describes what the shard's rows contain now.
func (sh *shardSide) label() label {
	st := &sh.rep.State
	return label{st.Seq(), st.MinClock(), vectorOf(st.Applied())}
}

// connection returns the number of a slot's current connection; 0: none.
func (sh *shardSide) connection(slot int) int { return numberOf(sh.readers[slot]) }

func numberOf(c *Reader) int {
	if c == nil {
		return 0
	}
	return c.Conn.(int)
}

// toShard delivers a slot's next message to a shard.
func (s *system) toShard(slot, shard int) error {
	way := &s.ups[slot][shard]
	f := (*way)[0]
	*way = slices.Delete(*way, 0, 1)
	s.say("shard %d gets from slot %d: %v", shard, slot, &f)
	return s.arrive(slot, shard, f)
}

func (s *system) arrive(slot, shard int, f frame) error {
	sh, p := &s.shards[shard], perdure.Slot(slot)
	from := sh.readers[slot]
	heeded := s.off.connection && (f.kind == dropFrame || f.kind == sawFrame)
	if f.connection != sh.connection(slot) && (!heeded || from == nil) {
		from = &Reader{Slot: p, Incarnation: 1, Conn: f.connection}
	}
	switch f.kind {
	case openFrame:
		if f.connection <= sh.connection(slot) {
			return nil // its connection is closed by now
		}
		if sh.readers[slot] != nil {
			sh.rep.Readers.Forget(sh.readers[slot])
		}
		sh.readers[slot], sh.told[slot] = from, protocol.Counts{}
		sh.rep.Open(Open{Reader: from, Pos: sh.pos})
		sh.rep.AnswerOpens(sh.pos)
	case getFrame:
		return s.get(shard, from, f)
	case updateFrame:
		sh.step(from, s.update(p, f.clock, shard))
	case tickFrame:
		sh.step(from, wire.Frame{Header: wire.Header{Kind: wire.KindTick, Slot: p, Clock: f.clock, Incarnation: 1}})
	case dropFrame:
		if err := sh.rep.Unsubscribe(from, &wire.Rows{Count: len(f.rows.ids()), IDs: f.rows.ids()}); err != nil {
			return err
		}
	case sawFrame:
		if err := sh.rep.RecordSeen(from, f.seq); err != nil {
			return err
		}
	}
	return s.settle(shard)
}

// update returns the frame in which a slot sends a shard its update of a clock. The frame has the deltas of those rows
// that the slot's plan changes in this clock and that the shard holds. Without such rows, it has no body.
func (s *system) update(slot perdure.Slot, clock perdure.Clock, shard int) wire.Frame {
	b := wire.Block{Values: []float32{}}
	for row := range s.writes[slot][clock].each {
		if s.home(row) == shard {
			b.IDs, b.Values = append(b.IDs, perdure.RowID(row)), append(b.Values, deltas(slot, clock)...)
		}
	}
	b.Count = len(b.IDs)
	f := wire.Frame{Header: wire.Header{Kind: wire.KindUpdate, Slot: slot, Clock: clock, Incarnation: 1, Parts: 1}}
	if b.Count > 0 {
		f.Body = wire.AppendBlock(nil, &b)
	}
	return f
}

// get makes a shard handle a request for one row. The shard answers immediately, or makes the request wait for the
// MinClock that it needs.
func (s *system) get(shard int, from *Reader, f frame) error {
	sh := &s.shards[shard]
	rd := Read{
		Reader: from, Request: uint64(f.request), MinClock: f.clock, Subscribe: f.subscribe,
		Rows: wire.Rows{First: perdure.RowID(f.row), Count: 1},
	}
	if s.sparse {
		rd.Rows.First, rd.Rows.IDs = 0, []perdure.RowID{perdure.RowID(f.row)}
	}
	empty := sh.empty(from.Slot)
	now, err := sh.rep.Read(&rd)
	switch {
	case err != nil:
		return err
	case !now:
		s.say("  it waits for MinClock %d", f.clock)
		sh.rep.Readers.AddWaiting(rd)
		return nil
	}
	s.answer(shard, &rd)
	if empty && s.off.answered {
		sh.rep.Readers.pushes.opened(from.Slot)
	}
	return s.settle(shard)
}

// empty reports whether the shard knows that the slot has no cached rows. It is always false except under vap. It reads
// a private field of package consistency by reflection.
func (sh *shardSide) empty(slot perdure.Slot) bool {
	seen := sh.rep.Readers.pushes.seen
	return seen != nil && reflect.ValueOf(seen).Elem().FieldByName("slots").Index(int(slot)).FieldByName("empty").Bool()
}

// answer sends a row that was requested.
func (s *system) answer(shard int, rd *Read) {
	sh := &s.shards[shard]
	row := int(rd.Rows.ID(0))
	a := frame{kind: getFrame, request: int(rd.Request), row: row, label: sh.label()}
	a.values[row] = sh.row(row)
	s.toSlot(shard, rd.Reader, a)
}

// toSlot sends a message to a slot on a connection.
func (s *system) toSlot(shard int, to *Reader, f frame) {
	slot := to.Slot
	f.connection = numberOf(to)
	if f.connection != s.readers[slot].links[shard].connection {
		return // the slot has abandoned that connection
	}
	s.downs[slot][shard] = append(s.downs[slot][shard], f)
	s.say("  shard %d to slot %d: %v", shard, slot, &f)
}

// settle makes a shard settle, compares its rows with its counts, and carries out the effects. Pushes are sent when
// push is called.
func (s *system) settle(shard int) error {
	sh := &s.shards[shard]
	before := vectorOf(sh.rep.State.Applied())
	sh.rep.Settle()
	applied := vectorOf(sh.rep.State.Applied())
	for slot := range s.slots {
		for clock := before[slot]; clock < applied[slot]; clock++ {
			s.say("  applied: slot %d clock %d", slot, clock)
		}
	}
	for row := range s.rows {
		if s.home(row) != shard {
			continue
		}
		if got, want := sh.row(row), s.valueOf(row, applied); got != want {
			return fmt.Errorf("row %d of shard %d is %v, but its counts imply %v", row, shard, got, want)
		}
	}
	return s.carryOut(shard)
}

func (s *system) carryOut(shard int) error {
	sh := &s.shards[shard]
	fx := sh.rep.Effects()
	defer fx.Clear()
	for _, c := range fx.Reopen {
		if c == sh.readers[c.Slot] {
			return fmt.Errorf("gap in the updates of slot %d on a connection that lost nothing", c.Slot)
		}
	}
	for i := range fx.Answers {
		a := &fx.Answers[i]
		if a.Err != nil {
			return a.Err
		}
		s.answer(shard, &a.Read)
		if a.Ack {
			s.ack(shard, a.Reader)
		}
	}
	for _, o := range fx.Opened {
		n := sh.rep.Counts(o.Reader)
		sh.told[o.Reader.Slot] = n
		s.toSlot(shard, o.Reader, frame{kind: openFrame, counts: n})
	}
	for _, a := range fx.Acks {
		s.ack(shard, a.Reader)
	}
	return fx.Fail
}

// ack sends a slot its counts if they exceed those that it was last sent and waits for. (All other counts are sent
// eventually, and change nothing.)
func (s *system) ack(shard int, c *Reader) {
	sh := &s.shards[shard]
	n, sent := sh.rep.Counts(c), &sh.told[c.Slot]
	if s.model.TwoStep() && n.Staged > sent.Staged || s.model.Kind == perdure.VAP && n.Seen > sent.Seen {
		*sent = n
		s.toSlot(shard, c, frame{kind: ackFrame, counts: n})
	}
}

// pushes reports whether anything must be pushed to a slot.
func (sh *shardSide) pushes(slot int) bool {
	c, _ := sh.rep.Readers.Flow(perdure.Slot(slot))
	to := &sh.rep.Readers.pushes.rounds[slot]
	return c != nil && (to.begun || to.due)
}

// push continues a slot's round by as much as is passed to the network in one call. If no round is in progress, it
// starts the one that is due, possibly late because the slot is slow.
func (s *system) push(slot, shard int) {
	sh, p := &s.shards[shard], perdure.Slot(slot)
	to, st := &sh.rep.Readers, &sh.rep.State
	c, _ := to.Flow(p)
	seq := to.pushes.seq
	if s.off.advance {
		to.pushes.seq = st.Seq()
	}
	started := to.StartRound(p, st)
	to.pushes.seq = seq
	if started && s.off.order {
		s.toSlot(shard, c, frame{kind: pushFrame, label: labelOf(&to.pushes.rounds[slot]), last: true})
	}
	var frames []frame
	done := false
	for left := s.piece*pushBytes + s.spare; left > 0 && !done; {
		rows, _, bytes := to.NextRows(p, left, st)
		done = rows.Count == 0
		if done {
			break
		}
		f := frame{kind: pushFrame, label: sh.label()}
		for i := range rows.Count {
			row := int(rows.ID(i))
			f.rows |= 1 << row
			f.values[row] = sh.row(row)
		}
		frames = append(frames, f)
		left -= bytes
	}
	end := labelOf(&to.pushes.rounds[slot])
	to.EndRound(p, done)
	if done && s.off.rest {
		to.pushes.rounds[slot].due = false
	}
	switch n := len(frames); {
	case !done || s.off.order:
	case n > 0 && started:
		frames[n-1].last = true
	default:
		frames = append(frames, frame{kind: pushFrame, label: end, last: true})
	}
	for _, f := range frames {
		s.toSlot(shard, c, f)
	}
}

func labelOf(r *pushRound) label { return label{r.state.Seq, r.minClock, vectorOf(r.state.Applied)} }

// leaves makes a shard follow a view in which the slot has left the job, and forget the connection of the slot's
// process.
func (s *system) leaves(slot, shard int) error {
	sh := &s.shards[shard]
	v := sh.rep.view.Clone()
	v.Slots[slot].Left = true
	if c := sh.readers[slot]; c != nil {
		sh.rep.Readers.Forget(c)
		sh.readers[slot] = nil
	}
	sh.rep.SetView(&v, sh.rep.role, false)
	sh.rep.ApplyView()
	sh.rep.ReportSeen()
	return s.settle(shard)
}

func (sh *shardSide) key(k *keyOf, p *plan) {
	a, st := &sh.rep.Readers, &sh.rep.State
	k.num(int(st.Seq()), int(a.pushes.seq), int(a.pushes.minClock), len(a.waiting))
	for i := range a.waiting {
		rd := &a.waiting[i]
		k.num(numberOf(rd.Reader), int(rd.Request), int(rd.MinClock), int(rd.Rows.ID(0)))
	}
	for i := range p.slots {
		pending := st.intake.Pending(perdure.Slot(i))
		k.num(int(st.Applied()[i]), len(pending))
		for _, u := range pending {
			k.num(int(u.Clock))
			k.flags(u.Ticked())
		}
		s, o := &a.slots[i], &a.pushes.rounds[i]
		k.num(numberOf(s.reader))
		k.flags(o.begun, o.due)
		if o.begun {
			l := labelOf(o)
			k.label(&l)
		}
		if a.pushes.seen != nil {
			k.num(int(a.pushes.reportedSeen[i]))
		}
		if a.pushes.seen != nil || p.model.TwoStep() { // otherwise no worker waits for an acknowledgement
			k.num(int(s.prompt), int(sh.told[i].Staged), int(sh.told[i].Seen))
			k.flags(s.dirty, s.staged)
		}
	}
	for _, sub := range a.pushes.subs {
		if sub != nil {
			k.value(reflect.ValueOf(sub).Elem())
		}
	}
	if a.pushes.seen != nil {
		k.value(reflect.ValueOf(a.pushes.seen).Elem())
	}
	for row := range p.rows {
		if p.home(row) == int(sh.rep.shard) {
			k.num(int(sh.row(row)))
		}
	}
}

// value encodes a value of another package. Sets whose last words are empty equal shorter ones.
func (k *keyOf) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		k.flags(v.Bool())
	case reflect.Int, reflect.Int32, reflect.Int64:
		k.num(int(v.Int()))
	case reflect.Uint64:
		k.num(int(v.Uint()))
	case reflect.Slice:
		n := v.Len()
		for v.Type().Elem().Kind() == reflect.Uint64 && n > 0 && v.Index(n-1).Uint() == 0 {
			n--
		}
		k.num(n)
		for i := range n {
			k.value(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			k.value(v.Field(i))
		}
	case reflect.Map: // the slice of rows already says where they are
	default:
		panic("keyOf.value: unsupported kind " + v.Kind().String())
	}
}

// first returns the first row of a dense shard.
func (p *plan) first(shard int) int {
	spec := p.spec()
	first, _ := placement.Range(&spec, p.shards, perdure.ShardID(shard))
	return int(first)
}

package chain

import (
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
)

// member returns a link of a shard with two slots and rows, in a chain of two.
func member(t *testing.T, head bool) *Link {
	t.Helper()
	l := NewLink(LinkOptions{Job: &perdure.JobSpec{Slots: 2, Shards: 1}})
	p := Role{Config: Config{Epoch: 1, Head: head, Tail: !head}, Pred: protocol.Holder{Server: 4, Incarnation: 2}}
	n := Fence{Shard: 3, Generation: 7, Epoch: 1}
	l.Follow(n, &p, true)
	l.Start()
	l.Follow(n, &p, false)
	return &l
}

// rows returns the state of a replica with an update of a one-row table.
func rows(t *testing.T) (*replica.State, *protocol.View) {
	t.Helper()
	job := perdure.JobSpec{ID: "j", Slots: 2, Servers: 1, Shards: 4, Seed: 7}
	v := &protocol.View{
		Revision: 1, Generation: 7, Shards: make([]protocol.ShardView, 4),
		Slots: []protocol.SlotView{{Incarnation: 1, Settled: true}, {Incarnation: 1, Settled: true}},
	}
	r := replica.New(replica.Settings{Shard: 3, Job: job})
	r.SetView(v, replica.Role{Head: true, Reads: true}, false)
	r.SetContent(replica.Content{States: make([][]byte, 2), Applied: make([]perdure.Clock, 2)}, v)
	return &r.State, v
}

// pump delivers the messages of two members until none are left, and returns the entries that each was given. A message
// that is held back is counted instead of delivered.
func pump(t *testing.T, head, tail *Link, tailReads bool) (given [2][]wire.Header, held int) {
	t.Helper()
	for again := true; again; {
		again = false
		for i, l := range []*Link{head, tail} {
			r := l.Ready()
			for j := range r.Apply {
				e := &r.Apply[j].Entry
				l.Applying(e, 0)
				given[i] = append(given[i], e.Frame.Header)
			}
			for _, m := range slices.Clone(r.Messages) {
				again = true
				f, later := l.Frame(&m, tailReads)
				switch {
				case later:
					held++
				case l == head && m.To == Successor:
					tail.FromPredecessor(&f)
				case l == tail && m.To == Predecessor:
					head.FromSuccessor(Successor, &f)
				default:
					t.Fatalf("member %d sends a message to %v", i, m.To)
				}
			}
		}
	}
	return given, held
}

func tick(slot perdure.Slot, clock perdure.Clock) *wire.Frame {
	return &wire.Frame{Header: wire.Header{Kind: wire.KindTick, Generation: 7, Shard: 3, Slot: slot, Clock: clock}}
}

// TestAnEntryGoesAlong checks that an entry passes along the chain as a frame and arrives unchanged. The backlog counts
// entries that are in the log and not in the replica.
func TestAnEntryGoesAlong(t *testing.T) {
	head, tail := member(t, true), member(t, false)
	pump(t, head, tail, false)
	e, err := head.Tick(&replica.Reader{Slot: 1, Incarnation: 5}, tick(1, 6), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	head.Append(e)
	if head.backlog.of(1) == 0 || head.backlog.of(0) != 0 {
		t.Errorf("backlog after an entry of slot 1: %v", head.backlog)
	}
	head.Append(
		replica.Entry{Frame: head.FactFrame(&replica.ControlEntry{Kind: wire.KindEnd, Slot: perdure.NoSlot, Clock: 9})})
	given, _ := pump(t, head, tail, false)
	for i, got := range given {
		if len(got) != 2 || got[0].Kind != wire.KindTick || got[0].Slot != 1 || got[0].Incarnation != 5 ||
			got[0].Clock != 6 || got[1].Kind != wire.KindEnd || got[1].Clock != 9 {
			t.Errorf("member %d was given %+v", i, got)
		}
	}
	if head.backlog.of(1) != 0 || tail.backlog.of(1) != 0 {
		t.Errorf("backlogs after all entries were given: %v and %v", head.backlog, tail.backlog)
	}
}

// TestWhenThePredecessorHears checks that a Committed message to the predecessor is held back only if no process waits
// for it.
func TestWhenThePredecessorHears(t *testing.T) {
	fact := wire.KindEnd
	for _, c := range []struct {
		name      string
		tailReads bool
		entry     wire.Kind
		bytes     int
		followed  uint64
		joiner    uint64
		end       perdure.Clock
		want      bool // held back
	}{
		{"the predecessor serves reads", false, wire.KindTick, 0, 0, 0, 0, false},
		{"the predecessor serves no reads", true, wire.KindTick, 0, 0, 0, 0, true},
		{"a fact is awaited", true, fact, 0, 0, 0, 0, false},
		{"the job's last clock is awaited", true, wire.KindTick, 0, 0, 0, 1, false},
		{"the last clock but one is not awaited", true, wire.KindTick, 0, 0, 0, 2, true},
		{"the predecessor keeps many bytes", true, wire.KindUpdate, maxPendingBytes, 0, 0, 0, false},
		{"it asked", true, wire.KindTick, 0, 1, 0, 0, false},
		{"the tail waits for the joiner", true, wire.KindTick, 0, 0, 1, 0, false},
	} {
		l := member(t, false)
		l.commits.followed = c.followed
		e := replica.Entry{Frame: wire.Frame{Header: wire.Header{Kind: c.entry}, Body: make([]byte, c.bytes)}}
		l.Applying(&e, c.end)
		m := LinkOutgoing{To: Predecessor, Message: Message[replica.Entry]{
			Kind: Committed, Epoch: 1, Pos: 1, Joiner: c.joiner,
		}}
		_, later := l.Frame(&m, c.tailReads)
		if _, owed := l.PendingCommit(); later != c.want || owed != c.want {
			t.Errorf("%s: held back %v, pending %v; want %v", c.name, later, owed, c.want)
		}
		if _, owed := l.PendingCommit(); owed {
			t.Errorf("%s: still pending after Owed", c.name)
		}
	}
}

// TestEarlyTicks checks that a tick is early, and may be deferred, while another slot's tick of the same clock has not
// been forwarded.
func TestEarlyTicks(t *testing.T) {
	l := member(t, true)
	st, v := rows(t)
	for i, c := range []struct {
		slot  perdure.Slot
		clock perdure.Clock
		want  bool
	}{{0, 0, true}, {1, 0, false}, {1, 1, true}, {0, 1, false}, {0, 1, false}} {
		if got := l.Deferrable(tick(c.slot, c.clock), st, v); got != c.want {
			t.Errorf("tick %d, of slot %d, clock %d: early %v", i, c.slot, c.clock, got)
		}
	}
	v.Slots[1].Interval.Until = 2 // it does not participate in clock 2
	if l.Deferrable(tick(0, 2), st, v) {
		t.Error("a tick waits for a slot that does not participate")
	}
	if l.Deferrable(&wire.Frame{Header: wire.Header{Kind: wire.KindUpdate, Clock: 3}}, st, v) {
		t.Error("an update is early")
	}
}

// TestRejects checks the messages of workers that Update and Tick reject.
func TestRejects(t *testing.T) {
	l := member(t, true)
	st, _ := rows(t)
	from := &replica.Reader{Slot: 1, Incarnation: 5}
	update := func(clock perdure.Clock, part, parts uint16) *wire.Frame {
		return &wire.Frame{Header: wire.Header{Kind: wire.KindUpdate, Clock: clock, Part: part, Parts: parts}}
	}
	for _, c := range []struct {
		name string
		from *replica.Reader
		f    *wire.Frame
		most int64
		want bool
	}{
		{"an update", from, update(0, 0, 1), 1 << 20, true},
		{"an observer's", &replica.Reader{Slot: perdure.NoSlot}, update(0, 0, 1), 1 << 20, false},
		{"a negative clock", from, update(-1, 0, 1), 1 << 20, false},
		{"a part index out of range", from, update(0, 1, 1), 1 << 20, false},
		{"too many bytes", from, update(0, 0, 1), -1, false},
	} {
		if e, err := l.Update(c.from, c.f, st, 0, c.most); (err == nil) != c.want {
			t.Errorf("%s: %v, %+v", c.name, err, e.Frame.Header)
		}
	}
	l.Append(replica.Entry{Frame: *tick(1, 0)})
	if _, err := l.Tick(from, tick(1, 1), 0); err == nil {
		t.Error("a slot may send ticks without limit")
	}
	if _, err := l.Tick(&replica.Reader{Slot: 0}, tick(0, 1), 0); err != nil {
		t.Errorf("another slot's backlog counts: %v", err)
	}
}

// TestWhatIsRead checks that FromLog accepts valid records of the update log and rejects those that violate the rules.
func TestWhatIsRead(t *testing.T) {
	l := member(t, true)
	st, _ := rows(t)
	record := func(kind wire.Kind, slot perdure.Slot, clock perdure.Clock, change func(*wire.Frame)) wire.Frame {
		f := wire.Frame{Header: wire.Header{Kind: kind, Generation: 7, Shard: 3, Slot: slot, Clock: clock, Parts: 1}}
		change(&f)
		return f
	}
	same := func(*wire.Frame) {}
	for _, c := range []struct {
		name string
		f    wire.Frame
		want bool
	}{
		{"an update", record(wire.KindUpdate, 1, 0, same), true},
		{"a tick", record(wire.KindTick, 1, 0, same), true},
		{"a fact", record(wire.KindEnd, perdure.NoSlot, 9, same), true},
		{"another shard's", record(wire.KindTick, 1, 0, func(f *wire.Frame) { f.Shard = 2 }), false},
		{"another generation's", record(wire.KindEnd, 1, 0, func(f *wire.Frame) { f.Generation = 6 }), false},
		{"nobody's", record(wire.KindTick, perdure.NoSlot, 0, same), false},
		{"an unknown slot", record(wire.KindUpdate, 2, 0, same), false},
		{"a negative clock", record(wire.KindUpdate, 0, -1, same), false},
		{"a part index out of range", record(wire.KindUpdate, 0, 0, func(f *wire.Frame) { f.Part = 1 }), false},
		{"an unknown table", record(wire.KindUpdate, 0, 0, func(f *wire.Frame) {
			f.Payload = wire.AppendBlock(nil, &wire.Block{Rows: wire.Rows{Count: 1}, Values: []float32{1}})
		}), false},
	} {
		e, err := l.FromLog(&c.f, st, 0)
		if (err == nil) != c.want || err == nil && e.Frame.Header != c.f.Header {
			t.Errorf("%s: %v, %+v", c.name, err, e.Frame.Header)
		}
	}
}

// TestPlace checks that a Link knows its predecessor and its role, and which messages to accept.
func TestPlace(t *testing.T) {
	l := member(t, false)
	if !l.PrecededBy(4, 2) || l.PrecededBy(4, 1) || l.PrecededBy(5, 2) || member(t, true).PrecededBy(4, 2) {
		t.Error("PrecededBy accepts another process")
	}
	v := &protocol.View{Shards: make([]protocol.ShardView, 4)}
	v.Shards[3].Yields, v.Shards[3].Epoch = true, 1
	if l.Retiring(v) || !member(t, true).Retiring(v) {
		t.Error("Yields: want true only for the head that yields")
	}
	if v.Shards[3].Epoch = 2; member(t, true).Retiring(v) {
		t.Error("Yields: true for the head of an earlier epoch")
	}
	for _, c := range []struct{ eager, head, tail, want bool }{
		{false, true, false, false}, {false, false, true, true}, {true, true, false, true}, {true, false, true, false},
	} {
		p := Role{Config: Config{Eager: c.eager, Head: c.head, Tail: c.tail}}
		if p.Reads() != c.want {
			t.Errorf("%+v: Reads returns %v", c, p.Reads())
		}
	}
	f := wire.Frame{Header: wire.Header{Epoch: 9}}
	if l.epochOf(&f) != 9 {
		t.Error("epochOf does not return the message's epoch")
	}
	if l.acceptAll = true; l.epochOf(&f) != 1 {
		t.Error("the negative control does not accept all messages")
	}
	var none Link
	if none.Joined() || none.Started() || none.End() != 0 {
		t.Error("a Link without a log has begun or joined")
	}
}

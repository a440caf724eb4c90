package reads

import (
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
)

// This file has the decisions that the naive twin does not tell from one that is a little
// off: what matters to memory and traffic alone, and what is rare in its courses.

// nothing is the outbox of a slot that has made nothing.
type nothing struct{}

func (nothing) Lacks(perdure.ShardID, perdure.TableID, perdure.Clock) bool { return false }

func (nothing) AddTo([]float32, perdure.ShardID, perdure.TableID, perdure.RowID, int, perdure.Clock) {
}

// opened returns a reader at clock 5 of a table with 4 rows of one value, and its one shard,
// which is open.
func opened(t *testing.T, consistencyModel string, bytes int) (*Reader, *Shard, *Table) {
	t.Helper()
	r := New(Config{Slots: 1, Bytes: bytes}, 1)
	r.SetMoment(Moment{Clock: 5, Begun: consistency.Always, Spans: make([]words.Span, 1)})
	x := r.Table(0, perdure.TableSpec{
		Name: "t", Rows: 4, Dim: 1, Consistency: model(t, consistencyModel), Rule: perdure.Rule{Kind: perdure.RuleAdd},
	})
	s := r.Shard(0)
	r.Direct(s, &Source{}, 0)
	r.Opened(s)
	return r, s, x
}

// cached puts a row into the cache, as of a state of the shard.
func cached(x *Table, row perdure.RowID, seq uint64, value float32) *contents {
	cc := &x.parts[0].cache
	at := x.place(x.parts[0], row)
	cc.read[at] = &contents{seq: seq, minClock: 5, applied: []perdure.Clock{5}, fetchedAt: 5}
	cc.row(at)[0] = value
	return cc.read[at]
}

// pushOf is the push of a row, as of a state of the shard.
func pushOf(row perdure.RowID, seq uint64, value float32) *wire.Frame {
	state := wire.State{Seq: seq, Applied: []perdure.Clock{5}}
	head := wire.AppendPushHead(nil, &state, &wire.Rows{First: row, Count: 1})
	return &wire.Frame{
		Header: wire.Header{Kind: wire.KindPush, Clock: 5}, Payload: wire.AppendFloats(head, []float32{value}),
	}
}

// answerTo answers the one request that is open, as of a state of the shard.
func answerTo(t *testing.T, r *Reader, seq uint64, values ...float32) {
	t.Helper()
	for _, q := range r.Asked() {
		state := wire.State{Seq: seq, Applied: []perdure.Clock{5}}
		f := wire.Frame{Header: wire.Header{Kind: wire.KindRows, Request: q.ID, Clock: 5}}
		f.Payload = wire.AppendFloats(wire.AppendState(nil, &state), values)
		if err := r.Take(r.Shard(0), &f, nothing{}); err != nil {
			t.Fatal(err)
		}
	}
}

// A pushed row replaces what is cached unless that is newer: an answer may have overtaken it.
func TestPushedRowThatIsOlder(t *testing.T) {
	for _, c := range []struct {
		seq  uint64
		want float32
	}{{8, 1}, {9, 2}, {10, 2}} {
		r, s, x := opened(t, "essp:2", 1<<20)
		cached(x, 0, 9, 1)
		x.parts[0].cache.pushed[0] = true
		if err := r.TakePush(s, pushOf(0, c.seq, 2), nothing{}); err != nil {
			t.Fatal(err)
		}
		if got := x.Look(0); got.Values[0] != c.want || got.Seq != max(9, c.seq) {
			t.Errorf("pushed as of %d where 9 is cached: value %v as of %d, want %v",
				c.seq, got.Values[0], got.Seq, c.want)
		}
	}
}

// Pushes are in vain that come between two reads of a row.
func TestPushesInVainAreCounted(t *testing.T) {
	r, s, x := opened(t, "essp:2", 1<<20)
	cached(x, 0, 1, 1)
	cc := &x.parts[0].cache
	cc.pushed[0] = true
	for i := range uint64(3) {
		if err := r.TakePush(s, pushOf(0, 2+i, 2), nothing{}); err != nil {
			t.Fatal(err)
		}
	}
	if cc.vain[0] != 3 {
		t.Errorf("3 pushes came, and %d are counted", cc.vain[0])
	}
	if call := x.Read(&wire.Rows{Count: 1}, make([]float32, 1), nothing{}); !call.Done() || cc.vain[0] != 0 {
		t.Errorf("the row was read, and %d pushes are in vain", cc.vain[0])
	}
}

// Where very many rows need not be pushed, the shard is told before the clock ends.
func TestManyUnwantedAreTold(t *testing.T) {
	for _, n := range []int{mostUnwanted - 2, mostUnwanted - 1} {
		r, s, x := opened(t, "essp:2", 1<<20)
		p := x.parts[0]
		p.unwanted = make([]perdure.RowID, n)
		if err := r.TakePush(s, pushOf(1, 2, 2), nothing{}); err != nil {
			t.Fatal(err)
		}
		if told := len(r.Due().Frames) > 0; told != (n+1 >= mostUnwanted) {
			t.Errorf("%d rows are unwanted, and the shard was told: %v", n+1, told)
		}
	}
}

// A row for which the cache has no room is read, and need not be pushed.
func TestNoRoomIsUnwanted(t *testing.T) {
	r, _, x := opened(t, "essp:2", 0)
	x.Read(&wire.Rows{Count: 1, IDs: []perdure.RowID{2}}, make([]float32, 1), nothing{})
	r.Due()
	answerTo(t, r, 1, 7)
	if !x.Look(2).Unwanted {
		t.Error("the row is pushed to a client that has no room for it")
	}
}

// A run does not make cached rows of a large part older.
func TestRunRefreshesWhatIsOlder(t *testing.T) {
	for _, c := range []struct {
		seq  uint64
		want float32
	}{{2, 1}, {3, 7}, {4, 7}} {
		r, _, x := opened(t, "ssp:2", 4+rowCost)
		cached(x, 1, 3, 1)
		r.now.Clock = 9 // too late for what is cached
		x.Read(&wire.Rows{Count: 4}, make([]float32, 4), nothing{})
		r.asked.each(func(q *request) { q.need = 5 })
		r.Due()
		answerTo(t, r, c.seq, 7, 7, 7, 7)
		if got := x.Look(1).Values[0]; got != c.want {
			t.Errorf("read as of %d where 3 is cached: %v, want %v", c.seq, got, c.want)
		}
	}
}

// What the reader has taken without the cache, the cache does not have from before.
func TestPassedRunForgetsOlder(t *testing.T) {
	r, _, x := opened(t, "bsp", 1<<30)
	x.spec.Dim = passBytes
	x.parts[0].cache.dim = passBytes
	cached(x, 0, 1, 1).minClock = 4
	x.Read(&wire.Rows{Count: 1}, make([]float32, passBytes), nothing{})
	r.Due()
	answerTo(t, r, 2, make([]float32, passBytes)...)
	if x.Look(0).Known {
		t.Error("a row is cached that is older than what was read")
	}
}

// Whatever ends a subscription ends it for answers, too, that were asked for before.
func TestClosedEndsSubscriptions(t *testing.T) {
	for _, closed := range []bool{false, true} {
		r, s, x := opened(t, "essp:2", 1<<20)
		x.parts[0].unwant(3)
		x.Read(&wire.Rows{Count: 1}, make([]float32, 1), nothing{})
		r.Due()
		if closed {
			r.Closed(s)
			s.open = true
		}
		answerTo(t, r, 1, 7)
		if got := x.Look(0); !got.Known || got.Pushed == closed {
			t.Errorf("closed meanwhile: %v, and the row is taken for pushed: %v", closed, got.Pushed)
		}
		r.Tidy()
		drops := slices.ContainsFunc(r.Due().Frames, func(f wire.Frame) bool { return f.Kind == wire.KindDrop })
		if drops == closed {
			t.Errorf("closed meanwhile: %v, and what another replica pushed is dropped: %v", closed, drops)
		}
	}
}

// Own deltas show unless an earlier process of the slot has done this clock already.
func TestShowsWhatIsNotThere(t *testing.T) {
	for _, c := range []struct {
		applied perdure.Clock
		want    float32
	}{{4, 3}, {5, 3}, {6, 1}} {
		_, _, x := opened(t, "ssp:2", 1<<20)
		cached(x, 0, 1, 1).applied[0] = c.applied
		x.Show(0, 0, 1, []float32{2})
		if got := x.Look(0).Values[0]; got != c.want {
			t.Errorf("%d own clocks are in the row at clock 5: %v, want %v", c.applied, got, c.want)
		}
	}
}

// A request that was sent twice may still be queued with its payload: it is not used again.
func TestSentTwiceIsNotUsedAgain(t *testing.T) {
	for sent := range 4 {
		var r requests
		q := r.make(wire.KindLoad, nil, &Shard{}, 0)
		q.sent = sent
		r.free(q)
		if again := len(r.spare) > 0; again != (sent <= 1) {
			t.Errorf("sent %d times, and used again: %v", sent, again)
		}
	}
}

// What was Inc'd while a shard was out does not show in its cached rows: they lack it from that
// clock on, and an update that is computed from them says so.
func TestLacksWhatWasHidden(t *testing.T) {
	r, s, x := opened(t, "asp", 1<<20)
	r.cfg.OutageRows = perdure.RowsFrozen
	cached(x, 0, 1, 1)
	r.Out(s)
	r.now.Clock = 6
	x.Show(0, 0, 1, []float32{2})
	r.now.Clock = 8
	r.Back(s)
	c := x.parts[0].cache.read[0]
	if c.lacks != 7 {
		t.Errorf("the row lacks own clocks from %d on, want 6", c.lacks-1)
	}
	x.reads(&sight{shard: s, c: c, n: 1})
	if lag := r.Origin(s).Lag; lag != 2 {
		t.Errorf("at clock 8 an update is computed from rows without %d own clocks, want 2: 6 and 7", lag)
	}
}

package reads

import (
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// This file tests decisions that the naive twin cannot distinguish from slightly wrong ones: those that affect only
// memory and traffic, and those that are rare in its courses.

// nothing is the outbox of a slot that has made no updates.
type nothing struct{}

func (nothing) HasUpdates(perdure.ShardID, perdure.TableID, perdure.Clock) bool { return false }

func (nothing) ApplyTo([]float32, perdure.ShardID, perdure.TableID, perdure.RowID, int, perdure.Clock) {
}

// opened returns a reader at clock 5, with one open shard and a table of 4 rows of one value.
func opened(t *testing.T, consistencyModel string, bytes int) (*Reader, *Shard, *Table) {
	t.Helper()
	r := New(Config{Slots: 1, Bytes: bytes}, 1)
	r.SetProgress(Progress{Clock: 5, MinReadClock: consistency.AnyClock, Intervals: make([]protocol.Interval, 1)})
	x := r.Table(0, perdure.TableSpec{
		Name: "t", Rows: 4, Dim: 1, Consistency: model(t, consistencyModel), Rule: perdure.Rule{Kind: perdure.RuleAdd},
	})
	s := r.Shard(0)
	r.SetSource(s, &Source{}, 0)
	r.Opened(s)
	return r, s, x
}

// cached puts a row into the cache, as of a state of the shard.
func cached(x *Table, row perdure.RowID, seq uint64, value float32) *contents {
	cc := &x.shards[0].cache
	at := x.positionFor(x.shards[0], row)
	cc.read[at] = &contents{seq: seq, minClock: 5, applied: []perdure.Clock{5}, fetchedAt: 5}
	cc.row(at)[0] = value
	return cc.read[at]
}

// pushOf returns the push of a row, as of a state of the shard.
func pushOf(row perdure.RowID, seq uint64, value float32) *wire.Frame {
	state := wire.State{Seq: seq, Applied: []perdure.Clock{5}}
	head := wire.AppendPushHead(nil, &state, &wire.Rows{First: row, Count: 1})
	return &wire.Frame{
		Header: wire.Header{Kind: wire.KindPush, Clock: 5}, Payload: wire.AppendFloats(head, []float32{value}),
	}
}

// answerTo answers the only open request, as of a state of the shard.
func answerTo(t *testing.T, r *Reader, seq uint64, values ...float32) {
	t.Helper()
	for _, q := range r.PendingRequests() {
		state := wire.State{Seq: seq, Applied: []perdure.Clock{5}}
		f := wire.Frame{Header: wire.Header{Kind: wire.KindRows, Request: q.ID, Clock: 5}}
		f.Payload = wire.AppendFloats(wire.AppendState(nil, &state), values)
		if err := r.HandleAnswer(r.Shard(0), &f, nothing{}); err != nil {
			t.Fatal(err)
		}
	}
}

// A pushed row replaces the cached row unless the cached row is newer, because an answer has overtaken the push.
func TestPushedRowThatIsOlder(t *testing.T) {
	for _, c := range []struct {
		seq  uint64
		want float32
	}{{8, 1}, {9, 2}, {10, 2}} {
		r, s, x := opened(t, "essp:2", 1<<20)
		cached(x, 0, 9, 1)
		x.shards[0].cache.pushed[0] = true
		if err := r.HandlePush(s, pushOf(0, c.seq, 2), nothing{}); err != nil {
			t.Fatal(err)
		}
		if got := x.Inspect(0); got.Values[0] != c.want || got.Seq != max(9, c.seq) {
			t.Errorf("push of state %d, cached state 9: value %v as of %d, want %v",
				c.seq, got.Values[0], got.Seq, c.want)
		}
	}
}

// Pushes between two reads of a row are in vain.
func TestPushesInVainAreCounted(t *testing.T) {
	r, s, x := opened(t, "essp:2", 1<<20)
	cached(x, 0, 1, 1)
	cc := &x.shards[0].cache
	cc.pushed[0] = true
	for i := range uint64(3) {
		if err := r.HandlePush(s, pushOf(0, 2+i, 2), nothing{}); err != nil {
			t.Fatal(err)
		}
	}
	if cc.unreadPushes[0] != 3 {
		t.Errorf("3 pushes arrived, but %d are counted", cc.unreadPushes[0])
	}
	if call := x.Read(&wire.Rows{Count: 1}, make([]float32, 1), nothing{}); !call.Done() || cc.unreadPushes[0] != 0 {
		t.Errorf("after a read, %d pushes count as in vain", cc.unreadPushes[0])
	}
}

// If very many rows no longer need to be pushed, the shard is notified before the clock ends.
func TestManyUnwantedAreTold(t *testing.T) {
	for _, n := range []int{maxUnsubscribing - 2, maxUnsubscribing - 1} {
		r, s, x := opened(t, "essp:2", 1<<20)
		p := x.shards[0]
		p.unsubscribing = make([]perdure.RowID, n)
		if err := r.HandlePush(s, pushOf(1, 2, 2), nothing{}); err != nil {
			t.Fatal(err)
		}
		if sent := len(r.TakeActions().Frames) > 0; sent != (n+1 >= maxUnsubscribing) {
			t.Errorf("%d unwanted rows: shard notified: %v", n+1, sent)
		}
	}
}

// If the cache has no room for a row, the row is read but not subscribed to.
func TestNoRoomIsUnwanted(t *testing.T) {
	r, _, x := opened(t, "essp:2", 0)
	x.Read(&wire.Rows{Count: 1, IDs: []perdure.RowID{2}}, make([]float32, 1), nothing{})
	r.TakeActions()
	answerTo(t, r, 1, 7)
	if !x.Inspect(2).Unwanted {
		t.Error("the client stays subscribed to a row that it cannot cache")
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
		r.now.Clock = 9 // too late for the cached rows
		x.Read(&wire.Rows{Count: 4}, make([]float32, 4), nothing{})
		r.asked.each(func(q *request) { q.need = 5 })
		r.TakeActions()
		answerTo(t, r, c.seq, 7, 7, 7, 7)
		if got := x.Inspect(1).Values[0]; got != c.want {
			t.Errorf("read of state %d, cached state 3: %v, want %v", c.seq, got, c.want)
		}
	}
}

// After a read that bypasses the cache, the cache has no older rows.
func TestPassedRunForgetsOlder(t *testing.T) {
	r, _, x := opened(t, "bsp", 1<<30)
	x.spec.Dim = passBytes
	x.shards[0].cache.dim = passBytes
	cached(x, 0, 1, 1).minClock = 4
	x.Read(&wire.Rows{Count: 1}, make([]float32, passBytes), nothing{})
	r.TakeActions()
	answerTo(t, r, 2, make([]float32, passBytes)...)
	if x.Inspect(0).Known {
		t.Error("a cached row is older than the row read")
	}
}

// An event that ends a subscription also ends it for answers that were requested before.
func TestClosedEndsSubscriptions(t *testing.T) {
	for _, closed := range []bool{false, true} {
		r, s, x := opened(t, "essp:2", 1<<20)
		x.shards[0].queueUnsubscribe(3)
		x.Read(&wire.Rows{Count: 1}, make([]float32, 1), nothing{})
		r.TakeActions()
		if closed {
			r.Closed(s)
			s.open = true
		}
		answerTo(t, r, 1, 7)
		if got := x.Inspect(0); !got.Known || got.Pushed == closed {
			t.Errorf("closed in between: %v, but the row counts as pushed: %v", closed, got.Pushed)
		}
		r.StartClock()
		drops := slices.ContainsFunc(r.TakeActions().Frames,
			func(f wire.Frame) bool { return f.Kind == wire.KindUnsubscribe })
		if drops == closed {
			t.Errorf("closed in between: %v, but the other replica's push is dropped: %v", closed, drops)
		}
	}
}

// Own deltas show unless an earlier process of the slot has already made this clock.
func TestShowsWhatIsNotThere(t *testing.T) {
	for _, c := range []struct {
		applied perdure.Clock
		want    float32
	}{{4, 3}, {5, 3}, {6, 1}} {
		_, _, x := opened(t, "ssp:2", 1<<20)
		cached(x, 0, 1, 1).applied[0] = c.applied
		x.ApplyDeltas(0, 0, 1, []float32{2})
		if got := x.Inspect(0).Values[0]; got != c.want {
			t.Errorf("row with %d own clocks at clock 5: %v, want %v", c.applied, got, c.want)
		}
	}
}

// A request that was sent twice may still be queued with its payload, so it is not reused.
func TestSentTwiceIsNotUsedAgain(t *testing.T) {
	for sent := range 4 {
		var r requests
		q := r.make(wire.KindLoad, nil, &Shard{}, 0)
		q.sent = sent
		r.free(q)
		if again := len(r.spare) > 0; again != (sent <= 1) {
			t.Errorf("sent %d times: reused is %v", sent, again)
		}
	}
}

// Incs made while a shard is unavailable do not show in its cached rows. The rows lack them from that clock on, and an
// update computed from these rows says so.
func TestLacksWhatWasHidden(t *testing.T) {
	r, s, x := opened(t, "asp", 1<<20)
	r.cfg.OutageRows = perdure.RowsFrozen
	cached(x, 0, 1, 1)
	r.MarkUnavailable(s)
	r.now.Clock = 6
	x.ApplyDeltas(0, 0, 1, []float32{2})
	r.now.Clock = 8
	r.MarkAvailable(s)
	c := x.shards[0].cache.read[0]
	if c.ownMissingFrom != 7 {
		t.Errorf("the row lacks own clocks from clock %d on, want 6", c.ownMissingFrom-1)
	}
	x.reads(&readRecord{shard: s, c: c, n: 1})
	if lag := r.Origin(s).Lag; lag != 2 {
		t.Errorf("at clock 8 an update is computed from rows that lack %d own clocks, want 2: 6 and 7", lag)
	}
}

package reads

import (
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

func model(t *testing.T, s string) perdure.Consistency {
	t.Helper()
	m, err := perdure.ParseConsistency(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// unread is the MinClock of a row that was never read.
const unread = perdure.Clock(-100)

func plain(*Reader, *Table)        {}
func pushes(_ *Reader, x *Table)   { x.shards[0].cache.pushed[0] = true }
func isOut(r *Reader, _ *Table)    { r.shards[0].unavailable = true }
func isExact(r *Reader, _ *Table)  { r.cfg.Exact = true }
func lacksOwn(_ *Reader, x *Table) { x.shards[0].cache.read[0].ownMissingFrom = 1 }

// isAsked puts the row in transit, requested by a read that needs the given MinClock.
func isAsked(need perdure.Clock) func(*Reader, *Table) {
	return func(r *Reader, x *Table) {
		q := r.asked.make(wire.KindGet, x, r.shards[0], need)
		r.asked.register(q)
		x.shards[0].cache.open(x.subscribes)
		if x.shards[0].cache.read[0] == nil {
			x.shards[0].cache.read[0] = &contents{minClock: never}
		}
		x.shards[0].cache.read[0].pendingRequest = q.id
	}
}

// serveCases list how a read of a cached row is served under each model. The row was fetched at clock 5, with the given
// MinClock.
var serveCases = []struct {
	name, model     string
	minClock, clock perdure.Clock
	change          func(*Reader, *Table)
	want            Serving
}{
	{"never read", "asp", unread, 5, plain, ByRequest},
	{"this clock", "asp", 0, 5, plain, FromCache},
	{"the previous clock", "asp", 5, 6, plain, ByRequest},
	{"in transit", "asp", unread, 5, isAsked(consistency.AnyClock), InFlight},

	{"all earlier clocks", "bsp", 5, 5, plain, FromCache},
	{"one lacks", "bsp", 4, 5, plain, ByRequest},
	{"newer than needed", "bsp", 6, 5, plain, FromCache},
	{"in transit", "bsp", 4, 5, isAsked(5), InFlight},
	{"in transit, for an earlier clock", "bsp", 4, 6, isAsked(5), ByRequest},
	{"out: bsp relaxes nothing", "bsp", 4, 5, isOut, ByRequest},

	{"none allowed", "ssp:0", 5, 5, plain, FromCache},
	{"no staleness allowed, one clock missing", "ssp:0", 4, 5, plain, ByRequest},
	{"within", "ssp:2", 3, 5, plain, FromCache},
	{"beyond", "ssp:2", 2, 5, plain, ByRequest},
	{"beyond, later", "ssp:2", 3, 6, plain, ByRequest},
	{"out: within", "ssp:2", 3, 5, isOut, FromCache},
	{"out: beyond, as far as allowed", "ssp:2", 0, 5, isOut, BeyondBound},
	{"out: too far beyond", "ssp:2", -1, 5, isOut, ByRequest},
	{"out: never read", "ssp:2", unread, 5, isOut, ByRequest},

	{"within, not pushed", "essp:2", 3, 5, plain, FromCache},
	{"beyond, not pushed", "essp:2", 2, 5, plain, ByRequest},
	{"beyond, pushed", "essp:2", 2, 5, pushes, InFlight},
	{"beyond, its pushes have ended", "essp:2", 2, 5, func(r *Reader, x *Table) {
		pushes(r, x)
		r.Closed(r.shards[0])
	}, ByRequest},

	{"not pushed", "vap:1", 9, 5, plain, ByRequest},
	{"pushed", "vap:1", -9, 5, pushes, FromCache},
	{"pushed, and its shard is closed", "vap:1", 9, 5, func(r *Reader, x *Table) {
		pushes(r, x)
		r.shards[0].open = false
	}, ByRequest},

	{"the job has ended", "ssp:0", 5, 9, func(r *Reader, _ *Table) { r.now.End = 5 }, FromCache},
	{
		"ticked by the slot's former process", "bsp", 5, 5,
		func(r *Reader, _ *Table) { r.now.MinReadClock = 6 }, ByRequest,
	},
	{"exact", "asp", 4, 5, isExact, ByRequest},
	{"exact, complete", "ssp:9", 5, 5, isExact, FromCache},
	{"own updates do not show", "ssp:2", 5, 5, lacksOwn, ByRequest},
	{"own updates do not show, and the shard is out", "ssp:2", 5, 5, func(r *Reader, x *Table) {
		lacksOwn(r, x)
		isOut(r, x)
	}, BeyondBound},
}

// TestServe checks Serve against the table.
func TestServe(t *testing.T) {
	for _, c := range serveCases {
		r := New(Config{Slots: 2, Bytes: 1 << 20, OnOutage: perdure.OnOutage{Continue: true, Clocks: 3}}, 1)
		r.SetProgress(Progress{
			Clock: c.clock, MinReadClock: consistency.AnyClock,
			Intervals: make([]protocol.Interval, 2),
		})
		x := r.Table(0, perdure.TableSpec{Name: "t", Rows: 4, Dim: 1, Consistency: model(t, c.model)})
		r.shards[0].open = true
		if c.minClock != unread {
			x.shards[0].cache.open(x.subscribes)
			x.shards[0].cache.read[0] = &contents{minClock: c.minClock, applied: make([]perdure.Clock, 2), fetchedAt: 5}
		}
		c.change(r, x)
		if got := x.Serve(0, r.clock()); got != c.want {
			t.Errorf("%s, %s: MinClock %d at clock %d: %v, want %v", c.model, c.name, c.minClock, c.clock, got, c.want)
		}
	}
}

// A read requests what it may then read: everything that the model needs, and at least as much as the slot's former
// process had begun to read.
func TestNeed(t *testing.T) {
	for _, c := range []struct {
		model       string
		begun, want perdure.Clock // at clock 5
		exact       bool
	}{
		{"bsp", consistency.AnyClock, 5, false},
		{"ssp:2", consistency.AnyClock, 3, false},
		{"ssp:2", 3, 3, false},
		{"ssp:2", 4, 4, false},
		{"asp", 4, 4, false},
		{"asp", 4, 5, true},
	} {
		r := New(Config{Slots: 1, Bytes: 1 << 20, Exact: c.exact}, 1)
		r.SetProgress(Progress{Clock: 5, MinReadClock: c.begun, Intervals: make([]protocol.Interval, 1)})
		x := r.Table(0, perdure.TableSpec{Name: "t", Rows: 4, Dim: 1, Consistency: model(t, c.model)})
		if got := x.need(5); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// All reads that wait for a part's pushes wait for the same request, which must satisfy the most demanding of them.
func TestAwaitPush(t *testing.T) {
	r := New(Config{Slots: 1, Bytes: 1 << 20}, 1)
	r.SetProgress(Progress{Clock: 5, MinReadClock: consistency.AnyClock, Intervals: make([]protocol.Interval, 1)})
	x := r.Table(0, perdure.TableSpec{Name: "t", Rows: 4, Dim: 1, Consistency: model(t, "essp:2")})
	first := x.awaitPush(x.shards[0], 4)
	for _, need := range []perdure.Clock{3, 4, 5, 2} {
		if q := x.awaitPush(x.shards[0], need); q != first || q.need < max(4, need) {
			t.Errorf("a second read that needs %d waits for another push, or for MinClock %d", need, q.need)
		}
	}
	if first.need != 5 {
		t.Errorf("the push is awaited until MinClock %d, want 5", first.need)
	}
}

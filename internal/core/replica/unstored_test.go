package replica

import (
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/wire"
)

// sparseBench returns a bench with a sparse table, in which a slot may subscribe to 100 rows more than are stored.
func sparseBench(t *testing.T) *bench {
	t.Helper()
	return newBench(t, "essp:1", "none", 2, func(s *Settings, spec *perdure.TableSpec) {
		s.MaxUnstored, spec.Sparse, spec.Rows = 100, true, 0
	})
}

// subscribe reads n rows starting at first, and subscribes to them.
func (b *bench) subscribe(slot perdure.Slot, first perdure.RowID, n int) error {
	b.t.Helper()
	rd := Read{
		Reader: b.readers[slot], MinClock: consistency.AnyClock, Rows: wire.Rows{IDs: rowsFrom(first, n), Count: n},
		Subscribe: true,
	}
	now, err := b.Read(&rd)
	if !now && err == nil {
		b.t.Fatal("a read without a bound has to wait")
	}
	return err
}

func rowsFrom(first perdure.RowID, n int) (ids []perdure.RowID) {
	for i := range n {
		ids = append(ids, first+perdure.RowID(i))
	}
	return ids
}

// TestEndlessSubscriptions: a slot may subscribe to a fixed number of rows more than are stored, and to no more. Rows
// that it reads again, drops, or had on another connection do not count, nor do other slots' rows.
func TestEndlessSubscriptions(t *testing.T) {
	b := sparseBench(t)
	ok := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	full := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "at most 100 more") {
			t.Errorf("%s: %v; want an error", what, err)
		}
	}
	ok("the maximum", b.subscribe(0, 0, 100))
	ok("the same again", b.subscribe(0, 50, 50))
	ok("another slot's", b.subscribe(1, 1000, 100))
	full("one more", b.subscribe(0, 100, 1))
	drop := wire.Rows{IDs: rowsFrom(0, 11), Count: 11}
	ok("drop some", b.Unsubscribe(b.readers[0], &drop))
	ok("as many as were dropped", b.subscribe(0, 200, 10))
	full("one more than were dropped", b.subscribe(0, 300, 1))

	stored := rowsFrom(5000, 40) // now they are stored
	body := wire.AppendBlock(nil, &wire.Block{
		Rows: wire.Rows{IDs: stored, Count: len(stored)}, Values: slices.Repeat([]float32{1}, len(stored)),
	})
	b.step(wire.Frame{Header: wire.Header{Kind: wire.KindUpdate, Slot: 1, Incarnation: 1, Parts: 1}, Body: body})
	b.settle()
	ok("as many more as are now stored", b.subscribe(0, 400, 39))
	full("one more than that", b.subscribe(0, 500, 1))

	b.readers[0] = &Reader{Slot: 0, Incarnation: 1}
	b.Open(Open{Reader: b.readers[0], Pos: b.pos})
	b.AnswerOpens(b.pos)
	ok("on another connection", b.subscribe(0, 0, 140))
	full("one more there", b.subscribe(0, 140, 1))
}

// TestStoredSubscriptions: a slot may subscribe to all rows that are stored, and to all rows of a dense table.
func TestStoredSubscriptions(t *testing.T) {
	b := newBench(t, "essp:1", "none", 1, func(s *Settings, spec *perdure.TableSpec) {
		s.MaxUnstored, spec.Rows = 1, 100_000
	})
	rd := Read{
		Reader: b.readers[0], MinClock: consistency.AnyClock, Rows: wire.Rows{Count: 100_000}, Subscribe: true,
	}
	if now, err := b.Read(&rd); !now || err != nil {
		t.Errorf("all rows of a dense table: %v, %v", now, err)
	}
}

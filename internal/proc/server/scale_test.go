package server_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// TestStaleScale checks that servers scale down an update by the number of clocks that all slots have finished since
// the read it is based on. The update names that clock, and the result does not depend on how it is split into parts.
// All replicas, including a later joiner, hold the same values.
func TestStaleScale(t *testing.T) {
	for _, how := range []perdure.StaleScale{perdure.ScaleInverse, perdure.ScalePaper, perdure.ScaleNone} {
		t.Run(string(how), func(t *testing.T) {
			inFleet(t, "asp", "chain:2", 2, 0, func(f *fleet) {
				f.job.StaleScale = how
				for i := range 3 {
					f.start(i)
				}
				f.chain(0, 1)
				f.table(dense())
				want := f.ages(how)
				f.joins(2)
				f.chain(0, 1, 2)
				if got, ok := f.works(2, 1).row(0); !ok || got != want {
					t.Errorf("the row is %v, want %v", got, want)
				}
				if held := f.end(0, 1, 2); held[1] != held[0] || held[2] != held[0] {
					t.Errorf("they hold\n%s\n%s\n%s", held[0], held[1], held[2])
				}
			})
		})
	}
}

// ages sends updates of different ages and returns the expected value of row 0.
func (f *fleet) ages(how perdure.StaleScale) (want float32) {
	ws := []*speaker{f.works(0, 0), f.works(0, 1)}
	rng := rand.New(rand.NewPCG(1, 1))
	applied := make([]perdure.Clock, 2)
	scaledDown := false
	for range 120 {
		slot := rng.IntN(2)
		clock, now := applied[slot], slices.Min(applied)
		applied[slot]++
		lag := perdure.Clock(rng.IntN(3) * rng.IntN(30))
		basis, by := perdure.Clock(rng.IntN(int(now)+2)), float32(1) // may be newer than this shard
		var age perdure.Clock
		if said := rng.IntN(4) > 0; said {
			age = max(lag, now-basis)
		} else {
			basis = wire.NoBasis
		}
		switch {
		case how == perdure.ScaleInverse:
			by = float32(1 / (1 + float64(age)))
		case how == perdure.ScalePaper && 2*age > 50:
			by = 0.1
		}
		scaledDown = scaledDown || by < 1
		want += by * float32(clock+1)
		f.inParts(ws[slot], rng.IntN(3), clock, basis, lag, float32(clock+1))
	}
	if !scaledDown && how != perdure.ScaleNone {
		f.Error("no update was old")
	}
	return want
}

// inParts sends an update that adds v to row 0, in one part, in two parts, or in two parts that both contain the row.
func (f *fleet) inParts(w *speaker, how int, clock, basis, lag perdure.Clock, v float32) {
	last := []byte{}
	if how != 1 {
		last = add(v)
	}
	if basis != wire.NoBasis {
		last = wire.AppendBasisBlock(last, basis, lag)
	}
	if how == 0 {
		w.say(wire.KindUpdate, clock, last)
		return
	}
	first := add(v)
	if how == 2 {
		first = add(v / 2) // the last delta of a row counts
	}
	w.say(wire.KindUpdate, clock, first, func(h *wire.Header) { h.Parts = 0 })
	w.say(wire.KindUpdate, clock, last, func(h *wire.Header) {
		h.Part, h.Parts = 1, 2
		if how == 2 {
			h.Flags |= wire.FlagDuplicateRows
		}
	})
}

// TestBadBasis checks that an update with an invalid basis is rejected.
func TestBadBasis(t *testing.T) {
	const basis, alone = 0xFFFFFFFE, 0xFFFFFFFD
	for _, bad := range []wire.Rows{
		{Table: basis, First: 1 << 63},
		{Table: basis, IDs: []perdure.RowID{}},
		{Table: alone, First: 1},
		{Table: alone, Count: 1},
		{Table: alone, IDs: []perdure.RowID{}},
	} {
		t.Run(fmt.Sprint(bad), func(t *testing.T) {
			inFleet(t, "asp", "none", 1, 1, func(f *fleet) {
				f.chain(0)
				f.table(dense())
				w := f.works(0, 0)
				w.say(wire.KindUpdate, 0, wire.AppendRows(add(1), &bad))
				if c := f.works(0, 0).counts(); c.Staged != 0 {
					t.Errorf("it counts %+v", c)
				}
			})
		})
	}
}

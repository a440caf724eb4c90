package replica

import (
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// What the tables, all together, ask for is asked for of a replica, too, that has them from a
// snapshot: else it would not weaken what all others weaken.
func TestAdoptedAgree(t *testing.T) {
	first := newBench(t, "ssp:3", "none", 1)
	first.job.StaleScale = perdure.ScaleInverse
	first.State.agree()
	for clock := range perdure.Clock(3) {
		first.update(0, clock, 1)
	}
	first.Finish()
	second := first.copyOf()
	for _, b := range []*bench{first, second} {
		body := wire.AppendBasisBlock(nil, 1, 0)
		body = wire.AppendBlock(body, &wire.Block{Rows: wire.Rows{First: 1, Count: 1}, Values: []float32{1}})
		b.step(wire.Frame{Header: wire.Header{Kind: wire.KindUpdate, Clock: 3, Incarnation: 1, Parts: 1}, Body: body})
		b.Finish()
	}
	if got, want := second.values(), first.values(); !slices.Equal(got, want) || got[1] == 4 {
		t.Errorf("rows %v of a replica that began with a snapshot; the other one has %v", got, want)
	}
	if first.State.TailReads() != second.State.TailReads() {
		t.Errorf("one replica takes it that rows are read from the tail, and the other one does not")
	}
}

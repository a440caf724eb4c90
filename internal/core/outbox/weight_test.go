package outbox

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/wire"
)

// weighed returns an Outbox of a bsp job with two tables, one of which combines updates by weight.
func weighed(t *testing.T) (*Outbox, *Shard) {
	t.Helper()
	b, s := asked(t, "bsp", "stateless", Limits{Window: 1 << 20})
	b.jobView.view.Tables = append(b.jobView.view.Tables, b.jobView.view.Tables[0])
	b.jobView.view.Tables[1].Name, b.jobView.view.Tables[1].Combine = "weighted", perdure.CombineWeighted
	for id, spec := range b.jobView.view.Tables {
		b.Table(perdure.TableID(id), spec)
	}
	return b, s
}

// A table's weight is in the last part of each shard's update of its clock, even if nothing was Inc'd, and in no other
// part. A clock without the weight cannot end.
func TestWeigh(t *testing.T) {
	b, s := weighed(t)
	for clock, weight := range []float64{3.5, 0, 1e9} {
		if err := b.Check(); !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), "call Table.Weigh") {
			t.Errorf("clock %d ends without a weight: %v", clock, err)
		}
		if weight == 0 {
			b.SetView(b.jobView.view, true) // a rollback
			b.ResetClock()
			continue
		}
		for _, err := range []error{
			b.tables[1].Weigh(1), b.tables[1].Weigh(weight), b.Check(), s.Fill(consistency.Origin{Basis: -1}),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		b.Seal()
		u := s.kept[len(s.kept)-1]
		frames := u.frames(wire.Header{}, nil)
		f := frames[len(frames)-1]
		var got []float64
		blocks := wire.ReadBlocks(slices.Concat(f.Payload, f.Body))
		for blocks.Next() {
			if got = append(got, blocks.Weight); blocks.Table != 1 {
				t.Errorf("the weight belongs to table %d", blocks.Table)
			}
		}
		if !slices.Equal(got, []float64{weight}) || int(f.Parts) != len(frames) {
			t.Errorf("clock %d has weights %v, want %v", clock, got, weight)
		}
	}
}

// Weigh rejects an invalid weight with the table's name, and any weight for a table that does not combine by weight.
func TestBadWeights(t *testing.T) {
	b, _ := weighed(t)
	for _, w := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		err := b.tables[1].Weigh(w)
		if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), "table weighted: ") {
			t.Errorf("weight %v: %v", w, err)
		}
	}
	err := b.tables[0].Weigh(1)
	if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), "combine each") {
		t.Errorf("a weight for a table that does not combine by weight: %v", err)
	}
}

package worker_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/packed"
	"github.com/perdure/perdure/worker"
)

// Tables of a job whose updates are rounded.
const (
	roundedRows   = 30
	roundedDim    = 100
	roundedClocks = 4
)

// roundedDeltas returns the deltas of a slot in a clock.
func roundedDeltas(slot int, clock perdure.Clock) []float32 {
	r := rand.New(rand.NewPCG(uint64(slot), uint64(clock)))
	values := make([]float32, roundedRows*roundedDim)
	for i := range values {
		values[i] = float32(r.NormFloat64()) * 1e-3
	}
	return values
}

// TestRoundedUpdates: the servers receive exactly what Round predicts, in dense tables, sparse ones, and ones with the
// mean of the slots; they add it in the order of the slots. GetRunRounded returns the rows rounded, and other reads
// return them as they are, also in the same clock.
func TestRoundedUpdates(t *testing.T) {
	for _, recovery := range []string{"none", "chain:2", "stateless", "resend:2"} {
		for _, e := range []perdure.Encoding{perdure.EncodingBF16, perdure.EncodingInt8, perdure.Encoding2Bit} {
			t.Run(fmt.Sprint(recovery, " ", e), func(t *testing.T) {
				inCluster(t, "bsp", recovery, 2, 0, func(c *cluster) { c.round(e) })
			})
		}
	}
}

func (c *cluster) round(e perdure.Encoding) {
	ws := []*worker.Client{c.dial("worker:0", 0), c.dial("worker:1", 1)}
	var sums [3][]float32 // of the tables
	for i := range sums {
		sums[i] = make([]float32, roundedRows*roundedDim)
	}
	var expected [roundedClocks][3][]float32
	for clock := range perdure.Clock(roundedClocks) {
		for i := range sums {
			expected[clock][i] = slices.Clone(sums[i])
		}
		mean := make([]float32, len(sums[0]))
		for slot := range ws {
			deltas := roundedDeltas(slot, clock)
			packed.Round(deltas, e, roundedDim)
			for i, v := range deltas {
				sums[0][i] += v
				sums[1][i] += v
				half := v * 0.5
				mean[i] += half
			}
		}
		for i, v := range mean {
			sums[2][i] += v
		}
	}
	all := make([]perdure.RowID, roundedRows)
	for i := range all {
		all[i] = perdure.RowID(i)
	}
	both(len(ws), func(slot int) {
		w := ws[slot]
		var tables [3]*worker.Table
		for i, change := range []func(*perdure.TableSpec){
			func(*perdure.TableSpec) {},
			func(s *perdure.TableSpec) { s.Rows, s.Sparse = 0, true },
			func(s *perdure.TableSpec) { s.Combine = perdure.CombineMean },
		} {
			tables[i] = c.table(w, func(s *perdure.TableSpec) {
				s.Name, s.Rule, s.Encoding = fmt.Sprint("t", i), perdure.Rule{Kind: perdure.RuleAdd}, e
				s.Rows, s.Dim = roundedRows, roundedDim
				change(s)
			})
		}
		for clock := range perdure.Clock(roundedClocks) {
			for i, table := range tables {
				c.readRounded(table, all, expected[clock][i])
			}
			deltas := roundedDeltas(slot, clock)
			to, err := tables[2].Deltas(0, roundedRows)
			if err != nil {
				c.Error(err)
				return
			}
			copy(to, deltas)
			err = errors.Join(tables[0].IncRun(0, deltas), tables[1].IncRows(all, deltas), tables[2].Flush())
			if err != nil {
				c.Error(err)
			}
			if err := tables[2].IncRun(0, deltas); !errors.Is(err, perdure.ErrUsage) {
				c.Errorf("an Inc after Flush: %v", err)
			}
			c.clock(w, clock+1)
		}
	})
}

// readRounded compares the rows of a table with the expected ones, as they are and rounded.
func (c *cluster) readRounded(table *worker.Table, all []perdure.RowID, want []float32) {
	got := make([]float32, len(want))
	exact := func() {
		if err := table.GetRows(c.ctx, all, got); err != nil || !slices.Equal(got, want) {
			c.Errorf("table %s is %v, want %v: %v", table.Spec().Name, got[:4], want[:4], err)
		}
	}
	exact()
	for _, e := range []perdure.Encoding{perdure.EncodingBF16, perdure.EncodingInt8} {
		_, _, err := table.GetRunRounded(c.ctx, 0, got, e)
		if table.Spec().Sparse {
			if !errors.Is(err, perdure.ErrUsage) {
				c.Errorf("a run of a sparse table: %v", err)
			}
			continue
		}
		near := slices.Clone(want)
		if packed.Round(near, e, roundedDim); err != nil || !slices.Equal(got, near) {
			c.Errorf("table %s is %v as %s, want %v: %v", table.Spec().Name, got[:4], e, near[:4], err)
		}
		if _, _, err := table.GetRunRounded(c.ctx, 0, got, perdure.Encoding2Bit); !errors.Is(err, perdure.ErrUsage) {
			c.Errorf("a read as 2bit: %v", err)
		}
	}
	exact()
}

// TestRoundedTablesRefused: tables whose updates must not be rounded are refused, each with its reason.
func TestRoundedTablesRefused(t *testing.T) {
	spec := perdure.TableSpec{
		Name: "w", Rows: 8, Dim: 8, Rule: perdure.Rule{Kind: perdure.RuleAdd}, Encoding: perdure.EncodingInt8,
		Consistency: perdure.Consistency{Kind: perdure.SSP},
	}
	if err := spec.Validate(2); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*perdure.TableSpec){
		"unknown": func(s *perdure.TableSpec) { s.Encoding = "int4" },
		"set":     func(s *perdure.TableSpec) { s.Rule.Kind = perdure.RuleSet },
		"vap":     func(s *perdure.TableSpec) { s.Consistency = perdure.Consistency{Kind: perdure.VAP, Bound: 1} },
		"NaN":     func(s *perdure.TableSpec) { s.NonFinite = perdure.AllowNonFinite },
		"counts":  func(s *perdure.TableSpec) { s.Distance = perdure.DistanceTV },
	} {
		s := spec
		if change(&s); !errors.Is(s.Validate(2), perdure.ErrUsage) {
			t.Errorf("%s: %v", what, s.Validate(2))
		}
	}
}

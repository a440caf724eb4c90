package worker_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/worker"
)

// TestWeigh checks that a table that combines updates by weight contains their weighted mean, even if a slot changes
// nothing. A slot does not read its own deltas in the same clock. A clock without a weight does not end until it has
// one.
func TestWeigh(t *testing.T) {
	inCluster(t, "bsp", "none", 2, 0, func(c *cluster) {
		ws := []*worker.Client{c.dial("worker:0", 0), c.dial("worker:1", 1)}
		both(2, func(slot int) {
			w := ws[slot]
			table := c.table(w, func(s *perdure.TableSpec) {
				s.Name, s.Rule, s.Combine = "weighted", perdure.Rule{Kind: perdure.RuleAdd}, perdure.CombineWeighted
			})
			read := func(row perdure.RowID, want float32) {
				got := make([]float32, dim)
				err := table.Get(c.ctx, row, got)
				if err != nil || !slices.Equal(got, slices.Repeat([]float32{want}, dim)) {
					c.Errorf("slot %d at clock %d reads row %d as %v, want %v: %v", slot, w.Now(), row, got, want, err)
				}
			}
			inc := func(row perdure.RowID, by float32) {
				if err := table.Inc(row, slices.Repeat([]float32{by}, dim)); err != nil {
					c.Error(err)
				}
			}
			for clock := range perdure.Clock(3) {
				read(0, 5*float32(clock)) // (8·1 + 4·3)/4
				read(1, 3*float32(clock)) // 4·3/4: slot 0 does not change it
				inc(0, []float32{8, 4}[slot])
				if slot == 1 {
					inc(1, 4)
				}
				read(0, 5*float32(clock))
				if at, err := w.Clock(c.ctx); at != clock || !errors.Is(err, perdure.ErrUsage) ||
					!strings.Contains(err.Error(), "table weighted") {
					c.Errorf("without a weight clock %d becomes %d: %v", clock, at, err)
				}
				if err := table.Weigh([]float64{1, 3}[slot]); err != nil {
					c.Error(err)
				}
				if at, err := w.Clock(c.ctx); at != clock+1 || err != nil {
					c.Errorf("clock %d becomes %d: %v", clock, at, err)
				}
			}
		})
	})
}

// TestCombineRefused checks that a table that combines updates is rejected under other models, in the program itself.
func TestCombineRefused(t *testing.T) {
	inCluster(t, "ssp:1", "none", 1, 0, func(c *cluster) {
		w := c.dial("worker:0", 0)
		_, err := w.Table(c.ctx, perdure.TableSpec{
			Name: "w", Rows: 8, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd}, Combine: perdure.CombineMean,
		})
		if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), "choose bsp for the table, or combine") {
			t.Error(err)
		}
		err = c.table(w).Weigh(1)
		if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), "combine each") {
			t.Error(err)
		}
	})
}

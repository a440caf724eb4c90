package worker_test

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// Deltas that are computed in place count as Inc'd at Clock, or at Flush, over all
// shards, beside others, and again and again in the same memory.
func TestDeltasInPlace(t *testing.T) {
	for _, model := range []string{"bsp", "ssp:1", "asp"} {
		t.Run(model, func(t *testing.T) {
			inCluster(t, model, "none", 1, 0, func(c *cluster) {
				w := c.dial("worker:0", 0)
				table := c.table(w)
				want, got := make([]float32, rows*dim), make([]float32, rows*dim)
				for clock := range perdure.Clock(20) {
					first, n := perdure.RowID(clock%3), rows-4
					d, err := table.Deltas(first, n)
					if err != nil || len(d) != n*dim {
						t.Fatalf("%d values, %v", len(d), err)
					}
					if err := table.Inc(rows-1, []float32{1, 2, 3}); err != nil {
						t.Fatal(err)
					}
					for i := range d {
						d[i] = float32(clock) + float32(i)
						want[int(first)*dim+i] += d[i]
					}
					for i := range 3 {
						want[(rows-1)*dim+i] += float32(i + 1)
					}
					if clock%4 == 3 {
						if err := table.Flush(); err != nil {
							t.Fatal(err)
						}
						if err := table.Inc(first, []float32{5, 5, 5}); err != nil { // once more, after it has left
							t.Fatal(err)
						}
						for i := range 3 {
							want[int(first)*dim+i] += 5
						}
					}
					c.clock(w, clock+1)
					if clock%5 == 0 {
						c.pass(10 * time.Millisecond) // the update is safe, and its memory free
					}
					if err := table.GetRun(c.ctx, 0, got); err != nil || !slices.Equal(got, want) {
						t.Fatalf("at clock %d: %v, %v; want %v", clock+1, got, err, want)
					}
				}
			})
		})
	}
}

// What would make two of one row's deltas, or none, is refused, and can be mended.
func TestDeltasRefusals(t *testing.T) {
	inCluster(t, "bsp", "none", 1, 0, func(c *cluster) {
		w := c.dial("worker:0", 0)
		table := c.table(w)
		usage := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, perdure.ErrUsage) {
				t.Errorf("%s: %v, want ErrUsage", what, err)
			}
		}
		row := []float32{1, 1, 1}
		if err := table.Inc(5, row); err != nil {
			t.Fatal(err)
		}
		_, err := table.Deltas(4, 3)
		usage("rows that were Inc'd", err)
		_, err = table.Deltas(0, 0)
		usage("no rows", err)
		_, err = table.Deltas(rows-1, 2)
		usage("beyond the end", err)
		d, err := table.Deltas(0, 3)
		if err != nil {
			t.Fatal(err)
		}
		_, err = table.Deltas(2, 1)
		usage("rows that are lent", err)
		usage("Inc of a row that is lent", table.Inc(1, row))
		usage("IncRun over rows that are lent", table.IncRun(2, append(row, row...)))
		usage("IncRows with a row that is lent", table.IncRows([]perdure.RowID{7, 0}, append(row, row...)))

		for i := range d {
			d[i] = 1
		}
		d[7] = float32(math.NaN())
		for range 2 {
			if _, err := w.Clock(c.ctx); !errors.Is(err, perdure.ErrNonFinite) {
				t.Fatalf("Clock with NaN: %v", err)
			}
			if err := table.Flush(); !errors.Is(err, perdure.ErrNonFinite) {
				t.Fatalf("Flush with NaN: %v", err)
			}
		}
		d[7] = 1
		c.clock(w, 1)
		got := make([]float32, rows*dim)
		if err := table.GetRun(c.ctx, 0, got); err != nil {
			t.Fatal(err)
		}
		want := slices.Repeat([]float32{1}, 3*dim)
		want = append(want, make([]float32, (rows-3)*dim)...)
		copy(want[5*dim:], row)
		if !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

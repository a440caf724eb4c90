package worker_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// TestDeltasInPlace checks that deltas computed in place count as Inc'd at Clock or Flush. It covers all shards, other
// deltas in the same clock, and repeated use of the same memory.
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
						if err := table.Inc(first, []float32{5, 5, 5}); err != nil { // again, after it was sent
							t.Fatal(err)
						}
						for i := range 3 {
							want[int(first)*dim+i] += 5
						}
					}
					c.clock(w, clock+1)
					if clock%5 == 0 {
						c.pass(10 * time.Millisecond) // the update is safe and its memory is free
					}
					if err := table.GetRun(c.ctx, 0, got); err != nil || !slices.Equal(got, want) {
						t.Fatalf("at clock %d: %v, %v; want %v", clock+1, got, err, want)
					}
				}
			})
		})
	}
}

// TestDeltasRefusals checks that invalid uses, such as two deltas of the same row, are rejected and can be corrected.
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

// TestSumsThatOverflow checks that finite deltas with a non-finite sum are rejected before any part of the update is
// complete.
func TestSumsThatOverflow(t *testing.T) {
	for _, sparse := range []bool{false, true} {
		inCluster(t, "asp", "none", 1, 0, func(c *cluster) {
			w := c.dial("worker:0", 0)
			table := c.table(w, func(s *perdure.TableSpec) {
				if sparse {
					sparsely(s)
				}
			})
			for _, row := range []perdure.RowID{2, 7, 7, 3} {
				if err := table.IncRows([]perdure.RowID{row}, []float32{1, 3e38, 1}); err != nil {
					t.Fatal(err)
				}
			}
			for what, err := range map[string]error{"Flush": table.Flush(), "Clock": func() error {
				_, err := w.Clock(c.ctx)
				return err
			}()} {
				if !errors.Is(err, perdure.ErrNonFinite) || !strings.Contains(err.Error(), "value 1 of row 7") {
					t.Errorf("sparse %v: %s: %v", sparse, what, err)
				}
			}
		})
	}
}

// TestEndDropsWhatWasIncd checks that a slot whose job ends while it Incs reads the final model without the dropped
// deltas.
func TestEndDropsWhatWasIncd(t *testing.T) {
	inCluster(t, "asp", "none", 2, 0, func(c *cluster) {
		ws := c.workers()
		ts := c.tables(ws)
		for slot := range ts {
			c.inc(ts[slot], 1)
			c.clock(ws[slot], 1)
		}
		c.pass(time.Second)
		row := make([]float32, dim)
		read := func() float32 {
			if err := ts[0].Get(c.ctx, 0, row); err != nil {
				t.Fatal(err)
			}
			return row[0]
		}
		if got := read(); got != 2 {
			t.Fatalf("read %v, want 2", got)
		}
		c.inc(ts[0], 100) // of clock 1, which is after the job's end
		if got := read(); got != 102 {
			t.Fatalf("read %v, want its own writes: 102", got)
		}
		if err := ts[0].Flush(); err != nil {
			t.Fatal(err)
		}
		ended := go1(func() error { return ws[1].EndJob(c.ctx) })
		c.pass(time.Second)
		clock, err := ws[0].Clock(c.ctx)
		if err := errors.Join(err, <-ended); err != nil {
			t.Fatal(err)
		}
		if end := ws[1].End(); end != 1 || clock != 1 {
			t.Fatalf("the job ends at %d, and the slot stands at %d; this is no test then", end, clock)
		}
		if got := read(); got != 2 {
			t.Errorf("read %v at the end, want 2", got)
		}
		if err := ts[0].Inc(0, row); err != nil { // the row was sent before; the Inc has no effect
			t.Error(err)
		}
	})
}

// TestPrefetchedRowsAreExact checks that under bsp a slot's reads do not depend on when a prefetched row arrives:
// before, between or after its own Incs.
func TestPrefetchedRowsAreExact(t *testing.T) {
	const big, small = 1 << 24, 1 // small is lost in rounding each time it is added to big
	for _, sparse := range []bool{false, true} {
		var seen [][]float32
		for _, when := range []int{0, 1, 2, 3} { // number of Incs before the row arrives; 3: it never does
			inCluster(t, "bsp", "none", 1, 0, func(c *cluster) {
				w := c.dial("worker:0", 0)
				table := c.table(w, func(s *perdure.TableSpec) {
					if sparse {
						sparsely(s)
					}
				})
				if err := table.IncRows([]perdure.RowID{5}, []float32{big, big, big}); err != nil {
					t.Fatal(err)
				}
				c.clock(w, 1)
				c.pass(time.Second)
				for i := range 3 {
					if i == when {
						c.cutServers("worker:0") // the row is requested now and arrives when the partition ends
						if err := table.Prefetch([]perdure.RowID{5}); err != nil {
							t.Fatal(err)
						}
						c.healServers("worker:0")
						c.pass(time.Second)
					}
					if i < 2 {
						if err := table.IncRows([]perdure.RowID{5}, []float32{small, small, small}); err != nil {
							t.Fatal(err)
						}
					}
				}
				row := make([]float32, dim)
				for range 2 {
					if err := table.Get(c.ctx, 5, row); err != nil {
						t.Fatal(err)
					}
				}
				seen = append(seen, row)
			})
		}
		for when, row := range seen {
			if !slices.Equal(row, seen[3]) {
				t.Errorf("sparse %v: with the row there after %d Incs it is %v, fetched after them %v", sparse, when,
					row, seen[3])
			}
		}
	}
}

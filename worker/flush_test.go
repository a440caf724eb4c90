package worker_test

import (
	"fmt"
	"testing"

	"github.com/perdure/perdure"
)

// TestPartsKeepTheSum checks that deltas to a row are added in the program's order, bit for bit, no matter when parts
// of an update are sent. A process that repeats a clock may send different parts, and a bsp job must produce the same
// bits. In float32 (1 + 1e8) - 1e8 is 0, and 1 + (1e8 - 1e8) is 1.
func TestPartsKeepTheSum(t *testing.T) {
	small, large := dim, 1<<17 // two large rows fill a part, which is then sent without a Flush
	for _, sparse := range []bool{false, true} {
		for _, dim := range []int{small, large} {
			for flushes := range 8 {
				if dim == large && flushes > 0 {
					break
				}
				t.Run(fmt.Sprintf("sparse=%t dim=%d flushes=%03b", sparse, dim, flushes), func(t *testing.T) {
					inCluster(t, "bsp", "none", 1, 0, func(c *cluster) { sumInParts(c, sparse, dim, flushes) })
				})
			}
		}
	}
}

// sumInParts Incs all rows three times, with a Flush after each Inc whose bit in flushes is set.
func sumInParts(c *cluster, sparse bool, dim, flushes int) {
	w := c.dial("worker:0", perdure.NoSlot)
	const count = 16
	table := c.table(w, func(s *perdure.TableSpec) {
		s.Dim, s.Rows, s.Sparse = dim, count, sparse
		if sparse {
			s.Rows = 0
		}
	})
	ids, values := make([]perdure.RowID, count), make([]float32, count*dim)
	for i := range ids {
		ids[i] = perdure.RowID(i)
	}
	check := func(when string) {
		c.Helper()
		if err := table.GetRows(c.ctx, ids, values); err != nil {
			c.Fatal(err)
		}
		for i, v := range values {
			if v != 0 {
				c.Fatalf("%s value %d of row %d is %v, want 0", when, i%dim, i/dim, v)
			}
		}
	}
	for n, v := range []float32{1, 1e8, -1e8} {
		for i := range values {
			values[i] = v
		}
		if err := table.IncRows(ids, values); err != nil {
			c.Fatal(err)
		}
		if flushes>>n&1 == 1 {
			if err := table.Flush(); err != nil {
				c.Fatal(err)
			}
		}
	}
	check("before Clock")
	c.clock(w, 1)
	check("after Clock")
}

package table

import (
	"fmt"
	"testing"

	"github.com/perdure/perdure"
)

// BenchmarkPart reads and updates random rows of a sparse table of 1,000,000 rows on one core. It reports rows per
// second.
func BenchmarkPart(b *testing.B) {
	const rows = 1_000_000
	for _, dim := range []int{64, 8} {
		for _, rule := range []perdure.Rule{
			{Kind: perdure.RuleAdd},
			{Kind: perdure.RuleSGD, Rate: 0.1},
			{Kind: perdure.RuleMomentum, Rate: 0.1, Momentum: 0.9},
		} {
			s := perdure.TableSpec{Name: "t", Sparse: true, Dim: dim, Rule: rule, Evict: 100}
			p := New(s, 0, 1, 0, 0)
			ids := benchIDs(rows, 1)
			delta := make([]float32, 1000*dim)
			for i := 0; i < rows; i += 1000 {
				if err := p.ApplyRows(0, ids[i:i+1000], 1000, delta, 0); err != nil {
					b.Fatal(err)
				}
			}
			for i := range ids { // a random order
				j := int(mix(uint64(i)) % rows)
				ids[i], ids[j] = ids[j], ids[i]
			}
			for _, n := range []int{1000, 100_000} {
				values := make([]float32, n*dim)
				run := func(name string, do func(ids []perdure.RowID) error) {
					b.Run(fmt.Sprintf("%s/%d rows of %d", name, n, dim), func(b *testing.B) {
						b.ReportAllocs()
						i := 0
						for b.Loop() {
							if err := do(ids[i : i+n]); err != nil {
								b.Fatal(err)
							}
							i = (i + n) % rows
						}
						b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mrows/s")
					})
				}
				if rule.Kind == perdure.RuleAdd {
					run("read", func(ids []perdure.RowID) error { return p.ReadRows(values, 0, ids, n) })
				}
				clear(values)
				run(string(rule.Kind), func(ids []perdure.RowID) error { return p.ApplyRows(0, ids, n, values, 1) })
			}
		}
	}
}

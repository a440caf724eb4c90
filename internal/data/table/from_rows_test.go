package table

import (
	"math"
	"testing"

	"github.com/perdure/perdure"
)

// TestAssume: a part has the given rows and no state, and the first update moves the rows from there. An update with
// zero gradient leaves ftrl rows unchanged.
func TestAssume(t *testing.T) {
	ids, values := []perdure.RowID{7, 1 << 60, 3}, []float32{1, -2, 0, 0.25, -0.5, 8}
	for _, kind := range []perdure.RuleKind{
		perdure.RuleSGD, perdure.RuleAdd, perdure.RuleMomentum, perdure.RuleAdam, perdure.RuleRowwiseAdagrad,
		perdure.RuleFTRL,
	} {
		for _, sparse := range []bool{false, true} {
			rule := perdure.Rule{Kind: kind}.WithDefaults()
			if kind != perdure.RuleAdd {
				rule.Rate = 0.1
			}
			if kind == perdure.RuleFTRL {
				rule.L1, rule.L2 = 0.3, 0.2
			}
			spec := perdure.TableSpec{Name: "w", Dim: 2, Rule: rule, Sparse: sparse}
			named, first := ids, perdure.RowID(0)
			if !sparse {
				spec.Rows, named, first = 9, nil, 4
			}
			p := NewFromRows(spec, 0, 1, first, named, values)
			if err := p.FinishRestore(); err != nil || p.Stored() != 3 {
				t.Fatalf("%s: %d rows, %v", kind, p.Stored(), err)
			}
			same := func(after string) {
				t.Helper()
				for i, v := range p.Values(0, 3) {
					if math.Abs(float64(v-values[i])) > 1e-6 {
						t.Errorf("%s, sparse %t: value %d is %v after %s, not %v", kind, sparse, i, v, after,
							values[i])
					}
				}
			}
			same("it was made")
			if full, _ := StateShape(rule); full > 0 && kind != perdure.RuleFTRL {
				for _, v := range p.planes[1].rows(0, 3) {
					if v != 0 {
						t.Errorf("%s: its state has %v", kind, v)
					}
				}
			}
			if err := p.ApplyRows(first, named, 3, make([]float32, 6), 0); err != nil {
				t.Fatal(err)
			}
			same("an update of nothing")
		}
	}
}

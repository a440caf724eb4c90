package table

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/perdure/perdure"
)

// TestRefusals checks which requests of a peer are valid. Nothing of a rejected update is applied.
func TestRefusals(t *testing.T) {
	const first, rows, dim = 10, 5, 3
	huge := math.MaxInt / dim // multiplied by dim it does not overflow; one more does
	for _, tc := range []struct {
		what   string
		first  perdure.RowID
		ids    []perdure.RowID
		count  int
		values int
		want   error
	}{
		{"all rows", 10, nil, 5, 15, nil},
		{"the last row", 14, nil, 1, 3, nil},
		{"no rows", 12, nil, 0, 0, nil},
		{"ids, one of them twice", 0, []perdure.RowID{14, 10, 14}, 3, 9, nil},
		{"no ids", 0, []perdure.RowID{}, 0, 0, nil},
		{"before the shard", 9, nil, 1, 3, ErrRow},
		{"after the shard", 15, nil, 1, 3, ErrRow},
		{"beyond its end", 14, nil, 2, 6, ErrRow},
		{"too many", 10, nil, 6, 18, ErrRow},
		{"first + count overflows", math.MaxUint64, nil, 2, 6, ErrRow},
		{"first + count overflows to a row of the shard", math.MaxUint64 - 3, nil, 15, 45, ErrRow},
		{"huge count", 10, nil, huge, 3, ErrRow},
		{"count times dim overflows", 10, nil, huge + 1, 3, ErrRow},
		{"largest count", 10, nil, math.MaxInt, math.MaxInt, ErrRow},
		{"negative count", 10, nil, -1, -3, ErrRow},
		{"smallest count", 10, nil, math.MinInt, 0, ErrRow},
		{"too few values", 10, nil, 2, 5, ErrShape},
		{"too many values", 10, nil, 2, 7, ErrShape},
		{"no values", 10, nil, 2, 0, ErrShape},
		{"ids, the last not of the shard", 0, []perdure.RowID{10, 11, 15}, 3, 9, ErrRow},
		{"ids, one huge", 0, []perdure.RowID{10, math.MaxUint64}, 2, 6, ErrRow},
		{"ids, too few values", 0, []perdure.RowID{10, 11}, 2, 3, ErrShape},
		{"ids, fewer announced", 0, []perdure.RowID{10, 11}, 1, 3, ErrShape},
		{"ids, more announced", 0, []perdure.RowID{10, 11}, 3, 9, ErrShape},
		{"ids, huge count", 0, []perdure.RowID{10}, huge + 1, 3, ErrShape},
	} {
		p := New(spec(dim, perdure.Init{Kind: perdure.InitUniform, Scale: 1}), 0, 1, first, rows)
		before := slices.Clone(values(p))
		if err := p.CheckRows(tc.first, tc.ids, tc.count, tc.values); !errors.Is(err, tc.want) ||
			(err == nil) != (tc.want == nil) {
			t.Errorf("%s: checked: %v, want %v", tc.what, err, tc.want)
		}
		if tc.values < 0 || tc.values > 1000 {
			continue
		}
		delta := slices.Repeat([]float32{1}, tc.values)
		if err := p.ApplyRows(tc.first, tc.ids, tc.count, delta, 0); !errors.Is(err, tc.want) ||
			(err == nil) != (tc.want == nil) {
			t.Errorf("%s: applied: %v, want %v", tc.what, err, tc.want)
		}
		changed := !slices.Equal(values(p), before)
		if changed != (tc.want == nil && tc.values > 0) {
			t.Errorf("%s: changed %v", tc.what, changed)
		}
	}
}

func ExamplePart() {
	p := New(perdure.TableSpec{
		Name: "weights", Rows: 100, Dim: 2,
		Rule: perdure.Rule{Kind: perdure.RuleSGD, Rate: 0.5},
	}, 0, 1, 50, 50)
	fmt.Println(p.ApplyRows(98, nil, 2, []float32{1, 2, 3, 4}, 0))
	fmt.Println(p.Run(98, 2))
	fmt.Println(p.ApplyRows(98, nil, 3, make([]float32, 6), 0))
	// Output:
	// <nil>
	// [-0.5 -1 -1.5 -2] <nil>
	// table: row not on this shard: got rows 98 to 100 of table weights, but the shard has rows 50 to 99
}

func ExamplePart_sparse() {
	p := New(perdure.TableSpec{
		Name: "words", Sparse: true, Dim: 2, Evict: 8,
		Rule: perdure.Rule{Kind: perdure.RuleAdd},
	}, 0, 1, 0, 0)
	ids := []perdure.RowID{1 << 60, 17}
	fmt.Println(p.ApplyRows(0, ids, 2, []float32{1, 2, 3, 4}, 0))
	fmt.Println(p.ApplyRows(0, ids[:1], 1, []float32{1, 1}, 9))
	fmt.Println(p.Evict(10, nil), p.IDs(0, 100))

	values := make([]float32, 4)
	fmt.Println(p.ReadRows(values, 0, ids, 2), values, p.Stored())
	fmt.Println(p.CheckRows(17, nil, 1, 2))
	// Output:
	// <nil>
	// <nil>
	// 1 [1152921504606846976]
	// <nil> [2 3 0 0] 1
	// table: row not on this shard: table words is sparse: give the ids of the 1 rows instead of a range
}

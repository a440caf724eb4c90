package mf

import (
	"errors"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/safetensors"
)

// TestPredictorRefuses checks that a file is rejected if it does not identify its rows' users and items.
func TestPredictorRefuses(t *testing.T) {
	file := func(ids ...int64) []safetensors.Tensor {
		values := []float32{1, 2}
		return []safetensors.Tensor{
			{Name: Users, Shape: []int64{2, 1}, Data: values},
			{Name: Items, Shape: []int64{2, 1}, Data: values},
			{Name: Items + safetensors.IDsSuffix, Shape: []int64{2}, Ints: ids},
		}
	}
	names := Items + namesSuffix
	for _, c := range []struct {
		ids  []int64
		key  string
		to   string
		want string // "": the file is complete
	}{
		{[]int64{0, 1}, names, "a\nb", ""},
		{[]int64{0, 7}, names, "", ""},
		{[]int64{0, 7}, names, "a\nb", "has the names of 2 items, but none for row 7 of table items"},
		{[]int64{0, -5}, names, "a\nb", "has the names of 2 items, but none for row 18446744073709551611"},
		{[]int64{0, 1}, names, "a", "has the names of 1 items, but none for row 1"},
		{[]int64{0, 1}, names, "a\na", `has two rows for the item "a"`},
		{[]int64{3, 3}, names, "", `has two rows for the item "3"`},
		{[]int64{3}, names, "", "has 2 rows, but 1 row IDs"},
		{[]int64{0, 1}, "mean", "NaN", "has no mean"},
		{[]int64{0, 1}, "deviation", "-Inf", "has no deviation"},
		{[]int64{0, 1}, "deviation", "", "has no deviation"},
	} {
		meta := map[string]string{"mean": "3", "deviation": "1"}
		meta[c.key] = c.to
		p, err := NewPredictor(file(c.ids...), meta)
		switch {
		case c.want == "" && err == nil:
			if best, err := p.Best("0", 5, func(string) bool { return false }); err != nil || len(best) != 2 {
				t.Errorf("%v: %v, %v", c, best, err)
			}
		case c.want == "" || !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), c.want):
			t.Errorf("%v: %v", c, err)
		}
	}
}

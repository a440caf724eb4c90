package lda

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestMarks checks that iterating over marks visits all nonzero values and no others, for any bounds and any row.
func TestMarks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		width := rapid.IntRange(2, 150).Draw(t, "topics")
		rows := rapid.IntRange(1, 8).Draw(t, "words")
		values := make([]float32, rows*width)
		for _, at := range rapid.SliceOfN(rapid.IntRange(0, len(values)-1), 0, 30).Draw(t, "counted") {
			values[at] = float32(rapid.IntRange(-3, 9).Draw(t, "count"))
		}
		var m bitset
		m.setNonzero(values)
		from := rapid.IntRange(0, len(values)).Draw(t, "from")
		end := rapid.IntRange(from, len(values)).Draw(t, "end")
		var got, want []int
		for at := m.next(from, end); at < end; at = m.next(at+1, end) {
			got = append(got, at)
		}
		sums, below := make([]float32, width), false
		for at, v := range values {
			if v != 0 && from <= at && at < end {
				want = append(want, at)
			}
			sums[at%width] += max(v, 0)
			below = below || v < 0
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%v has marks %v from %d to %d, want %v", values, got, from, end, want)
		}
		total := make([]float32, width)
		m.sum(total, values)
		if !slices.Equal(total, sums) {
			t.Errorf("the sums are %v, want %v", total, sums)
		}
		var w wordCounts
		w.reset(rows)
		sum, lifts := make([]float32, width), false
		for row := range rows {
			lifts = w.append(values, m, row*width, sum, 3) || lifts
			cells := w.of(int32(row))
			if !slices.IsSortedFunc(cells, byTokens) {
				t.Errorf("topics of word %d are in the order %v", row, cells)
			}
			for k, v := range values[row*width : (row+1)*width] {
				there := slices.Contains(cells, cell{int32(k), int32(math.Max(float64(v), 0))})
				if there != (v >= 1) {
					t.Errorf("topic %d of word %d, with %v tokens, is there: %v", k, row, v, there)
				}
			}
		}
		if !slices.Equal(sum, sums) || lifts != below {
			t.Errorf("the sums are %v, want %v; some are below 0: %v", sum, sums, lifts)
		}
	})
}

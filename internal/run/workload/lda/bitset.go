package lda

import (
	"math/bits"
	"slices"

	"github.com/perdure/perdure/internal/data/packed"
)

// bitset marks the nonzero values of a slice. Most counts are 0, so iterating over marks is faster than over values.
type bitset []uint64

// setNonzero marks the nonzero values.
func (m *bitset) setNonzero(values []float32) {
	n := packed.MaskWords(len(values))
	*m = slices.Grow((*m)[:0], n)[:n]
	packed.SetMask(*m, values)
}

// next returns the first marked index i with from ≤ i < end, or end if there is none.
func (m bitset) next(from, end int) int {
	if from >= end {
		return end
	}
	at := from / 64
	word := m[at] >> (from % 64) << (from % 64)
	for word == 0 {
		if at++; at*64 >= end {
			return end
		}
		word = m[at]
	}
	return min(at*64+bits.TrailingZeros64(word), end)
}

// sum adds the positive values of rows, column by column.
func (m bitset) sum(total, rows []float32) {
	clear(total)
	for row := 0; row < len(rows); row += len(total) {
		end := row + len(total)
		for at := m.next(row, end); at < end; at = m.next(at+1, end) {
			total[at-row] += max(rows[at], 0)
		}
	}
}

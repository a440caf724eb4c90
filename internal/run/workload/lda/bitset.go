package lda

import (
	"math/bits"
	"slices"

	"github.com/perdure/perdure/internal/data/packed"
)

// bitset are bits, one for each of some values: it is on where the value is not 0. Most counts are 0, so that whoever
// goes through them goes from mark to mark.
type bitset []uint64

// setNonzero marks values.
func (m *bitset) setNonzero(values []float32) {
	n := packed.MaskWords(len(values))
	*m = slices.Grow((*m)[:0], n)[:n]
	packed.SetMask(*m, values)
}

// next returns the first marked place from ≤ i < end; end: there is none.
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

// sum adds up the values above 0 of rows, column by column.
func (m bitset) sum(total, rows []float32) {
	clear(total)
	for row := 0; row < len(rows); row += len(total) {
		end := row + len(total)
		for at := m.next(row, end); at < end; at = m.next(at+1, end) {
			total[at-row] += max(rows[at], 0)
		}
	}
}

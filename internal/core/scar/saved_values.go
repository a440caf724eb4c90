package scar

import (
	"math/bits"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/table"
)

// savedValues has the values of a part's rows at their last save. It stores only those blocks of rows that have changed
// since it began to watch the part; all others are equal in the part. So starting with a part that equals its save
// costs nothing, and unchanged rows need not be compared.
type savedValues struct {
	part   *table.Part
	n      int                   // number of known rows
	values chunkedArray[float32] // of the blocks that are here
	stored []uint64              // one bit for each block of 1<<shift rows
	shift  uint8
}

// pastBytes is about how much is copied at the first change of a row in a block.
const pastBytes = 2 << 10

func newSavedValues(p *table.Part) savedValues {
	s := savedValues{part: p, values: newChunkedArray[float32](p.Spec.Dim)}
	for s.shift < s.values.shift && 4*p.Spec.Dim<<(s.shift+1) <= pastBytes {
		s.shift++
	}
	return s
}

// run returns the end of the range of rows starting at a position, at most end, whose blocks are all here or all
// absent.
func (s *savedValues) run(at, end int) (to int, here bool) {
	block := at >> s.shift
	here = s.has(block)
	for last := (end - 1) >> s.shift; block <= last; {
		word := uint64(0)
		if block/64 < len(s.stored) {
			word = s.stored[block/64]
		}
		if here {
			word = ^word
		}
		same := min(bits.TrailingZeros64(word>>(block%64)), 64-block%64)
		block += same
		if block%64 != 0 || same == 0 {
			break
		}
	}
	return min(end, block<<s.shift), here
}

func (s *savedValues) has(block int) bool {
	return block/64 < len(s.stored) && s.stored[block/64]>>(block%64)&1 == 1
}

// Before stores the blocks of rows that are about to change.
func (s *savedValues) Before(at, n int) {
	for end := min(at+n, s.n); at < end; {
		block := at >> s.shift
		if at = (block + 1) << s.shift; !s.has(block) {
			s.storeBlock(block, min(at, s.n))
		}
	}
}

// storeBlock stores a block. Its rows before end get their current values from the part.
func (s *savedValues) storeBlock(block, end int) {
	for block/64 >= len(s.stored) {
		s.stored = append(s.stored, 0)
	}
	s.stored[block/64] |= 1 << (block % 64)
	first := block << s.shift
	s.values.allocate(first + 1<<s.shift)
	for at := first; at < end; {
		at += copy(s.values.upTo(at, end), s.part.Values(at, end-at)) / s.values.width
	}
}

// begin sets the new rows was to n-1 to their initial values.
func (s *savedValues) begin(was, n int) {
	for at := was; at < n; at++ {
		if block := at >> s.shift; !s.has(block) {
			s.storeBlock(block, was)
		}
		id := s.part.First + perdure.RowID(at)
		if s.part.Spec.Sparse {
			id = s.part.IDs(at, 1)[0]
		}
		s.part.Initial(s.values.rows(at, 1), id)
	}
}

// setAll sets all rows to the values in another part.
func (s *savedValues) setAll(saved *table.Part) {
	for block := 0; block<<s.shift < s.n; block++ {
		first := block << s.shift
		s.storeBlock(block, first) // none of its rows yet
		for at, end := first, min(s.n, first+1<<s.shift); at < end; {
			at += copy(s.values.upTo(at, end), saved.Values(at, end-at)) / s.values.width
		}
	}
}

// remove removes a row that will be removed from the part. The last row takes its position.
func (s *savedValues) remove(at int) {
	last := s.n - 1
	s.Before(at, 1)
	s.Before(last, 1)
	s.values.fill(at, last)
	s.n = last
	if block := last >> s.shift; last == block<<s.shift { // none of its rows is left
		s.stored[block/64] &^= 1 << (block % 64)
	}
}

// keep records that rows are saved with their current values.
func (s *savedValues) keep(run table.Run) {
	for at, end := run.First, run.First+run.Rows; at < end; {
		to, here := s.run(at, end)
		for ; here && at < to; at += s.keepSome(at, to) {
		}
		at = to
	}
}

// keepSome handles a contiguous range of rows, and returns its length.
func (s *savedValues) keepSome(at, end int) int {
	to, from := s.values.upTo(at, end), s.part.Values(at, end-at)
	to = to[:min(len(to), len(from))]
	if len(to) <= 8 { // a call costs more
		for i := range to {
			to[i] = from[i]
		}
	} else {
		copy(to, from)
	}
	return len(to) / s.values.width
}

package table

import (
	"math"

	"github.com/perdure/perdure"
)

// DeltaSum adds up the deltas of several updates to one part, so that the part's rule can run once for all of them. The
// result depends only on the calls: every operation is rounded to float32 on its own, in the order of the calls,
//
//	Σ = share₁·g₁;  Σ = Σ + share₂·g₂;  Σ = Σ + share₃·g₃ …
//
// for the updates that touch a row. It contains only rows that some update touches, in the order of their first touch.
// It is not safe for concurrent use.
type DeltaSum struct {
	dim      int
	first    perdure.RowID // dense: the part's
	index    *Index        // sparse; nil for a dense part
	position []int32       // dense: 1 + the index of the row's sum, or 0 if it has none
	runs     []Run         // dense: the sums as runs of rows, by their positions in the part
	values   []float32     // the sums
}

// NewDeltaSum returns an empty DeltaSum for a part. first and rows describe the part if it is dense.
func NewDeltaSum(spec perdure.TableSpec, first perdure.RowID, rows int) *DeltaSum {
	if spec.Sparse {
		return &DeltaSum{dim: spec.Dim, index: NewIndex()}
	}
	return &DeltaSum{dim: spec.Dim, first: first, position: make([]int32, rows)}
}

// Add adds deltas, multiplied by share, to the sums of rows, which must belong to the part. The rows are identified as
// in Part.CheckRows. Add does not retain its arguments.
func (s *DeltaSum) Add(first perdure.RowID, ids []perdure.RowID, count int, delta []float32, share float32) {
	switch {
	case ids == nil:
		s.addRun(int(first-s.first), count, delta, share)
	case s.index == nil:
		for from := 0; from < len(ids); {
			n := 1
			for from+n < len(ids) && ids[from+n] == ids[from]+perdure.RowID(n) {
				n++
			}
			s.addRun(int(ids[from]-s.first), n, delta[from*s.dim:(from+n)*s.dim], share)
			from += n
		}
	default:
		for i, id := range ids {
			at, added := s.index.Add(id)
			if g := delta[i*s.dim : (i+1)*s.dim]; added {
				s.appendSums(g, share)
			} else {
				s.addTo(at, g, share)
			}
		}
	}
}

// addRun adds the deltas of n consecutive rows of a dense part. Adjacent rows whose sums are also adjacent are added
// together.
func (s *DeltaSum) addRun(row, n int, delta []float32, share float32) {
	for j := 0; j < n; {
		k, at := j+1, s.position[row+j]
		for k < n && (at == 0 && s.position[row+k] == 0 || at > 0 && s.position[row+k] == at+int32(k-j)) {
			k++
		}
		if g := delta[j*s.dim : k*s.dim]; at > 0 {
			s.addTo(int(at)-1, g, share)
		} else {
			s.addPositions(row+j, k-j)
			s.appendSums(g, share)
		}
		j = k
	}
}

// addPositions records the positions of the sums of new rows.
func (s *DeltaSum) addPositions(row, n int) {
	next := int32(len(s.values)/s.dim) + 1
	for i := range s.position[row : row+n] {
		s.position[row+i] = next + int32(i)
	}
	if last := len(s.runs) - 1; last >= 0 && s.runs[last].First+s.runs[last].Rows == row {
		s.runs[last].Rows += n
		return
	}
	s.runs = append(s.runs, Run{row, n})
}

// appendSums appends the sums of new rows.
func (s *DeltaSum) appendSums(g []float32, share float32) {
	from := len(s.values)
	s.values = append(s.values, g...)
	if share != 1 {
		clip(s.values[from:], s.values[from:], float32(math.Inf(1)), share)
	}
}

// addTo adds to the sums of consecutive rows.
func (s *DeltaSum) addTo(at int, g []float32, share float32) {
	to := s.values[at*s.dim:][:len(g)]
	if share == 1 {
		add(to, g)
		return
	}
	sgd(to, g, -share) // subtracts the negative: the same bits as addition
}

// Flush passes the sums to apply, identified as in Part.ApplyRows, and empties the DeltaSum. The arguments are valid
// only until apply returns.
func (s *DeltaSum) Flush(apply func(first perdure.RowID, ids []perdure.RowID, count int, sums []float32)) {
	from := 0
	for _, r := range s.runs {
		apply(s.first+perdure.RowID(r.First), nil, r.Rows, s.values[from*s.dim:(from+r.Rows)*s.dim])
		clear(s.position[r.First : r.First+r.Rows])
		from += r.Rows
	}
	if s.index != nil {
		for from < s.index.Len() {
			ids := s.index.IDs(from, s.index.Len())
			apply(0, ids, len(ids), s.values[from*s.dim:(from+len(ids))*s.dim])
			from += len(ids)
		}
		s.index.Reset()
	}
	s.runs = s.runs[:0]
	if n := len(s.values); n > 0 && 4*n < cap(s.values) { // release the memory of a burst
		s.values = nil
	}
	s.values = s.values[:0]
}

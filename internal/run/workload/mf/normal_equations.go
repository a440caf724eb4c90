package mf

import (
	"errors"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
	"gonum.org/v1/gonum/lapack/lapack64"

	"github.com/perdure/perdure/internal/run/workload/gemm"
)

// normalEquations solves the normal equations (Σ w·v·vᵀ + hold·1)·u = Σ t·v for one row u at a time. It sums products
// in float32 for a block of rows, and blocks in float64. It owns scratch memory.
type normalEquations struct {
	rank     int
	multiply gemm.Multiplier
	left     []float32 // rows w·v of the current block
	right    []float32 // rows v of the current block
	block    []float32 // rank × rank sums of the block
	count    int       // rows in the block
	matrix   []float64 // rank × rank sums; later the Cholesky factor
	vector   []float64 // Σ t·v; later u
	all      []float64 // Σ v·vᵀ of all rows, if every row contributes to every equation
}

// blockRows is the number of rows summed in float32. It is small enough that rounding does not matter, and large enough
// that adding up the blocks costs little.
const blockRows = 512

// errSingular is returned if rows are too large, or the regularisation is too small, for float64.
var errSingular = errors.New("its equations have no solution in float64; choose a larger l2")

func newNormalEquations(rank int) *normalEquations {
	return &normalEquations{
		rank: rank, left: make([]float32, blockRows*rank), right: make([]float32, blockRows*rank),
		block: make([]float32, rank*rank), matrix: make([]float64, rank*rank), vector: make([]float64, rank),
	}
}

// start begins the equations of a row. With withAll they include the contributions of all rows, see sumAll.
func (n *normalEquations) start(withAll bool) {
	clear(n.vector)
	if withAll {
		copy(n.matrix, n.all)
	} else {
		clear(n.matrix)
	}
}

// sumAll computes the sum of v·vᵀ over all rows.
func (n *normalEquations) sumAll(rows []float32) {
	n.start(false)
	for ; len(rows) > 0; rows = rows[n.rank:] {
		n.add(rows[:n.rank], 1, 0)
	}
	n.flush()
	n.all = append(n.all[:0], n.matrix...)
}

// add adds weight·v·vᵀ and target·v.
func (n *normalEquations) add(v []float32, weight, target float32) {
	at := n.count * n.rank
	left := n.left[at : at+n.rank]
	copy(n.right[at:at+n.rank], v)
	t := float64(target)
	vector := n.vector[:len(v)]
	for i, x := range v {
		left[i] = float32(weight * x)
		vector[i] += float64(t * float64(x))
	}
	if n.count++; n.count == blockRows {
		n.flush()
	}
}

// flush adds the block to the matrix.
func (n *normalEquations) flush() {
	if n.count == 0 {
		return
	}
	rows := n.count * n.rank
	n.multiply.Set(gemm.Of(n.block, n.rank, n.rank), gemm.Of(n.left[:rows], n.count, n.rank).T(),
		gemm.Of(n.right[:rows], n.count, n.rank))
	for i, v := range n.block {
		n.matrix[i] += float64(v)
	}
	n.count = 0
}

// solve writes the solved row, using the Cholesky decomposition.
func (n *normalEquations) solve(to []float32, hold float64) error {
	n.flush()
	for i := 0; i < len(n.matrix); i += n.rank + 1 {
		n.matrix[i] += hold
	}
	factor, ok := lapack64.Potrf(blas64.Symmetric{N: n.rank, Stride: n.rank, Data: n.matrix, Uplo: blas.Upper})
	if !ok {
		return errSingular
	}
	lapack64.Potrs(factor, blas64.General{Rows: n.rank, Cols: 1, Stride: 1, Data: n.vector})
	for i, v := range n.vector {
		to[i] = float32(v)
	}
	return nil
}

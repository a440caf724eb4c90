package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func random(r *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

// view returns a matrix inside a larger one, possibly transposed.
func view(t *rapid.T, r *rand.Rand, rows, cols int, name string) Matrix {
	if rapid.Bool().Draw(t, name+" transposed") {
		return view(t, r, cols, rows, name+" again").T()
	}
	step := cols + rapid.IntRange(0, 5).Draw(t, name+" gap")
	return Matrix{random(r, rows*step), rows, cols, step, 1}
}

// product computes the expected result of Add, element by element.
func product(c, a, b Matrix) []float32 {
	want := slices.Clone(c.Data)
	for i := range c.Rows {
		for j := range c.Cols {
			for k := range a.Cols {
				want[i*c.RowStep+j] += float32(a.Data[i*a.RowStep+k*a.ColStep] * b.Data[k*b.RowStep+j*b.ColStep])
			}
		}
	}
	return want
}

// TestAdd compares products of all shapes, with both kernels, to the bits of three plain loops. Values between the rows
// of C must not change.
func TestAdd(t *testing.T) {
	kernels := []bool{false}
	if vectors {
		kernels = append(kernels, true)
		defer func() { vectors = true }()
	}
	var m Multiplier
	sizes := []int{1, 3, 4, 5, 15, 16, 17, 63, 64, 65, 70}
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		rows := rapid.SampledFrom(sizes).Draw(t, "rows")
		cols := rapid.SampledFrom(append(sizes, blockCols, blockCols+17)).Draw(t, "cols")
		depth := rapid.SampledFrom(append(sizes, 0, blockDepth, blockDepth+1)).Draw(t, "depth")
		a, b := view(t, r, rows, depth, "a"), view(t, r, depth, cols, "b")
		step := cols + rapid.IntRange(0, 5).Draw(t, "c gap")
		c := Matrix{random(r, rows*step), rows, cols, step, 1}
		add := product(c, a, b)
		zero := slices.Clone(c.Data)
		for i := range rows {
			clear(zero[i*step:][:cols])
		}
		zeroed := c
		zeroed.Data = zero
		set := product(zeroed, a, b)
		for _, vectors = range kernels {
			got := c
			got.Data = slices.Clone(c.Data)
			m.Add(got, a, b)
			if !slices.Equal(got.Data, add) {
				t.Fatalf("Add, vectors %v: other bits than those of the plain loops", vectors)
			}
			got.Data = slices.Clone(c.Data)
			m.Set(got, a, b)
			if !slices.Equal(got.Data, set) {
				t.Fatalf("Set, vectors %v: other bits than those of the plain loops", vectors)
			}
		}
	})
}

// TestNaN checks that a NaN appears in the result and does not spread beyond its row and column.
func TestNaN(t *testing.T) {
	var m Multiplier
	a, b, c := Of(make([]float32, 10*7), 10, 7), Of(make([]float32, 7*20), 7, 20), Of(make([]float32, 200), 10, 20)
	a.Data[3*7+2], b.Data[5*20+19] = float32(math.NaN()), float32(math.Inf(1))
	m.Add(c, a, b)
	for i, v := range c.Data {
		if nan := math.IsNaN(float64(v)); nan != (i/20 == 3 || i%20 == 19) {
			t.Errorf("element (%d, %d) is %v", i/20, i%20, v)
		}
	}
}

func TestMisfitPanics(t *testing.T) {
	var m Multiplier
	square := Of(make([]float32, 4), 2, 2)
	long := Of(make([]float32, 6), 2, 3)
	for _, c := range [][3]Matrix{
		{long, square, square},
		{square, long, square},
		{square, long, long},
		{long.T(), square, long},
		{square.T(), square, square},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d×%d = %d×%d · %d×%d was computed", c[0].Rows, c[0].Cols, c[1].Rows, c[1].Cols,
						c[2].Rows, c[2].Cols)
				}
			}()
			m.Add(c[0], c[1], c[2])
		}()
	}
}

func BenchmarkSet(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	matrix := func(rows, cols int, transposed bool) Matrix {
		if transposed {
			return Of(random(r, rows*cols), cols, rows).T()
		}
		return Of(random(r, rows*cols), rows, cols)
	}
	for _, s := range []struct {
		rows, cols, depth int
		ta, tb            bool
	}{
		{16, 784, 9, false, false},
		{16, 9, 784, false, true},
		{32, 196, 144, false, false},
		{32, 144, 196, false, true},
		{144, 196, 32, true, false},
		{128, 512, 1568, false, true},
		{512, 1568, 128, true, false},
		{128, 1568, 512, false, false},
	} {
		b.Run(fmt.Sprintf("%dx%dx%d", s.rows, s.depth, s.cols), func(b *testing.B) {
			x, y, c := matrix(s.rows, s.depth, s.ta), matrix(s.depth, s.cols, s.tb), matrix(s.rows, s.cols, false)
			var m Multiplier
			for b.Loop() {
				m.Set(c, x, y)
			}
			b.ReportMetric(2*float64(s.rows*s.cols*s.depth)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}

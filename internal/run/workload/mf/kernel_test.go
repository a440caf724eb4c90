package mf

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func randomRow(r *rand.Rand, n int) []float32 {
	row := make([]float32, n)
	for i := range row {
		row[i] = float32(r.NormFloat64())
	}
	return row
}

// TestKernels compares the bits of the vector kernels with those of the plain loops.
func TestKernels(t *testing.T) {
	if !vectors {
		t.Skip("no vector kernels here")
	}
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		n := 8 * rapid.IntRange(1, 40).Draw(t, "eights")
		shift := rapid.IntRange(0, 7).Draw(t, "shift") // rows need not be aligned
		u, v := randomRow(r, n+16)[shift:], randomRow(r, n+16)[shift:]
		pu, pv := slices.Clone(u), slices.Clone(v)
		target, rate, keep := float32(r.NormFloat64()), float32(0.1*r.Float64()), float32(r.Float64())
		if d, p := dot(u[:n], v[:n]), dotPlain(pu[:n], pv[:n]); d != p {
			t.Fatalf("dot %v, plain %v", d, p)
		}
		if e, p := step(u[:n], v[:n], target, rate, keep), stepPlain(pu[:n], pv[:n], target, rate, keep); e != p {
			t.Fatalf("error %v, plain %v", e, p)
		}
		if !slices.Equal(u, pu) || !slices.Equal(v, pv) {
			t.Fatal("other rows than those of the plain loop, or more of them were written")
		}
	})
}

// lossOf returns the function that a step descends, in float64.
func lossOf(u, v []float64, target, l2 float64) float64 {
	e, squares := target, 0.0
	for i := range u {
		e -= u[i] * v[i]
		squares += u[i]*u[i] + v[i]*v[i]
	}
	return e*e/2 + l2*squares/2
}

// TestGradient checks that a step at rate 1 subtracts the loss's gradient from the rows. It computes the gradient by
// central differences.
func TestGradient(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for _, l2 := range []float64{0, 0.25} {
		u, v := randomRow(r, 40), randomRow(r, 40)
		wide := make([][]float64, 2)
		for i, row := range [][]float32{u, v} {
			for _, x := range row {
				wide[i] = append(wide[i], float64(x))
			}
		}
		target := 1.5
		gradient := make([][]float64, 2)
		for i := range wide {
			for j, x := range wide[i] {
				const h = 1e-5
				wide[i][j] = x + h
				above := lossOf(wide[0], wide[1], target, l2)
				wide[i][j] = x - h
				below := lossOf(wide[0], wide[1], target, l2)
				wide[i][j] = x
				gradient[i] = append(gradient[i], (above-below)/(2*h))
			}
		}
		if e := step(u, v, float32(target), 1, float32(1-l2)); math.Abs(lossOf(wide[0], wide[1], target,
			0)-float64(e*e/2)) > 1e-4 {
			t.Errorf("error %v", e)
		}
		for i, row := range [][]float32{u, v} {
			for j, x := range row {
				if got := wide[i][j] - float64(x); math.Abs(got-gradient[i][j]) > 1e-4*(1+math.Abs(got)) {
					t.Errorf("l2 %v, row %d, value %d: step %v, gradient %v", l2, i, j, got, gradient[i][j])
				}
			}
		}
	}
}

func benchmarkStep(b *testing.B, step func(u, v []float32, target, rate, keep float32) float32) {
	r := rand.New(rand.NewPCG(1, 1))
	u, items := randomRow(r, 104), randomRow(r, 100*104)
	for i := 0; b.Loop(); i++ {
		step(u, items[i%100*104:][:104], 0.5, 0, 1)
	}
}

func BenchmarkStep(b *testing.B)      { benchmarkStep(b, step) }
func BenchmarkStepPlain(b *testing.B) { benchmarkStep(b, stepPlain) }

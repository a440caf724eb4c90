package cnn

import (
	"math"

	"github.com/perdure/perdure/internal/run/workload/api"
	"github.com/perdure/perdure/internal/run/workload/gemm"
)

// Pictures between layers are channels of side × side values, one after the other.
// What a convolution reads has a border of one zero around each channel, so that
// its rows are side+2 long: then taking a window never asks where it ends.

// conv is a convolution with 3 × 3 windows and a zero border: as many values as
// there were. Its weights are out rows of in·3·3 values.
type conv struct {
	in, out int // channels
	side    int
}

const window = 3

func (c conv) bordered() int   { return c.side + 2 }                      // side of a channel that it reads
func (c conv) inputSize() int  { b := c.bordered(); return c.in * b * b } // values
func (c conv) area() int       { return c.side * c.side }
func (c conv) taps() int       { return c.in * window * window }
func (c conv) outputSize() int { return c.out * c.area() }    // values
func (c conv) columns() int    { return c.taps() * c.area() } // values of unfold

// unfold makes a row of each tap: the values that it meets, one for each place, so
// that the convolution is weights · cols. x is bordered.
func (c conv) unfold(cols, x []float32) {
	b := c.bordered()
	for ch := range c.in {
		for y := range window {
			for shift := range window {
				from := x[ch*b*b+y*b+shift:]
				for line := 0; line < c.area(); line += c.side {
					copy(cols[line:line+c.side], from)
					from = from[min(b, len(from)):]
				}
				cols = cols[c.area():]
			}
		}
	}
}

// fold adds each tap's row to the values that the tap met: the transpose of
// unfold. x is bordered.
func (c conv) fold(x, cols []float32) {
	b := c.bordered()
	for ch := range c.in {
		for y := range window {
			for shift := range window {
				for line := range c.side {
					to := x[ch*b*b+(y+line)*b+shift:][:c.side]
					for i, v := range cols[line*c.side:][:len(to)] {
						to[i] += v
					}
				}
				cols = cols[c.area():]
			}
		}
	}
}

// forward computes y from unfolded values.
func (c conv) forward(mul *gemm.Multiplier, y, cols, w, bias []float32) {
	for ch, v := range bias {
		fill(y[ch*c.area():][:c.area()], v)
	}
	mul.Add(gemm.Of(y, c.out, c.area()), gemm.Of(w, c.out, c.taps()), gemm.Of(cols, c.taps(), c.area()))
}

// weights adds to dw the gradient that dy makes of the weights. cols are what
// forward was given. (That of the bias falls to unpool.)
func (c conv) weights(mul *gemm.Multiplier, dw, dy, cols []float32) {
	mul.Add(gemm.Of(dw, c.out, c.taps()), gemm.Of(dy, c.out, c.area()), gemm.Of(cols, c.taps(), c.area()).T())
}

// values computes dx, bordered, the gradient that dy makes of what the layer read.
// In the border is what the zeros there would have got. cols is scratch.
func (c conv) values(mul *gemm.Multiplier, dx, dy, w, cols []float32) {
	mul.Set(gemm.Of(cols, c.taps(), c.area()), gemm.Of(w, c.out, c.taps()).T(), gemm.Of(dy, c.out, c.area()))
	clear(dx)
	c.fold(dx, cols)
}

// none says that of four values none is positive.
const none = 4

// pool takes of each 2 × 2 values the largest, and 0 where none is positive (the
// maximum of what ReLU lets through), and notes in at which it was: of equal ones
// the first. x are channels of side × side values, y likewise of half that side,
// with a border of that many values, which it leaves alone.
func pool(y []float32, border int, at []uint8, x []float32, side int) {
	half := side / 2
	row := half + 2*border
	for ch := 0; len(x) > 0; ch++ {
		for i := range half {
			upper, lower := x[2*i*side:][:2*half], x[(2*i+1)*side:][:2*half]
			to := y[(ch*row+border+i)*row+border:][:half]
			which := at[:half]
			for j := range to {
				// Positive floats are in the order of their bits, and negative ones
				// are negative integers: so the loop has no branch to mispredict.
				best, k := int32(0), uint8(none)
				if v := int32(math.Float32bits(upper[2*j])); v > best {
					best, k = v, 0
				}
				if v := int32(math.Float32bits(upper[2*j+1])); v > best {
					best, k = v, 1
				}
				if v := int32(math.Float32bits(lower[2*j])); v > best {
					best, k = v, 2
				}
				if v := int32(math.Float32bits(lower[2*j+1])); v > best {
					best, k = v, 3
				}
				to[j], which[j] = math.Float32frombits(uint32(best)), k
			}
			at = at[half:]
		}
		x = x[side*side:]
	}
}

// unpool gives each gradient to the value that pool took, and 0 to the others. It
// adds up each channel's in bias: the gradient of what was added to all values of
// the channel.
func unpool(dx []float32, side int, dy []float32, border int, at []uint8, bias []float32) {
	clear(dx)
	half := side / 2
	row := half + 2*border
	offset := [none + 1]int{0, 1, side, side + 1}
	for ch := range bias {
		sum := float32(0)
		for i := range half {
			from := dy[(ch*row+border+i)*row+border:][:half]
			to := dx[(ch*side+2*i)*side:][:2*side]
			for j, k := range at[:half] {
				if k != none {
					to[2*j+offset[k]] = from[j]
					sum += from[j]
				}
			}
			at = at[half:]
		}
		bias[ch] += sum
	}
}

// fill sets all values.
func fill(to []float32, v float32) {
	for i := range to {
		to[i] = v
	}
}

// rows sets n rows, each to the bias.
func rows(y []float32, n int, bias []float32) {
	for i := range n {
		copy(y[i*len(bias):], bias)
	}
}

// sumRows adds rows to sum, one after the other.
func sumRows(sum, rows []float32) {
	for ; len(rows) > 0; rows = rows[len(sum):] {
		for j, v := range rows[:len(sum)] {
			sum[j] += v
		}
	}
}

// A dropout lets a unit through with a chance of keep, and then weighs it by
// 1/keep, so that the mean is the same without it.
const (
	keepProbability = 0.75
	keepScale       = float32(1 / keepProbability)
	maskBits        = 2               // of random bits for each unit, of which 1 in 4 drops it
	perWord         = 64 / maskBits   // units
	dropped         = 0               // what the bits then are
	anyUnit         = 1<<maskBits - 1 // masks a unit's bits
)

// dropout is where the masks of one slot's clock are drawn from: the state of a
// SplitMix64.
type dropout uint64

// golden is 2^64 divided by the golden ratio, the increment of SplitMix64.
const golden = 0x9e3779b97f4a7c15

// relu replaces the units of the batch's i-th example by what ReLU and dropout let
// through.
func (d dropout) relu(units []float32, i int) {
	words := (len(units) + perWord - 1) / perWord
	state := uint64(d) + uint64(i*words)*golden
	for ; len(units) > 0; units = units[min(perWord, len(units)):] {
		state += golden
		bits := api.Mix(state)
		for j, v := range units[:min(perWord, len(units))] {
			if bits&anyUnit == dropped {
				v = 0
			}
			units[j] = max(v, 0) * keepScale
			bits >>= maskBits
		}
	}
}

// relu replaces values by what ReLU lets through.
func relu(values []float32) {
	for i, v := range values {
		values[i] = max(v, 0)
	}
}

// gate leaves of the gradient what belongs to units that were let through, times
// weight.
func gate(gradient, units []float32, weight float32) {
	for i, v := range units[:len(gradient)] {
		if v > 0 {
			gradient[i] *= weight
		} else {
			gradient[i] = 0
		}
	}
}

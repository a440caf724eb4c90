package cnn

import (
	"math"

	"github.com/perdure/perdure/internal/run/workload/api"
	"github.com/perdure/perdure/internal/run/workload/gemm"
)

// Between layers, a picture is stored channel by channel, each with side × side values. The input of a convolution has
// a border of one zero around each channel, so its rows have length side+2 and windows need no bounds checks.

// conv is a convolution with 3 × 3 windows and a zero border, so the output has the size of the input. The weights are
// out rows of in·3·3 values.
type conv struct {
	in, out int // channels
	side    int
}

const window = 3

func (c conv) bordered() int   { return c.side + 2 }                      // side of an input channel
func (c conv) inputSize() int  { b := c.bordered(); return c.in * b * b } // values
func (c conv) area() int       { return c.side * c.side }
func (c conv) taps() int       { return c.in * window * window }
func (c conv) outputSize() int { return c.out * c.area() }    // values
func (c conv) columns() int    { return c.taps() * c.area() } // values of unfold

// unfold writes one row per tap: the values that the tap multiplies, one for each position. The convolution is then
// weights · cols. x is bordered.
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

// fold adds each tap's row to the values that the tap multiplies. It is the transpose of unfold. x is bordered.
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

// weights adds the gradient of the weights, given the gradient dy of the output, to dw. cols is the argument of
// forward. unpool computes the gradient of the bias.
func (c conv) weights(mul *gemm.Multiplier, dw, dy, cols []float32) {
	mul.Add(gemm.Of(dw, c.out, c.taps()), gemm.Of(dy, c.out, c.area()), gemm.Of(cols, c.taps(), c.area()).T())
}

// values computes dx, the bordered gradient of the input, from the gradient dy of the output. The border holds the
// gradient of the zeros there. cols is scratch memory.
func (c conv) values(mul *gemm.Multiplier, dx, dy, w, cols []float32) {
	mul.Set(gemm.Of(cols, c.taps(), c.area()), gemm.Of(w, c.out, c.taps()).T(), gemm.Of(dy, c.out, c.area()))
	clear(dx)
	c.fold(dx, cols)
}

// none marks a window of four values without a positive one.
const none = 4

// pool writes the maximum of each 2 × 2 window, or 0 if no value is positive (the maximum after ReLU). It records the
// position of the maximum in at; the first of equal values counts. x holds channels of side × side values. y holds
// channels of half that side, with a border of the given width, which pool does not write.
func pool(y []float32, border int, at []uint8, x []float32, side int) {
	half := side / 2
	row := half + 2*border
	for ch := 0; len(x) > 0; ch++ {
		for i := range half {
			upper, lower := x[2*i*side:][:2*half], x[(2*i+1)*side:][:2*half]
			to := y[(ch*row+border+i)*row+border:][:half]
			which := at[:half]
			for j := range to {
				// The bits of positive floats are ordered as the floats are, and those of negative floats are negative
				// integers. The loop therefore has no branch to mispredict.
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

// unpool assigns each gradient to the value that pool selected, and 0 to the other values. It sums the gradient of each
// channel in bias, which is the gradient of the channel's bias.
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

// rows sets each of n rows to the bias.
func rows(y []float32, n int, bias []float32) {
	for i := range n {
		copy(y[i*len(bias):], bias)
	}
}

// sumRows adds rows to sum in order.
func sumRows(sum, rows []float32) {
	for ; len(rows) > 0; rows = rows[len(sum):] {
		for j, v := range rows[:len(sum)] {
			sum[j] += v
		}
	}
}

// Dropout keeps a unit with probability keep and multiplies it by 1/keep, so the mean does not change.
const (
	keepProbability = 0.75
	keepScale       = float32(1 / keepProbability)
	maskBits        = 2               // random bits per unit: 1 of 4 values drops it
	perWord         = 64 / maskBits   // units per word
	dropped         = 0               // value of the bits that drops a unit
	anyUnit         = 1<<maskBits - 1 // mask for a unit's bits
)

// dropout generates the masks of one slot's clock. It is the state of a SplitMix64.
type dropout uint64

// golden is 2^64 divided by the golden ratio, the increment of SplitMix64.
const golden = 0x9e3779b97f4a7c15

// relu applies ReLU and dropout to the units of the batch's i-th example.
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

// relu applies ReLU to values.
func relu(values []float32) {
	for i, v := range values {
		values[i] = max(v, 0)
	}
}

// gate multiplies the gradients of the units that were kept by weight and sets the others to 0.
func gate(gradient, units []float32, weight float32) {
	for i, v := range units[:len(gradient)] {
		if v > 0 {
			gradient[i] *= weight
		} else {
			gradient[i] = 0
		}
	}
}

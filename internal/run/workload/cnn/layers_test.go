package cnn

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure/internal/run/workload/gemm"
)

func random(r *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

// border adds a border of zeros around channels of side × side values.
func border(x []float32, side int) []float32 {
	b := side + 2
	to := make([]float32, len(x)/(side*side)*b*b)
	for i, v := range x {
		to[i/(side*side)*b*b+(i/side%side+1)*b+i%side+1] = v
	}
	return to
}

// inside removes the border.
func inside(x []float32, side int) (to []float32) {
	b := side + 2
	for i, v := range x {
		if y, at := i/b%b, i%b; y > 0 && y <= side && at > 0 && at <= side {
			to = append(to, v)
		}
	}
	return to
}

func wide(x []float32) []float64 {
	to := make([]float64, len(x))
	for i, v := range x {
		to[i] = float64(v)
	}
	return to
}

func dot(x, y []float64) (sum float64) {
	for i, v := range x {
		sum += v * y[i]
	}
	return sum
}

// naiveConv is a simple reference implementation of conv in float64.
func naiveConv(c conv, x, w, bias []float64) []float64 {
	y := make([]float64, c.outputSize())
	for i := range y {
		ch, line, at := i/c.area(), i/c.side%c.side, i%c.side
		y[i] = bias[ch]
		for k := range c.taps() {
			from, dy, dx := k/9, k/3%3-1, k%3-1
			if l, a := line+dy, at+dx; l >= 0 && l < c.side && a >= 0 && a < c.side {
				y[i] += w[ch*c.taps()+k] * x[from*c.area()+l*c.side+a]
			}
		}
	}
	return y
}

// slopes compares a gradient of f at x with central differences. f is linear in each value of x, or its bends are
// elsewhere. The differences are then exact except for float64 rounding; the tolerance covers the float32 of gradient.
func slopes(t interface{ Fatalf(string, ...any) }, what string, x []float64, gradient []float32, f func() float64) {
	const step, tolerance = 1e-5, 2e-5
	for i, v := range x {
		x[i] = v + step
		above := f()
		x[i] = v - step
		below := f()
		x[i] = v
		if want := (above - below) / (2 * step); math.Abs(want-float64(gradient[i])) > tolerance*(1+math.Abs(want)) {
			t.Fatalf("%s %d: slope %v, gradient %v", what, i, want, gradient[i])
		}
	}
}

// TestConv compares values with the reference implementation, and gradients of r·y for a random r with slopes of the
// reference implementation.
func TestConv(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := conv{
			rapid.IntRange(1, 3).Draw(t, "in"), rapid.IntRange(1, 5).Draw(t, "out"),
			rapid.IntRange(1, 6).Draw(t, "side"),
		}
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		x, w, bias := random(r, c.in*c.area()), random(r, c.out*c.taps()), random(r, c.out)
		y, cols := random(r, c.outputSize()), random(r, c.columns())
		var mul gemm.Multiplier
		c.unfold(cols, border(x, c.side))
		c.forward(&mul, y, cols, w, bias)
		wx, ww, wb := wide(x), wide(w), wide(bias)
		for i, want := range naiveConv(c, wx, ww, wb) {
			if math.Abs(want-float64(y[i])) > 1e-5*(1+math.Abs(want)) {
				t.Fatalf("value %d is %v, want %v", i, y[i], want)
			}
		}
		dy := random(r, c.outputSize())
		wdy := wide(dy)
		loss := func() float64 { return dot(wdy, naiveConv(c, wx, ww, wb)) }
		dw := make([]float32, len(w))
		c.weights(&mul, dw, dy, cols)
		slopes(t, "weight", ww, dw, loss)
		dx := random(r, c.inputSize())
		c.values(&mul, dx, dy, w, cols)
		slopes(t, "value", wx, inside(dx, c.side), loss)
	})
}

// naivePool is the reference implementation of pool: ReLU, then the maximum of 2 × 2.
func naivePool(x []float64, side int) []float64 {
	half := side / 2
	y := make([]float64, len(x)/4)
	for i := range y {
		at := i/(half*half)*side*side + i/half%half*2*side + i%half*2
		y[i] = max(0, x[at], x[at+1], x[at+side], x[at+side+1])
	}
	return y
}

func TestPool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		channels, side := rapid.IntRange(1, 3).Draw(t, "channels"), 2*rapid.IntRange(1, 4).Draw(t, "half")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		bordered := rapid.IntRange(0, 1).Draw(t, "border")
		x := make([]float32, channels*side*side)
		for i, v := range r.Perm(len(x)) { // no two values are within a step of each other or of 0
			x[i] = (float32(v-len(x)/2) + 0.5) / 8
		}
		n := len(x) / 4
		y, dy, at := make([]float32, n), random(r, n), make([]uint8, n)
		to, from := y, dy
		if bordered == 1 {
			to, from = border(y, side/2), border(dy, side/2)
		}
		pool(to, bordered, at, x, side)
		if bordered == 1 {
			if y = inside(to, side/2); !slices.Equal(border(y, side/2), to) {
				t.Fatal("the border was written")
			}
		}
		wx := wide(x)
		if want := naivePool(wx, side); !slices.Equal(wide(y), want) {
			t.Fatalf("%v, want %v", y, want)
		}
		dx, bias := random(r, len(x)), random(r, channels)
		before := slices.Clone(bias)
		unpool(dx, side, from, bordered, at, bias)
		slopes(t, "value", wx, dx, func() float64 { return dot(wide(dy), naivePool(wx, side)) })
		for ch := range bias {
			sum := 0.0
			for _, v := range dx[ch*side*side:][:side*side] {
				sum += float64(v)
			}
			if got := float64(bias[ch] - before[ch]); math.Abs(got-sum) > 1e-5*(1+math.Abs(sum)) {
				t.Fatalf("bias of channel %d: %v, its values' gradients come to %v", ch, got, sum)
			}
		}
	})
}

// TestPoolTies checks that pool selects the first of equal values, and none if no value is positive.
func TestPoolTies(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		x  [4]float32
		y  float32
		at uint8
	}{
		{[4]float32{2, 2, 2, 2}, 2, 0},
		{[4]float32{1, 3, 3, 2}, 3, 1},
		{[4]float32{-1, -2, 0, float32(math.Copysign(0, -1))}, 0, none},
		{[4]float32{-1, 1e-45, -inf, 0}, 1e-45, 1},
		{[4]float32{1, 2, 3, inf}, inf, 3},
		{[4]float32{1, 2, nan, inf}, nan, 2},
	} {
		y, at := []float32{7}, []uint8{7}
		pool(y, 0, at, c.x[:], 2)
		if math.Float32bits(y[0]) != math.Float32bits(c.y) || at[0] != c.at {
			t.Errorf("%v: %v at %d, want %v at %d", c.x, y[0], at[0], c.y, c.at)
		}
	}
}

// TestDropout checks that dropout keeps 3 of 4 units, that the mask depends only on (seed, slot, clock) and the index
// in the batch, and that each has a different mask. gate must keep the same units.
func TestDropout(t *testing.T) {
	const units, examples = 512, 200
	masks := map[string]bool{}
	kept := 0
	for _, d := range []dropout{1, 2} {
		for i := range examples {
			x, gradient := make([]float32, units), make([]float32, units)
			fill(x, 1)
			fill(gradient, 1)
			d.relu(x, i)
			gate(gradient, x, keepScale)
			if !slices.Equal(x, gradient) {
				t.Fatal("the gradient goes elsewhere than the values")
			}
			text := ""
			for _, v := range x {
				switch v {
				case keepScale:
					kept++
					text += "1"
				case 0:
					text += "0"
				default:
					t.Fatalf("a unit of 1 became %v", v)
				}
			}
			masks[text] = true
		}
	}
	if len(masks) != 2*examples {
		t.Errorf("%d masks are alike", 2*examples-len(masks))
	}
	// With 204,800 draws the standard deviation of the fraction is 0.001.
	if share := float64(kept) / (2 * examples * units); math.Abs(share-keepProbability) > 0.004 {
		t.Errorf("%v of the units were kept", share)
	}
	negative := []float32{-1, -2, -3}
	if dropout(3).relu(negative, 0); !slices.Equal(negative, make([]float32, 3)) {
		t.Errorf("ReLU lets %v through", negative)
	}
}

// TestMaskGolden fixes the masks that a seed determines.
func TestMaskGolden(t *testing.T) {
	x := make([]float32, 40)
	fill(x, 1)
	dropout(42).relu(x, 1)
	got := ""
	for _, v := range x {
		got += string("01"[min(1, int(v))])
	}
	if want := "1011111111001010111111111011110101111011"; got != want {
		t.Errorf("mask %s, want %s", got, want)
	}
}

package table

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// vectorsOf holds a kernel's rows, state and update: w, s, r, g.
type vectorsOf struct{ w, s, r, g []float32 }

// kernel is one loop of this machine and its plain counterpart, called with arbitrary constants k. Some return a
// number.
type kernel struct {
	name        string
	fast, plain func(v vectorsOf, k [7]float32) float64
}

// changes adapts a function without a result.
func changes(f func(v vectorsOf, k [7]float32)) func(vectorsOf, [7]float32) float64 {
	return func(v vectorsOf, k [7]float32) float64 { f(v, k); return 0 }
}

func adamOf(k [7]float32) *adamFactors {
	return &adamFactors{k[0], k[1], k[2], k[3], k[4], k[5], k[6]}
}
func ftrlOf(k [7]float32) *ftrlFactors { return &ftrlFactors{k[0], k[1], k[2], k[3]} }

var kernels = []kernel{
	{
		"add",
		changes(func(v vectorsOf, _ [7]float32) { add(v.w, v.g) }),
		changes(func(v vectorsOf, _ [7]float32) { addPlain(v.w, v.g) }),
	}, {
		"sgd",
		changes(func(v vectorsOf, k [7]float32) { sgd(v.w, v.g, k[0]) }),
		changes(func(v vectorsOf, k [7]float32) { sgdPlain(v.w, v.g, k[0]) }),
	}, {
		"sgd of itself",
		changes(func(v vectorsOf, k [7]float32) { sgd(v.w, v.w, k[0]) }),
		changes(func(v vectorsOf, k [7]float32) { sgdPlain(v.w, v.w, k[0]) }),
	}, {
		"momentum",
		changes(func(v vectorsOf, k [7]float32) { momentum(v.w, v.s, v.g, k[0], k[1]) }),
		changes(func(v vectorsOf, k [7]float32) { momentumPlain(v.w, v.s, v.g, k[0], k[1]) }),
	}, {
		"nesterov",
		changes(func(v vectorsOf, k [7]float32) { nesterov(v.w, v.s, v.g, k[0], k[1]) }),
		changes(func(v vectorsOf, k [7]float32) { nesterovPlain(v.w, v.s, v.g, k[0], k[1]) }),
	}, {
		"adagrad",
		changes(func(v vectorsOf, k [7]float32) { adagrad(v.w, v.s, v.g, k[0], k[1]) }),
		changes(func(v vectorsOf, k [7]float32) { adagradPlain(v.w, v.s, v.g, k[0], k[1]) }),
	}, {
		"adam",
		changes(func(v vectorsOf, k [7]float32) { adam(v.w, v.s, v.r, v.g, adamOf(k)) }),
		changes(func(v vectorsOf, k [7]float32) { adamPlain(v.w, v.s, v.r, v.g, adamOf(k)) }),
	}, {
		"ftrl",
		changes(func(v vectorsOf, k [7]float32) { ftrl(v.w, v.s, v.r, v.g, ftrlOf(k)) }),
		changes(func(v vectorsOf, k [7]float32) { ftrlPlain(v.w, v.s, v.r, v.g, ftrlOf(k)) }),
	}, {
		"clip",
		changes(func(v vectorsOf, k [7]float32) { clip(v.w, v.g, k[0], k[1]) }),
		changes(func(v vectorsOf, k [7]float32) { clipPlain(v.w, v.g, k[0], k[1]) }),
	}, {
		"squares",
		func(v vectorsOf, k [7]float32) float64 { return squares(v.g, k[0]) },
		func(v vectorsOf, k [7]float32) float64 { return squaresPlain(v.g, k[0]) },
	}, {
		"gap",
		func(v vectorsOf, _ [7]float32) float64 { return gap(v.w, v.g) },
		func(v vectorsOf, _ [7]float32) float64 { return gapPlain(v.w, v.g) },
	}, {
		"gaps",
		func(v vectorsOf, k [7]float32) float64 { return gapsOf(gaps, v, k) },
		func(v vectorsOf, k [7]float32) float64 { return gapsOf(gapsPlain, v, k) },
	}, {
		"roots",
		func(v vectorsOf, k [7]float32) float64 { return rootsOf(roots, v, k) },
		func(v vectorsOf, k [7]float32) float64 { return rootsOf(rootsPlain, v, k) },
	}, {
		"apart",
		func(v vectorsOf, k [7]float32) float64 { return float64(apart(bitsIn(v.s), v.w, v.g, by(k))) },
		func(v vectorsOf, k [7]float32) float64 { return float64(apartPlain(bitsIn(v.s), v.w, v.g, by(k))) },
	}, {
		"atLeast",
		func(v vectorsOf, k [7]float32) float64 { return atLeastOf(atLeast, v, k) },
		func(v vectorsOf, k [7]float32) float64 { return atLeastOf(atLeastPlain, v, k) },
	}, {
		"nonFinite",
		func(v vectorsOf, _ [7]float32) float64 { return float64(nonFinite(v.g)) },
		func(v vectorsOf, _ [7]float32) float64 { return float64(nonFinitePlain(v.g)) },
	},
}

// bitsIn returns the memory of floats as bits, for keys.
func bitsIn(v []float32) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(v))), len(v))
}

// by returns the divisor of distances: the size of a row, at least that of its values.
func by(k [7]float32) float32 { return float32(4 + math.Float32bits(k[0])%4000) }

// gapsOf returns a digest of the gaps of rows of some width.
func gapsOf(f func(dst []float64, a, b []float32, width int), v vectorsOf, k [7]float32) float64 {
	width := 1 + int(math.Float32bits(k[1])%40)
	if math.Float32bits(k[1])>>8%2 == 0 {
		width = 1 << (math.Float32bits(k[1]) >> 9 % 4)
	}
	dst := make([]float64, len(v.w)/width)
	f(dst, v.w, v.g, width)
	return digest(func(i int) uint64 {
		if dst[i] != dst[i] {
			return 1 // any NaN
		}
		return math.Float64bits(dst[i])
	}, len(dst))
}

func rootsOf(f func(dst []uint32, squares []float64, by float64) uint32, v vectorsOf, k [7]float32) float64 {
	squares := make([]float64, len(v.w))
	for i := range squares {
		squares[i] = gapPlain(v.w[i:i+1], v.g[i:i+1])
	}
	return float64(f(bitsIn(v.s), squares, float64(by(k))))
}

func atLeastOf(f func(dst []uint64, keys []uint32, least uint32), v vectorsOf, k [7]float32) float64 {
	dst := make([]uint64, (len(v.w)+63)/64)
	for i := range dst {
		dst[i] = 0x5555
	}
	least := math.Float32bits(k[0])
	if keys := bitsIn(v.w); len(keys) > 0 && least%2 == 0 {
		least = keys[least/2%uint32(len(keys))]
	}
	f(dst, bitsIn(v.w), least)
	return digest(func(i int) uint64 { return dst[i] }, len(dst))
}

// digest combines numbers into one whose bits are not those of a NaN.
func digest(of func(i int) uint64, n int) float64 {
	sum := uint64(n)
	for i := range n {
		sum = mix(sum ^ of(i))
	}
	return float64(sum >> 12)
}

// sequence is a deterministic sequence of numbers from a seed.
type sequence uint64

func (s *sequence) bits() uint64 {
	*s += 0x9e3779b97f4a7c15
	return mix(uint64(*s))
}

// value returns an ordinary number, an edge case or arbitrary bits.
func (s *sequence) value() float32 {
	z := s.bits()
	switch pick := z >> 32; pick % 8 {
	case 0:
		return math.Float32frombits(uint32(z))
	case 1:
		return edges[pick/8%uint64(len(edges))]
	default:
		return s.ordinary()
	}
}

// ordinary returns a number in [-10, 10).
func (s *sequence) ordinary() float32 { return float32(s.bits()>>40)*(20.0/(1<<24)) - 10 }

func (s *sequence) fill(n int, value func() float32) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = value()
	}
	return v
}

var edges = []float32{
	0, float32(math.Copysign(0, -1)), 1, -1, math.MaxFloat32, -math.MaxFloat32,
	math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32, 0x1p-126, // smallest normal number
	float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 1 << 24, 1<<24 - 1,
}

// checkKernel calls both loops on n values from next, at addresses with the given alignments (in values, 2 bits per
// vector). It compares everything they wrote, the memory around it, and their results.
func checkKernel(t interface{ Fatalf(string, ...any) }, k kernel, n int, alignments uint8, next func() float32) {
	var mine, all, want [4][]float32
	for i := range mine {
		values := make([]float32, n)
		for j := range values {
			values[j] = next()
		}
		mine[i], all[i] = guarded(values, int(alignments>>(2*i)&3))
		_, want[i] = guarded(values, int(alignments>>(2*i)&3))
	}
	var numbers [7]float32
	for i := range numbers {
		numbers[i] = next()
	}
	var before [4][]float32
	for i := range all {
		before[i] = slices.Clone(all[i])
	}
	var plain vectorsOf
	for i, to := range []*[]float32{&plain.w, &plain.s, &plain.r, &plain.g} {
		from := int(alignments >> (2 * i) & 3)
		*to = want[i][from : from+n : from+n]
	}
	got := k.fast(vectorsOf{mine[0], mine[1], mine[2], mine[3]}, numbers)
	expected := k.plain(plain, numbers)
	if math.Float64bits(got) != math.Float64bits(expected) && (got == got || expected == expected) {
		t.Fatalf("%s of %d: %v, plain %v\nof %x\nnumbers %x", k.name, n, got, expected, before, numbers)
	}
	for i := range all {
		if !sameBits(all[i], want[i]) {
			t.Fatalf("%s of %d at %b: vector %d\n%x\nplain\n%x\nof %x\nnumbers %x", k.name, n, alignments, i, all[i],
				want[i], before, numbers)
		}
	}
}

// TestKernelsLikePlain: every kernel of this machine gives the bits of its plain counterpart for every length that its
// loops treat differently, every alignment and any numbers, and writes nowhere else.
func TestKernelsLikePlain(t *testing.T) {
	if !vectors {
		t.Skip("this machine has the plain loops only")
	}
	for _, k := range kernels {
		rapid.Check(quiet{t}, func(t *rapid.T) {
			seed := sequence(rapid.Uint64().Draw(t, "seed"))
			value := seed.value
			if rapid.Bool().Draw(t, "ordinary") {
				value = seed.ordinary
			}
			for n := range 70 {
				checkKernel(t, k, n, uint8(seed.bits()), value)
			}
			checkKernel(t, k, 500+int(seed.bits()%100), uint8(seed.bits()), value)
		})
	}
}

// quiet keeps rapid from logging each of many checks.
type quiet struct{ *testing.T }

func (quiet) Logf(string, ...any) {}

func FuzzKernels(f *testing.F) {
	f.Add(uint8(6), uint8(0), uint8(37), binary.LittleEndian.AppendUint32(nil, math.Float32bits(1.5)))
	f.Add(uint8(9), uint8(0xff), uint8(64), []byte{0, 0, 0x80, 0x7f, 1, 2, 3, 4, 0xff, 0xff, 0xff, 0xff, 5})
	f.Fuzz(func(t *testing.T, which, alignments, n uint8, data []byte) {
		if !vectors || len(data) < 4 {
			t.Skip()
		}
		at := 0 // values are read from data cyclically
		checkKernel(t, kernels[int(which)%len(kernels)], int(n), alignments, func() float32 {
			if at+4 > len(data) {
				at = (at + 1) % 4
			}
			if at+4 > len(data) {
				at = 0
			}
			v := math.Float32frombits(binary.LittleEndian.Uint32(data[at:]))
			at += 4
			return v
		})
	})
}

// arithmetic evaluates a kernel's formula one operation at a time. No operations are fused except at the one selected
// place.
type arithmetic struct{ fused int }

//go:noinline
func times(a, b float32) float32 { return a * b }

//go:noinline
func plus(a, b float32) float32 { return a + b }

// mulAdd returns a·b + c.
func (o arithmetic) mulAdd(place int, a, b, c float32) float32 {
	if place == o.fused {
		return float32(math.FMA(float64(a), float64(b), float64(c)))
	}
	return plus(times(a, b), c)
}

// mulMulAdd returns a·b + c·d, where either product may be fused: two places.
func (o arithmetic) mulMulAdd(place int, a, b, c, d float32) float32 {
	if place+1 == o.fused {
		return o.mulAdd(place+1, c, d, times(a, b))
	}
	return o.mulAdd(place, a, b, times(c, d))
}

// formulas are the kernels' formulas for one value, with the number of places where a multiplication meets an addition.
var formulas = map[string]struct {
	places int
	do     func(o arithmetic, w, s, r, g float32, k [7]float32) (float32, float32, float32)
}{
	"sgd": {1, func(o arithmetic, w, s, r, g float32, k [7]float32) (float32, float32, float32) {
		return o.mulAdd(0, -k[0], g, w), s, r
	}},
	"momentum": {2, func(o arithmetic, w, s, r, g float32, k [7]float32) (float32, float32, float32) {
		s = o.mulAdd(0, k[0], s, g)
		return o.mulAdd(1, -k[1], s, w), s, r
	}},
	"nesterov": {3, func(o arithmetic, w, s, r, g float32, k [7]float32) (float32, float32, float32) {
		s = o.mulAdd(0, k[0], s, g)
		return o.mulAdd(1, -k[1], o.mulAdd(2, k[0], s, g), w), s, r
	}},
	"adagrad": {1, func(o arithmetic, w, s, r, g float32, k [7]float32) (float32, float32, float32) {
		s = o.mulAdd(0, g, g, s)
		return plus(w, -times(k[0], g)/plus(root(s), k[1])), s, r
	}},
	"adam": {5, func(o arithmetic, w, s, r, g float32, k [7]float32) (float32, float32, float32) {
		s = o.mulMulAdd(0, k[0], s, k[1], g)
		r = o.mulMulAdd(2, k[2], r, k[3], times(g, g))
		return plus(w, -times(k[4], s)/o.mulAdd(4, k[5], root(r), k[6])), s, r
	}},
	"ftrl": {3, func(o arithmetic, w, s, r, g float32, k [7]float32) (float32, float32, float32) {
		before := root(r)
		r = o.mulAdd(0, g, g, r)
		rise := times(plus(root(r), -before), k[0])
		s = plus(s, o.mulAdd(1, -rise, w, g))
		if s <= k[2] && -s <= k[2] {
			return 0, s, r
		}
		l1 := float32(math.Copysign(float64(k[2]), float64(s)))
		return plus(l1, -s) / o.mulAdd(2, plus(k[1], root(r)), k[0], k[3]), s, r
	}},
}

// TestNothingIsFused: the kernels round each operation of their formula. They give the bits of a stepwise evaluation,
// on values for which any fused step would show.
func TestNothingIsFused(t *testing.T) {
	const n = 1000
	seed := sequence(1)
	small := func() float32 { return seed.ordinary() / 100 } // so that an addition to it is visible
	positive := func() float32 { return 1.5 + seed.ordinary()/10 }
	for _, k := range kernels {
		formula, ok := formulas[k.name]
		if !ok {
			continue // no multiplication meets an addition, or only in float64, where it is exact
		}
		start := vectorsOf{
			seed.fill(n, small), seed.fill(n, positive), seed.fill(n, positive),
			seed.fill(n, seed.ordinary),
		}
		numbers := [7]float32(seed.fill(7, positive))
		at := func(fused int) []float32 {
			var all []float32
			for i := range n {
				w, s, r := formula.do(arithmetic{fused}, start.w[i], start.s[i], start.r[i], start.g[i], numbers)
				all = append(all, w, s, r)
			}
			return all
		}
		want := at(-1)
		for place := range formula.places {
			if sameBits(at(place), want) {
				t.Errorf("%s: the example does not reveal whether place %d is fused", k.name, place)
			}
		}
		for name, do := range map[string]func(vectorsOf, [7]float32) float64{"vectors": k.fast, "plain": k.plain} {
			v := vectorsOf{
				append([]float32{}, start.w...), append([]float32{}, start.s...),
				append([]float32{}, start.r...), start.g,
			}
			do(v, numbers)
			for i := range n {
				if got := []float32{v.w[i], v.s[i], v.r[i]}; !sameBits(got, want[3*i:3*i+3]) {
					t.Fatalf("%s, %s: value %d: %x, want %x", k.name, name, i, got, want[3*i:3*i+3])
				}
			}
		}
	}
}

// TestApartIsRoot: the keys of single values, which are computed in float32, equal those of the roots of their squares.
func TestApartIsRoot(t *testing.T) {
	rapid.Check(quiet{t}, func(t *rapid.T) {
		seed := sequence(rapid.Uint64().Draw(t, "seed"))
		n := 64
		a, b := seed.fill(n, seed.value), seed.fill(n, seed.value)
		for i := range a {
			switch seed.bits() % 3 {
			case 0: // subnormal differences
				a[i] = math.Float32frombits(uint32(seed.bits()) >> (8 + seed.bits()%24))
				b[i] = 0
			case 1:
				b[i] = math.Float32frombits(math.Float32bits(a[i]) + uint32(seed.bits()%3))
			}
		}
		by := 4 + int(seed.bits()%1000)
		one, two, squares := make([]uint32, n), make([]uint32, n), make([]float64, n)
		gaps(squares, a, b, 1)
		most := roots(two, squares, float64(by))
		if got := DistanceKeys(one, a, b, 1, by); got != most || !slices.Equal(one, two) {
			t.Fatalf("%x and %x, by %d: %x, %d; by their squares %x, %d", a, b, by, one, got, two, most)
		}
	})
}

// TestVariations: the distance of counts is that of their shares, multiplied by their sum. Changed rows never have the
// key of unchanged ones.
func TestVariations(t *testing.T) {
	for _, c := range []struct {
		now, saved []float32
		want       float32 // divided by 4
	}{
		{[]float32{2, 0, 6}, []float32{2, 0, 6}, 0},
		{[]float32{2, 0, 6}, []float32{0, 1, 0}, 2},     // disjoint: all 8 differ
		{[]float32{4, 0, 4}, []float32{1, 0, 3}, 0.5},   // a quarter differs
		{[]float32{4, 0, 12}, []float32{1, 0, 3}, -1},   // equal shares
		{[]float32{0, 0, 0}, []float32{1, 0, 3}, -1},    // empty now
		{[]float32{1, 0, 3}, []float32{0, 0, 0}, 0.5},   // empty before
		{[]float32{-1, 0, -3}, []float32{1, 0, 3}, -1},  // invalid counts now
		{[]float32{1, 0, 3}, []float32{-1, 0, -3}, 0.5}, // invalid counts before
	} {
		key := []uint32{7}
		want := math.Float32bits(c.want)
		if c.want < 0 {
			want = 1
		}
		if most := Metric(TotalVariation).Keys(key, c.now, c.saved, 3, 4); key[0] != want || most != want {
			t.Errorf("%v, saved as %v: %v, want %v", c.now, c.saved, math.Float32frombits(key[0]), c.want)
		}
	}
}

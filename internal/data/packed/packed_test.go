package packed

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// odd are values that resemble 0 or are NaN; their bits must be preserved.
var odd = []uint32{
	0, 1 << 31, 1, 1<<31 | 1, 0x7f800000, 0xff800000, 0x7fc00000, 0x7fa00001, 0xffc12345, math.Float32bits(1),
}

// draw returns n values, about one in some of which is not +0.
func draw(t *rapid.T, n int) []float32 {
	one := rapid.IntRange(1, 200).Draw(t, "one in")
	state := rapid.Uint64().Draw(t, "seed")
	values := make([]float32, n)
	for i := range values {
		state = state*6364136223846793005 + 1442695040888963407
		if r := state >> 33; r%uint64(one) == 0 {
			values[i] = math.Float32frombits(odd[r/256%uint64(len(odd))])
		}
	}
	return values
}

func bitsOf(values []float32) (all []uint32) {
	for _, v := range values {
		all = append(all, math.Float32bits(v))
	}
	return all
}

// TestRoundTrip: packed values keep their bits, whatever precedes or follows them, and take at most half the size.
// Values that would take more are not packed.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := draw(t, rapid.IntRange(0, 5000).Draw(t, "n"))
		given := 0
		for _, b := range bitsOf(values) {
			if b != 0 {
				given++
			}
		}
		size := 8*MaskWords(len(values)) + 4*given
		before := slices.Repeat([]byte{7}, rapid.IntRange(0, 9).Draw(t, "before"))
		room := append(slices.Grow([]byte(nil), rapid.SampledFrom([]int{0, 64, 1 << 16}).Draw(t, "room")), before...)
		all, ok := Append(room, values)
		if ok != (2*size <= 4*len(values)) || !slices.Equal(all[:len(before)], before) {
			t.Fatalf("%d values, %d of them given, are packed: %v", len(values), given, ok)
		}
		if !ok {
			if len(all) != len(before) {
				t.Fatalf("%d bytes remain", len(all)-len(before))
			}
			return
		}
		if len(all) != len(before)+size {
			t.Fatalf("%d values, %d given, take %d bytes, want %d", len(values), given, len(all)-len(before), size)
		}
		src, some, rest, err := Split(append(all[len(before):], 1, 2, 3), len(values))
		if err != nil || len(rest) != 3 || len(some) != 4*given {
			t.Fatalf("%d given of %d, %d bytes left: %v", len(some)/4, len(values), len(rest), err)
		}
		got := slices.Repeat([]float32{9}, len(values)) // previous contents of the memory
		Expand(got, src)
		if !slices.Equal(bitsOf(got), bitsOf(values)) {
			t.Fatalf("%x came out as %x", bitsOf(values), bitsOf(got))
		}
		k := 0
		for i, b := range bitsOf(values) {
			if b == 0 {
				continue
			}
			if Index(src, k) != i || binary.LittleEndian.Uint32(some[4*k:]) != b {
				t.Fatalf("given value %d is %x at %d, want %x at %d", k, some[4*k:4*k+4], Index(src, k), b, i)
			}
			k++
		}
	})
}

// TestBits: the vector loop marks the same values as the plain loop.
func TestBits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := draw(t, rapid.IntRange(0, 700).Draw(t, "n"))
		got := slices.Repeat([]uint64{3}, MaskWords(len(values)))
		SetMask(got, values)
		for i := range got {
			if want := markPlain(values[i*wordBits : min((i+1)*wordBits, len(values))]); got[i] != want {
				t.Fatalf("values from %d on are marked %x, want %x", i*wordBits, got[i], want)
			}
		}
	})
}

// TestPays: few values are never worth packing, and neither are mostly given ones, wherever the zeros are. Values with
// a few given in a hundred are, even if these are adjacent.
func TestPays(t *testing.T) {
	for n := MinValues; n < 1<<18; n = n*5/4 + 1 {
		some := make([]float32, n)
		if WorthPacking(some[:MinValues-1]) || !WorthPacking(some) {
			t.Errorf("%d values of 0: %v; too few: %v", n, WorthPacking(some), WorthPacking(some[:MinValues-1]))
		}
		for every, want := range map[int]bool{1: false, 2: false, 20: true, 100: true} {
			clear(some)
			for i := 0; i < n; i += every {
				some[i] = 1
			}
			if WorthPacking(some) != want {
				t.Errorf("%d values, one in %d given: %v", n, every, !want)
			}
		}
	}
}

// TestMalformed: malformed encodings are rejected without allocation.
func TestMalformed(t *testing.T) {
	word := func(w uint64, rest ...byte) []byte { return append(binary.LittleEndian.AppendUint64(nil, w), rest...) }
	for what, c := range map[string]struct {
		src []byte
		n   int
	}{
		"fewer than none":        {nil, -1},
		"no marks":               {nil, 1},
		"half of the marks":      {word(0), 65},
		"too few values":         {word(3, 0, 0, 0, 0, 1, 2, 3), 64},
		"one value too many":     {word(1<<40, 1, 2, 3, 4), 40},
		"more than there can be": {word(0), math.MaxInt32},
		"overflow":               {word(0), math.MaxInt},
	} {
		if _, _, _, err := Split(c.src, c.n); !errors.Is(err, ErrPacked) {
			t.Errorf("%s: %v", what, err)
		}
	}
	src := word(1, 1, 2, 3, 4)
	if allocs := testing.AllocsPerRun(100, func() { _, _, _, _ = Split(src, 64) }); allocs > 0 {
		t.Errorf("Cut allocates %v times", allocs)
	}
}

func FuzzCut(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4}, 64)
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0x80, 1, 2, 3, 4, 5}, 63)
	f.Fuzz(func(t *testing.T, src []byte, n int) {
		values, given, rest, err := Split(src, n)
		if err != nil {
			if !errors.Is(err, ErrPacked) {
				t.Errorf("%v", err)
			}
			return
		}
		if len(values)+len(rest) != len(src) || len(values) != 8*MaskWords(n)+len(given) || n > 8*len(src) {
			t.Errorf("%d values in % x are %d bytes, %d of them given, and %d are left", n, src, len(values),
				len(given), len(rest))
		}
		got := make([]float32, n)
		Expand(got, values)
		for k := range len(given) / 4 {
			if v := got[Index(values, k)]; math.Float32bits(v) != binary.LittleEndian.Uint32(given[4*k:]) {
				t.Errorf("given value %d of % x is %x", k, src, math.Float32bits(v))
			}
		}
	})
}

// fill sets the first of every group of values to 1.
func fill(values []float32, every int) []float32 {
	clear(values)
	for i := 0; every > 0 && i < len(values); i += every {
		values[i] = 1
	}
	return values
}

func BenchmarkPays(b *testing.B) {
	values := fill(make([]float32, 1<<24), 1)
	for i := 0; b.Loop(); i++ {
		at := i % 64 << 18
		if WorthPacking(values[at : at+1<<18]) {
			b.Fatal("dense values are worth packing")
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	values := fill(make([]float32, 1<<18), 20)
	b.SetBytes(4 << 18)
	var dst []byte
	for b.Loop() {
		dst, _ = Append(dst[:0], values)
	}
}

func BenchmarkExpand(b *testing.B) {
	values := fill(make([]float32, 1<<18), 20)
	src, _ := Append(nil, values)
	b.SetBytes(4 << 18)
	for b.Loop() {
		Expand(values, src)
	}
}

package packed

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
)

var encodings = []perdure.Encoding{perdure.EncodingBF16, perdure.EncodingInt8, perdure.Encoding2Bit}

// finite draws finite values: some rows of normally distributed ones, some of few values, some of extreme ones.
func finite(t *rapid.T, n int) []float32 {
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	kind := rapid.IntRange(0, 5).Draw(t, "kind")
	by := float32(math.Ldexp(1, rapid.IntRange(-140, 120).Draw(t, "scale")))
	values := make([]float32, n)
	for i := range values {
		switch kind {
		case 0:
			values[i] = float32(r.NormFloat64()) * by
		case 1:
			values[i] = float32(r.IntN(5)-2) * by
		case 2:
			values[i] = math.Float32frombits(r.Uint32())
		case 3:
			values[i] = []float32{math.MaxFloat32, -math.MaxFloat32, 0, 1e-45}[r.IntN(4)]
		case 4:
			values[i] = by
		}
		if v := float64(values[i]); math.IsNaN(v) || math.IsInf(v, 0) {
			values[i] = 0
		}
	}
	zeros := rapid.IntRange(0, n).Draw(t, "zeros")
	clear(values[n-zeros:])
	return values
}

// TestEncodings: decoded rows are finite and near the values, encoding them again changes nothing, and rows do not
// depend on their neighbours.
func TestEncodings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := rapid.SampledFrom(encodings).Draw(t, "encoding")
		dim := rapid.SampledFrom([]int{1, 2, 3, 4, 7, 63, 64, 65, 1024}).Draw(t, "dim")
		rows := rapid.IntRange(1, 3).Draw(t, "rows")
		values := finite(t, rows*dim)
		before := []byte{1, 2, 3}
		all := AppendEncoded(slices.Clone(before), e, dim, values)
		if !slices.Equal(all[:3], before) || len(all) != 3+EncodedBytes(e, rows, dim) {
			t.Fatalf("%d rows of %d values take %d bytes, want %d", rows, dim, len(all)-3, EncodedBytes(e, rows, dim))
		}
		encoded, rest, err := SplitEncoded(append(all[3:], 9, 9), e, rows, dim)
		if err != nil || len(rest) != 2 {
			t.Fatalf("%d bytes remain: %v", len(rest), err)
		}
		got := slices.Repeat([]float32{7}, len(values))
		Decode(got, e, dim, encoded)
		for r := range rows {
			near(t, e, values[r*dim:(r+1)*dim], got[r*dim:(r+1)*dim])
			alone := slices.Clone(values[r*dim : (r+1)*dim])
			Round(alone, e, dim)
			if !slices.Equal(bitsOf(alone), bitsOf(got[r*dim:(r+1)*dim])) {
				t.Fatalf("row %d alone is rounded to %v, with others to %v", r, alone, got[r*dim:(r+1)*dim])
			}
		}
		again := slices.Clone(got)
		Round(again, e, dim)
		if !slices.Equal(bitsOf(again), bitsOf(got)) {
			t.Fatalf("%v is rounded to %v and then to %v", values, got, again)
		}
	})
}

// near fails unless rounded values are as near to a row's as their encoding allows.
func near(t *rapid.T, e perdure.Encoding, row, got []float32) {
	most := 0.0
	for _, v := range row {
		most = max(most, math.Abs(float64(v)))
	}
	squares, errors := 0.0, 0.0
	for i, v := range row {
		off := math.Abs(float64(v) - float64(got[i]))
		squares, errors = squares+float64(v)*float64(v), errors+off*off
		bound := math.Abs(float64(v))/256 + 1e-40
		if e == perdure.EncodingInt8 {
			bound = most/maxInt8*0.501 + 2*minScaled
			if most > math.MaxFloat32*0.99 {
				bound = most / 64
			}
		}
		if e == perdure.Encoding2Bit {
			bound = 2 * most
		}
		if !(off <= bound) {
			t.Fatalf("%s: value %d of %v is rounded to %v", e, i, v, got[i])
		}
	}
	if e == perdure.Encoding2Bit && !(errors <= squares*1.001) {
		t.Fatalf("rounding %v to %v adds more than it keeps", row, got)
	}
}

// TestRoundingError pins the mean square error of normally distributed values, relative to their variance.
func TestRoundingError(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	values := make([]float32, 256<<10)
	for i := range values {
		values[i] = float32(r.NormFloat64()) * 1e-3
	}
	for e, want := range map[perdure.Encoding]float64{
		perdure.EncodingBF16: 3e-6, perdure.EncodingInt8: 7e-5, perdure.Encoding2Bit: 0.118,
	} {
		got, squares, errors := slices.Clone(values), 0.0, 0.0
		Round(got, e, 1024)
		for i, v := range values {
			d := float64(got[i]) - float64(v)
			squares, errors = squares+float64(v)*float64(v), errors+d*d
		}
		if errors/squares > want {
			t.Errorf("%s: error %.3g of the variance, want at most %g", e, errors/squares, want)
		}
	}
}

// TestExactRows: rows of few different values, and of few values, are sent as they are by 2bit.
func TestExactRows(t *testing.T) {
	for what, row := range map[string][]float32{
		"one value":       append([]float32{-0.3}, make([]float32, 1023)...),
		"64 values":       append(ramp(64), make([]float32, 960)...),
		"constant":        slices.Repeat([]float32{0.1}, 1024),
		"four values":     slices.Repeat([]float32{0.1, -0.2, 0, float32(math.Copysign(0, -1))}, 256),
		"zeros":           make([]float32, 1024),
		"a row of two":    {3, -4},
		"constant of two": {0.7, 0.7},
	} {
		got := slices.Clone(row)
		if Round(got, perdure.Encoding2Bit, len(row)); !slices.Equal(bitsOf(got), bitsOf(row)) {
			t.Errorf("%s: %v is rounded to %v", what, row, got)
		}
	}
}

func ramp(n int) (values []float32) {
	for i := range n {
		values = append(values, float32(i+1))
	}
	return values
}

// TestMalformedEncodings: malformed encodings are rejected without allocation.
func TestMalformedEncodings(t *testing.T) {
	inf := []byte{0, 0, 0x80, 0x7f}
	for what, c := range map[string]struct {
		e         perdure.Encoding
		src       []byte
		rows, dim int
	}{
		"too short":       {perdure.EncodingBF16, make([]byte, 7), 2, 2},
		"no values":       {perdure.EncodingInt8, nil, 1, 1},
		"fewer than none": {perdure.EncodingInt8, make([]byte, 64), -1, 1},
		"no dim":          {perdure.EncodingInt8, make([]byte, 64), 1, 0},
		"overflow":        {perdure.EncodingInt8, make([]byte, 64), math.MaxInt, math.MaxInt},
		"infinite value":  {perdure.EncodingBF16, inf, 1, 2},
		"infinite scale":  {perdure.EncodingInt8, append(slices.Clone(inf), 1), 1, 1},
		"negative scale":  {perdure.EncodingInt8, []byte{0, 0, 0x80, 0xbf, 1}, 1, 1},
		"large scale":     {perdure.EncodingInt8, []byte{0, 0, 0x7f, 0x7f, 1}, 1, 1},
		"infinite level":  {perdure.Encoding2Bit, slices.Concat([]byte{1, 0, 0, 0}, inf, make([]byte, 13)), 1, 4},
		"too many coded":  {perdure.Encoding2Bit, append([]byte{5, 0, 0, 0}, make([]byte, 17)...), 1, 4},
		"too many raw":    {perdure.Encoding2Bit, append([]byte{1, 0, 0, 0x80}, make([]byte, 17)...), 1, 4},
		"infinite raw":    {perdure.Encoding2Bit, slices.Concat([]byte{1, 0, 0, 0x80}, make([]byte, 16), inf), 1, 16},
		"float32":         {perdure.EncodingFloat32, make([]byte, 64), 1, 1},
		"unknown":         {"int4", make([]byte, 64), 1, 1},
	} {
		if _, _, err := SplitEncoded(c.src, c.e, c.rows, c.dim); !errors.Is(err, ErrPacked) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0x80, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 1, 2, 3, 4}, uint8(2), 16)
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8}, uint8(1), 4)
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8}, uint8(0), 2)
	f.Fuzz(func(t *testing.T, src []byte, kind uint8, dim int) {
		e := encodings[int(kind)%len(encodings)]
		rows := 1 + int(kind)/len(encodings)
		encoded, _, err := SplitEncoded(src, e, rows, dim)
		if err != nil {
			if !errors.Is(err, ErrPacked) {
				t.Error(err)
			}
			return
		}
		got := make([]float32, rows*dim)
		Decode(got, e, dim, encoded)
		for i, v := range got {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				t.Errorf("value %d of % x is %v", i, src, v)
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	values := make([]float32, 1<<18)
	for i := range values {
		values[i] = float32(r.NormFloat64())
	}
	for _, e := range encodings {
		var dst []byte
		b.Run(string(e), func(b *testing.B) {
			b.SetBytes(4 << 18)
			for b.Loop() {
				dst = AppendEncoded(dst[:0], e, 1024, values)
			}
		})
		to := make([]float32, len(values))
		b.Run(string(e)+"/decode", func(b *testing.B) {
			b.SetBytes(4 << 18)
			for b.Loop() {
				Decode(to, e, 1024, dst)
			}
		})
		b.Run(string(e)+"/check", func(b *testing.B) {
			b.SetBytes(4 << 18)
			for b.Loop() {
				if _, _, err := SplitEncoded(dst, e, 256, 1024); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

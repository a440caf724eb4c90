package table

import (
	"math"
	"slices"
)

// Gap returns the square of the distance between two rows as long as each other. It has the
// same bits on every machine.
func Gap(a, b []float32) float64 { return gap(a, b) }

// Farthest is the key of a distance that is infinite, or not a number.
const Farthest = 0x7f800000

// Distances gives each of len(keys) rows a key: the higher it is the farther row i of a is from
// row i of b, both of width values, one row after the other. It is the bits of the float32
// nearest to √Gap/by, since those of floats ≥ 0 are in the floats' order; 0 only where Gap is,
// and at most Farthest. It returns the highest, and has the same bits on every machine.
func Distances(keys []uint32, a, b []float32, width, by int) (most uint32) {
	if width == 1 && by < 1<<24 {
		return apart(keys, a[:len(keys)], b[:len(keys)], float32(by))
	}
	var squares [batch]float64
	for len(keys) > 0 {
		n := min(len(keys), batch)
		gaps(squares[:n], a, b, width)
		most = max(most, roots(keys[:n], squares[:n], float64(by)))
		keys, a, b = keys[n:], a[n*width:], b[n*width:]
	}
	return most
}

// Variations is Distances with the scaled total variation in place of the Euclidean distance: the
// sum of row i of a, times ½ Σ|aₖ/Σa − bₖ/Σb|; of a row whose sum is not above 0 each part is 0. It is
// 0 only where the rows are equal.
func Variations(keys []uint32, a, b []float32, width, by int) (most uint32) {
	for i := range keys {
		u, v := a[i*width:(i+1)*width], b[i*width:(i+1)*width]
		key := min(math.Float32bits(float32(variation(u, v)/float64(by))), Farthest)
		if key == 0 && !slices.Equal(u, v) {
			key = 1
		}
		keys[i], most = key, max(most, key)
	}
	return most
}

func variation(u, v []float32) (sum float64) {
	of, before := total(u), total(v)
	if of == 0 {
		return 0
	}
	share, had := 1/of, 0.0
	if before != 0 {
		had = 1 / before
	}
	for k := range u {
		sum += math.Abs(float64(float64(u[k])*share) - float64(float64(v[k])*had))
	}
	return of * sum / 2
}

// total is the sum of a row's counts; 0 where that is below.
func total(u []float32) (sum float64) {
	for _, n := range u {
		sum += float64(n)
	}
	if sum < 0 {
		return 0
	}
	return sum
}

// Farness is how far many rows are from what they were, all of them together. The zero value is of
// none, and of Euclidean distances. It has the same bits on every machine, as long as the same rows are
// added in the same calls, or in such as begin at a multiple of Together; rows that are as they were may be
// left out.
type Farness struct {
	Counts bool // they are rows of counts: what is added up is their scaled total variations

	sum   float64 // of Gap, or of variations
	moved bool    // a row is not what it was
}

// Together is how many rows of width values Add looks at as one: a power of two, since few values at a
// time would cost more than the work.
func Together(width int) int {
	n := 1
	for 2*n*width <= 64 {
		n *= 2
	}
	return n
}

// Add adds rows of width values, a, which were b.
func (f *Farness) Add(a, b []float32, width int) {
	var far [batch]float64
	for wide := width * Together(width); !f.Counts && len(a) >= wide; {
		n := min(len(a)/wide, batch)
		gaps(far[:n], a, b, wide)
		for i, d := range far[:n] {
			f.add(d, a[i*wide:(i+1)*wide], b[i*wide:(i+1)*wide], width)
		}
		a, b = a[n*wide:], b[n*wide:]
	}
	if !f.Counts && len(a) > 0 {
		f.add(gap(a, b), a, b, width)
		return
	}
	for ; len(a) > 0; a, b = a[width:], b[width:] {
		u, v := a[:width], b[:width]
		if f.add(variation(u, v), u, v, width); !f.moved {
			f.moved = !slices.Equal(u, v)
		}
	}
}

// add adds the distance of some rows. A row with NaN or Inf in it that is as it was is not far.
func (f *Farness) add(d float64, a, b []float32, width int) {
	switch {
	case d <= math.MaxFloat64:
		f.moved = f.moved || d != 0
		f.sum += d
	case len(a) > width:
		for ; len(a) > 0; a, b = a[width:], b[width:] {
			f.add(gap(a[:width], b[:width]), a[:width], b[:width], width)
		}
	case !identical(a, b):
		f.moved, f.sum = true, math.Inf(1)
	}
}

// Key is the key of the distance, divided by a number, as Distances makes one.
func (f *Farness) Key(by int64) uint32 {
	d := f.sum
	if !f.Counts {
		d = math.Sqrt(d)
	}
	key := min(math.Float32bits(float32(d/float64(by))), Farthest)
	if key == 0 && f.moved {
		return 1
	}
	return key
}

func identical(a, b []float32) bool {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return true
}

// AtLeast sets a bit of dst for each key that is not below least, the first one's the lowest bit
// of the first word, and clears all others. There is a word for each 64 keys, or fewer.
func AtLeast(dst []uint64, keys []uint32, least uint32) { atLeast(dst, keys, least) }

// gapsPlain: dst[i] is the gap of rows i.
func gapsPlain(dst []float64, a, b []float32, width int) {
	for i := range dst {
		dst[i] = gapPlain(a[i*width:(i+1)*width], b[i*width:(i+1)*width])
	}
}

// rootsPlain: dst[i] is the key of √squares[i] / by.
func rootsPlain(dst []uint32, squares []float64, by float64) (most uint32) {
	dst = dst[:len(squares)]
	for i, square := range squares {
		key := min(math.Float32bits(float32(math.Sqrt(square)/by)), Farthest) // NaN is above
		if square != 0 {
			key = max(key, 1)
		}
		dst[i], most = key, max(most, key)
	}
	return most
}

// apartPlain: dst[i] is the key of |a-b| / by. It is what gaps and roots give: the square of a
// float32 and its root are exact in float64, which has digits enough to divide and round twice.
func apartPlain(dst []uint32, a, b []float32, by float32) (most uint32) {
	dst, b = dst[:len(a)], b[:len(a)]
	for i := range a {
		d := a[i] - b[i]
		key := min(math.Float32bits(float32(math.Abs(float64(d)))/by), Farthest)
		if d != 0 {
			key = max(key, 1)
		}
		dst[i], most = key, max(most, key)
	}
	return most
}

// atLeastPlain: see AtLeast.
func atLeastPlain(dst []uint64, keys []uint32, least uint32) {
	clear(dst)
	for i, k := range keys {
		if k >= least {
			dst[i/64] |= 1 << (i % 64)
		}
	}
}

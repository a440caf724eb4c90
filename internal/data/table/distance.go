package table

import (
	"cmp"
	"math"
	"slices"
)

// SquaredDistance returns the squared Euclidean distance between two rows of equal length. It has the same bits on
// every machine.
func SquaredDistance(a, b []float32) float64 { return gap(a, b) }

// MaxDistanceKey is the key of an infinite distance and of one that is NaN.
const MaxDistanceKey = 0x7f800000

// DistanceKeys computes a key for each of len(keys) rows. A higher key means that row i of a is farther from row i of
// b; both have width values per row, concatenated. The key is the bit pattern of the float32 nearest to
// √SquaredDistance/by, because the bit patterns of floats ≥ 0 have the same order as the floats. It is 0 only if
// SquaredDistance is 0, and at most MaxDistanceKey. DistanceKeys returns the highest key. The keys have the same bits
// on every machine.
func DistanceKeys(keys []uint32, a, b []float32, width, by int) (most uint32) {
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

// Metric is a distance between the current row u and the earlier row v.
type Metric func(u, v []float32) float64

// Keys is DistanceKeys with the table's own distance in place of the Euclidean one. A key is 0 only if the rows are
// equal.
func (far Metric) Keys(keys []uint32, a, b []float32, width, by int) (most uint32) {
	for i := range keys {
		u, v := a[i*width:(i+1)*width], b[i*width:(i+1)*width]
		key := min(math.Float32bits(float32(far(u, v)/float64(by))), MaxDistanceKey)
		if key == 0 && differ(u, v) {
			key = 1
		}
		keys[i], most = key, max(most, key)
	}
	return most
}

// TotalVariation returns the scaled total variation of counts: the sum of u, times ½ Σ|uₖ/Σu − vₖ/Σv|. For a row whose
// sum is not positive, every share is 0.
func TotalVariation(u, v []float32) (sum float64) {
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

// total returns the sum of a row's counts, or 0 if that is negative.
func total(u []float32) (sum float64) {
	for _, n := range u {
		sum += float64(n)
	}
	if sum < 0 {
		return 0
	}
	return sum
}

// LabelVariation returns the scaled total variation of label counts, where u and v list one label for each of the same
// items: ½ Σ|n(u,k) − n(v,k)|, with n the number of times that label k occurs in a row. It is the min number of items
// whose label has changed.
func LabelVariation(u, v []float32) float64 {
	now, was := slices.Sorted(slices.Values(u)), slices.Sorted(slices.Values(v))
	same := 0
	for i, j := 0, 0; i < len(now) && j < len(was); {
		switch order := cmp.Compare(now[i], was[j]); {
		case order == 0:
			same, i, j = same+1, i+1, j+1
		case order < 0:
			i++
		default:
			j++
		}
	}
	return float64(len(u) - same)
}

// DistanceSum accumulates the distance of many rows from their earlier values. The zero value is empty and uses
// Euclidean distances. The result has the same bits on every machine if the same rows are added in the same calls, or
// in calls that start at multiples of RowsPerGroup. Unchanged rows may be omitted.
type DistanceSum struct {
	Func Metric // distance to add up; nil: Euclidean

	sum     float64 // sum of SquaredDistance or Func
	changed bool    // some row has changed
}

// RowsPerGroup returns the number of rows of width values that Add treats as one: a power of two, because processing
// a few values at a time would cost more than the computation itself.
func RowsPerGroup(width int) int {
	n := 1
	for 2*n*width <= 64 {
		n *= 2
	}
	return n
}

// Add adds rows a of width values each, whose earlier values are b.
func (f *DistanceSum) Add(a, b []float32, width int) {
	var far [batch]float64
	for wide := width * RowsPerGroup(width); f.Func == nil && len(a) >= wide; {
		n := min(len(a)/wide, batch)
		gaps(far[:n], a, b, wide)
		for i, d := range far[:n] {
			f.add(d, a[i*wide:(i+1)*wide], b[i*wide:(i+1)*wide], width)
		}
		a, b = a[n*wide:], b[n*wide:]
	}
	if f.Func == nil && len(a) > 0 {
		f.add(gap(a, b), a, b, width)
		return
	}
	for ; len(a) > 0; a, b = a[width:], b[width:] {
		u, v := a[:width], b[:width]
		if f.add(f.Func(u, v), u, v, width); !f.changed {
			f.changed = differ(u, v)
		}
	}
}

// add adds the distance of some rows. An unchanged row with NaN or Inf has distance 0.
func (f *DistanceSum) add(d float64, a, b []float32, width int) {
	switch {
	case d <= math.MaxFloat64:
		f.changed = f.changed || d != 0
		f.sum += d
	case len(a) > width:
		for ; len(a) > 0; a, b = a[width:], b[width:] {
			f.add(gap(a[:width], b[:width]), a[:width], b[:width], width)
		}
	case !identical(a, b):
		f.changed, f.sum = true, math.Inf(1)
	}
}

// Key returns the key, as in DistanceKeys, of the distance divided by a number.
func (f *DistanceSum) Key(by int64) uint32 {
	d := f.sum
	if f.Func == nil {
		d = math.Sqrt(d)
	}
	key := min(math.Float32bits(float32(d/float64(by))), MaxDistanceKey)
	if key == 0 && f.changed {
		return 1
	}
	return key
}

// differ reports whether a row has changed. A row with NaN is unchanged if its bits are.
func differ(u, v []float32) bool { return !slices.Equal(u, v) && !identical(u, v) }

func identical(a, b []float32) bool {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return true
}

// MarkAtLeast sets the bits of dst that correspond to keys ≥ least and clears the others. The first key's bit is the
// lowest bit of the first word. dst has one word per 64 keys, the last of which may be incomplete.
func MarkAtLeast(dst []uint64, keys []uint32, least uint32) { atLeast(dst, keys, least) }

// gapsPlain: dst[i] is the SquaredDistance of rows i.
func gapsPlain(dst []float64, a, b []float32, width int) {
	for i := range dst {
		dst[i] = gapPlain(a[i*width:(i+1)*width], b[i*width:(i+1)*width])
	}
}

// rootsPlain: dst[i] is the key of √squares[i] / by.
func rootsPlain(dst []uint32, squares []float64, by float64) (most uint32) {
	dst = dst[:len(squares)]
	for i, square := range squares {
		key := min(math.Float32bits(float32(math.Sqrt(square)/by)), MaxDistanceKey) // NaN is greater
		if square != 0 {
			key = max(key, 1)
		}
		dst[i], most = key, max(most, key)
	}
	return most
}

// apartPlain: dst[i] is the key of |a-b| / by. It equals the result of gaps and roots: the square of a float32 and its
// root are exact in float64, which has enough digits for a division and two roundings.
func apartPlain(dst []uint32, a, b []float32, by float32) (most uint32) {
	dst, b = dst[:len(a)], b[:len(a)]
	for i := range a {
		d := a[i] - b[i]
		key := min(math.Float32bits(float32(math.Abs(float64(d)))/by), MaxDistanceKey)
		if d != 0 {
			key = max(key, 1)
		}
		dst[i], most = key, max(most, key)
	}
	return most
}

// atLeastPlain: see MarkAtLeast.
func atLeastPlain(dst []uint64, keys []uint32, least uint32) {
	clear(dst)
	for i, k := range keys {
		if k >= least {
			dst[i/64] |= 1 << (i % 64)
		}
	}
}

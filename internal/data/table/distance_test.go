package table

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestFarness: the distance of many rows is that of their concatenation, or the sum of the rows' own distances; for one
// row it equals that of DistanceKeys and Keys. Omitting unchanged rows makes no difference, and neither does unchanged
// NaN.
func TestFarness(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, width := range []int{1, 3, 16, 64, 100} {
		for name, own := range map[string]Metric{"Euclidean": nil, "counts": TotalVariation, "labels": LabelVariation} {
			group := RowsPerGroup(width)
			rows := 5*group + r.IntN(group)
			now, was := make([]float32, rows*width), make([]float32, rows*width)
			want := 0.0
			for row := range rows {
				u, v := now[row*width:(row+1)*width], was[row*width:(row+1)*width]
				for i := range u {
					u[i], v[i] = float32(r.IntN(9)), float32(r.IntN(9))
				}
				if row/group%2 == 1 {
					copy(v, u) // may be omitted
				}
				if own != nil {
					want += own(u, v)
				} else {
					want += gapPlain(u, v)
				}
			}
			now[group*width] = float32(math.NaN())
			was[group*width] = now[group*width]
			all, changed := DistanceSum{Func: own}, DistanceSum{Func: own}
			all.Add(now, was, width)
			for row := 0; row < rows; row += 2 * group {
				end := min(row+group, rows) * width
				changed.Add(now[row*width:end], was[row*width:end], width)
			}
			if own == nil {
				want = math.Sqrt(want)
			}
			same := all.sum == changed.sum && all.changed == changed.changed
			if !same || math.Abs(float64(math.Float32frombits(all.Key(7)))-want/7) > 1e-6*want {
				t.Errorf("rows of %d values, %s: %+v, changed rows only %+v; want %v", width, name, all,
					changed, want)
			}
			one, key, of := DistanceSum{Func: own}, make([]uint32, 1), DistanceKeys
			if own != nil {
				of = own.Keys
			}
			of(key, now[:width], was[:width], width, 7)
			if one.Add(now[:width], was[:width], width); one.Key(7) != key[0] {
				t.Errorf("a row of %d values has key %d, want %d", width, one.Key(7), key[0])
			}
			one.Add(now[group*width:][:width], make([]float32, width), width)
			if name != "labels" && one.Key(7) != MaxDistanceKey {
				t.Errorf("a row that became NaN has key %d", one.Key(7))
			}
		}
	}
}

// TestRelabelled: the distance is the min number of items with a new label, in any order.
func TestRelabelled(t *testing.T) {
	for _, c := range []struct {
		u, v []float32
		want float64
	}{
		{[]float32{1, 2, 3}, []float32{3, 1, 2}, 0},
		{[]float32{1, 1, 3}, []float32{3, 1, 3}, 1},
		{[]float32{0, 0, 0}, []float32{3, 1, 2}, 3},
		{[]float32{5, 5, 2, 0}, []float32{5, 7, 5, 7}, 2},
	} {
		if far := LabelVariation(c.u, c.v); far != c.want || LabelVariation(c.v, c.u) != c.want {
			t.Errorf("%v and %v are %v apart, want %v", c.u, c.v, far, c.want)
		}
		key := []uint32{7}
		Metric(LabelVariation).Keys(key, c.u, c.v, len(c.u), 1)
		if key[0] == 0 {
			t.Errorf("%v has the key of %v", c.u, c.v)
		}
	}
	if key := []uint32{
		7,
	}; Metric(LabelVariation).Keys(key, []float32{2, 1}, []float32{2, 1}, 2, 1) != 0 ||
		key[0] != 0 {
		t.Error("an unchanged row counts as changed")
	}
}

// TestFarnessMoved: changed rows never have the same key as unchanged ones, however small the change.
func TestFarnessMoved(t *testing.T) {
	for _, f := range []DistanceSum{{}, {Func: TotalVariation}, {Func: LabelVariation}} {
		if f.Add([]float32{1, 2}, []float32{1, 2}, 1); f.Key(1) != 0 {
			t.Errorf("%+v has key %d", f, f.Key(1))
		}
		f.Add([]float32{2, 4}, []float32{1, 2}, 2) // the same distribution
		if f.Key(math.MaxInt64) == 0 {
			t.Errorf("%+v divided by very many bytes has key 0", f)
		}
	}
}

package table

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
)

func spec(dim int, init perdure.Init) perdure.TableSpec {
	return perdure.TableSpec{Name: "t", Rows: 100, Dim: dim, Rule: perdure.Rule{Kind: perdure.RuleAdd}, Init: init}
}

// values returns all values of a dense part.
func values(p *Part) []float32 {
	v, _ := p.Run(p.First, p.Rows)
	return v
}

// TestInitialValues: a seed's initial values never change.
func TestInitialValues(t *testing.T) {
	for _, tc := range []struct {
		init perdure.Init
		seed uint64
		id   perdure.TableID
		row  perdure.RowID
		want []uint32 // bits
	}{
		{
			perdure.Init{Kind: perdure.InitZeros, Scale: 1},
			1, 0, 0,
			[]uint32{0x00000000, 0x00000000, 0x00000000, 0x00000000},
		},
		{
			perdure.Init{Kind: perdure.InitUniform, Scale: 1},
			0, 0, 0,
			[]uint32{0xbea5d594, 0xbeec691d, 0xbee9ea71, 0xbd227377},
		},
		{
			perdure.Init{Kind: perdure.InitUniform, Scale: 1},
			1, 0, 0,
			[]uint32{0xbe357d3c, 0xbf27631c, 0xbf4ac666, 0xbede38aa},
		},
		{
			perdure.Init{Kind: perdure.InitUniform, Scale: 1},
			42, 3, 1000000,
			[]uint32{0xbf5bac92, 0xbe9d52b0, 0x3f2b7dd7, 0x3eb33019},
		},
		{
			perdure.Init{Kind: perdure.InitUniform, Scale: 0.05},
			42, 3, 1000000,
			[]uint32{0xbd2fbd42, 0xbc7bb780, 0x3d093179, 0x3c8f59ae},
		},
		{
			perdure.Init{Kind: perdure.InitNormal, Scale: 1},
			0, 0, 0,
			[]uint32{0xbe34d720, 0xbfcd12b2, 0xbf6de8d1, 0x3f14e7a7},
		},
		{
			perdure.Init{Kind: perdure.InitNormal, Scale: 1},
			1, 0, 0,
			[]uint32{0x3f1e9389, 0xbee03013, 0x3e7edc7a, 0x3f6e3ed9},
		},
		{
			perdure.Init{Kind: perdure.InitNormal, Scale: 1},
			42, 3, 1000000,
			[]uint32{0xbfa79565, 0xbe8ba325, 0x3f657c81, 0xbf5c695d},
		},
		{
			perdure.Init{Kind: perdure.InitNormal, Scale: 0.01},
			42, 3, 1000000,
			[]uint32{0xbc5681c9, 0xbb32bc58, 0x3c12df0b, 0xbc0d103b},
		},
	} {
		p := New(spec(4, tc.init), tc.id, tc.seed, tc.row, 1)
		var got []uint32
		values, _ := p.Run(tc.row, 1)
		for _, v := range values {
			got = append(got, math.Float32bits(v))
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%+v, seed %d, table %d, row %d: %#08x %v, want %#08x", tc.init, tc.seed, tc.id, tc.row, got,
				values, tc.want)
		}
	}
}

// TestInitialValuesDoNotDependOnShards: a row has the same initial values on any shard.
func TestInitialValuesDoNotDependOnShards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := spec(rapid.IntRange(1, 9).Draw(t, "dim"), perdure.Init{
			Kind: rapid.SampledFrom([]perdure.InitKind{
				"", perdure.InitZeros, perdure.InitUniform,
				perdure.InitNormal,
			}).Draw(t, "kind"),
			Scale: 0.25,
		})
		seed, id := rapid.Uint64().Draw(t, "seed"), perdure.TableID(rapid.IntRange(0, 5).Draw(t, "table"))
		whole := New(s, id, seed, 0, 100)
		first := rapid.IntRange(0, 99).Draw(t, "first")
		part := New(s, id, seed, perdure.RowID(first), rapid.IntRange(1, 100-first).Draw(t, "rows"))
		s.Sparse, s.Rows = true, 0
		sparse := New(s, id, seed, 0, 0)
		for r := part.First; r < part.First+perdure.RowID(part.Rows); r++ {
			want, err1 := whole.Run(r, 1)
			got, err2 := part.Run(r, 1)
			if err1 != nil || err2 != nil || !sameBits(got, want) {
				t.Fatalf("row %d: %v (%v), want %v (%v)", r, got, err2, want, err1)
			}
			read := make([]float32, s.Dim)
			if err := sparse.ReadRows(read, 0, []perdure.RowID{r}, 1); err != nil || !sameBits(read, want) {
				t.Fatalf("row %d of a sparse table: %v (%v), want %v", r, read, err, want)
			}
			if err := sparse.ApplyRows(0, []perdure.RowID{r}, 1, make([]float32, s.Dim), 0); err != nil ||
				sparse.Stored() != int(r-part.First)+1 {
				t.Fatalf("row %d of a sparse table: %v, %d stored", r, err, sparse.Stored())
			}
			if err := sparse.ReadRows(read, 0, []perdure.RowID{r}, 1); err != nil || !sameBits(read, want) {
				t.Fatalf("stored row %d of a sparse table: %v (%v), want %v", r, read, err, want)
			}
		}
	})
}

// TestDistributions: the distributions match their names, and rows, tables and seeds differ.
func TestDistributions(t *testing.T) {
	const n, scale = 100_000, 0.5
	for _, tc := range []struct {
		kind      perdure.InitKind
		deviation float64
		most      float64
	}{
		{perdure.InitUniform, scale / math.Sqrt(3), scale},
		{perdure.InitNormal, scale, 6 * scale},
	} {
		s := spec(100, perdure.Init{Kind: tc.kind, Scale: scale})
		sum, squares, most := 0.0, 0.0, 0.0
		p := New(s, 0, 1, 0, n/100)
		for _, v := range values(p) {
			sum, squares, most = sum+float64(v), squares+float64(v)*float64(v), max(most, math.Abs(float64(v)))
		}
		if mean, dev := sum/n, math.Sqrt(squares/n); math.Abs(mean) > 0.01 || math.Abs(dev-tc.deviation) > 0.01 ||
			most > tc.most || most < tc.most/2 {
			t.Errorf("%s: mean %.4f, deviation %.4f (want %.4f), largest %.4f", tc.kind, mean, dev, tc.deviation, most)
		}
		row, _ := p.Run(0, 1)
		next, _ := p.Run(1, 1)
		for what, other := range map[string][]float32{
			"row": next, "table": values(New(s, 1, 1, 0, 1)), "seed": values(New(s, 0, 2, 0, 1)),
		} {
			if slices.Equal(row, other) {
				t.Errorf("%s: same values for another %s", tc.kind, what)
			}
		}
	}
}

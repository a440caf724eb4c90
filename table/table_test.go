package table

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
)

// sameBits reports whether two vectors are equal bit for bit, where one NaN is as
// good as another: which of two NaNs an addition keeps depends on the machine.
func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool {
		return math.Float32bits(x) == math.Float32bits(y) || x != x && y != y
	})
}

// floats draws values of every kind: ordinary ones, the edges, and any bits.
func floats() *rapid.Generator[float32] {
	edges := []float32{
		0, float32(math.Copysign(0, -1)), 1, -1, math.MaxFloat32, -math.MaxFloat32,
		math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32, 0x1p-126, // the smallest that is not subnormal
		float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 1 << 24, 1<<24 - 1,
	}
	return rapid.OneOf(
		rapid.Float32Range(-10, 10),
		rapid.SampledFrom(edges),
		rapid.Map(rapid.Uint32(), math.Float32frombits),
	)
}

// naiveApply is the rule as one would write it down: row += delta, or
// row -= rate·delta, each operation rounded on its own.
func naiveApply(rule perdure.Rule, rows, delta []float32, clock perdure.Clock) []float32 {
	out := slices.Clone(rows)
	rate := rule.RateAt(clock)
	for i := range out {
		if rule.Kind == perdure.RuleAdd {
			sum := out[i] + delta[i]
			out[i] = sum
			continue
		}
		product := float32(rate * delta[i])
		out[i] -= product
	}
	return out
}

func rules() *rapid.Generator[perdure.Rule] {
	return rapid.SampledFrom([]perdure.Rule{
		{Kind: perdure.RuleAdd},
		{Kind: perdure.RuleSGD, Rate: 0.1},
		{Kind: perdure.RuleSGD, Rate: 3, Schedule: perdure.ScheduleSqrt},
		{Kind: perdure.RuleSGD, Rate: 1e30},
		{Kind: perdure.RuleSGD, Rate: 1e-42},                                                           // subnormal
		{Kind: perdure.RuleSGD, Rate: 1, Schedule: perdure.ScheduleStep, Every: 1, Factor: 1e-50},      // 1 at clock 0, then 0
		{Kind: perdure.RuleSGD, Rate: 0.5, Schedule: perdure.ScheduleStep, Every: 3, Factor: 0.333333}, // awkward
	})
}

// guarded returns a copy of v that begins at an address of its own alignment, and
// what lies around it.
func guarded(v []float32, offset int) (mine, all []float32) {
	all = make([]float32, offset+len(v)+4)
	for i := range all {
		all[i] = 12345
	}
	mine = all[offset : offset+len(v) : offset+len(v)]
	copy(mine, v)
	return mine, all
}

func spec(dim int, init perdure.Init) perdure.TableSpec {
	return perdure.TableSpec{Name: "t", Rows: 100, Dim: dim, Rule: perdure.Rule{Kind: perdure.RuleAdd}, Init: init}
}

// The initial values are part of what a seed means: they never change.
func TestInitialValues(t *testing.T) {
	for _, tc := range []struct {
		init perdure.Init
		seed uint64
		id   perdure.TableID
		row  perdure.RowID
		want []uint32 // bits
	}{
		{perdure.Init{Kind: perdure.InitZeros, Scale: 1}, 1, 0, 0, []uint32{0x00000000, 0x00000000, 0x00000000, 0x00000000}},
		{perdure.Init{Kind: perdure.InitUniform, Scale: 1}, 0, 0, 0, []uint32{0xbea5d594, 0xbeec691d, 0xbee9ea71, 0xbd227377}},
		{perdure.Init{Kind: perdure.InitUniform, Scale: 1}, 1, 0, 0, []uint32{0xbe357d3c, 0xbf27631c, 0xbf4ac666, 0xbede38aa}},
		{perdure.Init{Kind: perdure.InitUniform, Scale: 1}, 42, 3, 1000000, []uint32{0xbf5bac92, 0xbe9d52b0, 0x3f2b7dd7, 0x3eb33019}},
		{perdure.Init{Kind: perdure.InitUniform, Scale: 0.05}, 42, 3, 1000000, []uint32{0xbd2fbd42, 0xbc7bb780, 0x3d093179, 0x3c8f59ae}},
		{perdure.Init{Kind: perdure.InitNormal, Scale: 1}, 0, 0, 0, []uint32{0xbe34d720, 0xbfcd12b2, 0xbf6de8d1, 0x3f14e7a7}},
		{perdure.Init{Kind: perdure.InitNormal, Scale: 1}, 1, 0, 0, []uint32{0x3f1e9389, 0xbee03013, 0x3e7edc7a, 0x3f6e3ed9}},
		{perdure.Init{Kind: perdure.InitNormal, Scale: 1}, 42, 3, 1000000, []uint32{0xbfa79565, 0xbe8ba325, 0x3f657c81, 0xbf5c695d}},
		{perdure.Init{Kind: perdure.InitNormal, Scale: 0.01}, 42, 3, 1000000, []uint32{0xbc5681c9, 0xbb32bc58, 0x3c12df0b, 0xbc0d103b}},
	} {
		p := New(spec(4, tc.init), tc.id, tc.seed, tc.row, 1)
		var got []uint32
		for _, v := range p.Values {
			got = append(got, math.Float32bits(v))
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%+v, seed %d, table %d, row %d: %#08x %v, want %#08x", tc.init, tc.seed, tc.id, tc.row, got, p.Values, tc.want)
		}
	}
}

// A row begins with the same values whatever shard it is on.
func TestInitialValuesDoNotDependOnShards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := spec(rapid.IntRange(1, 9).Draw(t, "dim"), perdure.Init{
			Kind:  rapid.SampledFrom([]perdure.InitKind{"", perdure.InitZeros, perdure.InitUniform, perdure.InitNormal}).Draw(t, "kind"),
			Scale: 0.25,
		})
		seed, id := rapid.Uint64().Draw(t, "seed"), perdure.TableID(rapid.IntRange(0, 5).Draw(t, "table"))
		whole := New(s, id, seed, 0, 100)
		first := rapid.IntRange(0, 99).Draw(t, "first")
		part := New(s, id, seed, perdure.RowID(first), rapid.IntRange(1, 100-first).Draw(t, "rows"))
		for r := part.First; r < part.First+perdure.RowID(part.Rows); r++ {
			want, err1 := whole.Row(r)
			got, err2 := part.Row(r)
			if err1 != nil || err2 != nil || !sameBits(got, want) {
				t.Fatalf("row %d: %v (%v), want %v (%v)", r, got, err2, want, err1)
			}
		}
	})
}

// The distributions are what they are called, and rows, tables and seeds differ.
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
		for _, v := range p.Values {
			sum, squares, most = sum+float64(v), squares+float64(v)*float64(v), max(most, math.Abs(float64(v)))
		}
		if mean, dev := sum/n, math.Sqrt(squares/n); math.Abs(mean) > 0.01 || math.Abs(dev-tc.deviation) > 0.01 || most > tc.most || most < tc.most/2 {
			t.Errorf("%s: mean %.4f, deviation %.4f (want %.4f), largest %.4f", tc.kind, mean, dev, tc.deviation, most)
		}
		row, _ := p.Row(0)
		next, _ := p.Row(1)
		for what, other := range map[string][]float32{
			"row": next, "table": New(s, 1, 1, 0, 1).Values, "seed": New(s, 0, 2, 0, 1).Values,
		} {
			if slices.Equal(row, other) {
				t.Errorf("%s: the same values in another %s", tc.kind, what)
			}
		}
	}
}

// What a peer's message may ask for, and what not: nothing of a refused one is
// applied.
func TestRefusals(t *testing.T) {
	const first, rows, dim = 10, 5, 3
	huge := math.MaxInt / dim // times dim does not overflow; plus one does
	for _, tc := range []struct {
		what   string
		first  perdure.RowID
		ids    []perdure.RowID
		count  int
		values int
		want   error
	}{
		{"all rows", 10, nil, 5, 15, nil},
		{"the last row", 14, nil, 1, 3, nil},
		{"no rows", 12, nil, 0, 0, nil},
		{"ids, one of them twice", 0, []perdure.RowID{14, 10, 14}, 3, 9, nil},
		{"no ids", 0, []perdure.RowID{}, 0, 0, nil},
		{"before the shard", 9, nil, 1, 3, ErrRow},
		{"after the shard", 15, nil, 1, 3, ErrRow},
		{"beyond its end", 14, nil, 2, 6, ErrRow},
		{"too many", 10, nil, 6, 18, ErrRow},
		{"first + count overflows", math.MaxUint64, nil, 2, 6, ErrRow},
		{"first + count overflows to a row of the shard", math.MaxUint64 - 3, nil, 15, 45, ErrRow},
		{"huge count", 10, nil, huge, 3, ErrRow},
		{"count times dim overflows", 10, nil, huge + 1, 3, ErrRow},
		{"largest count", 10, nil, math.MaxInt, math.MaxInt, ErrRow},
		{"negative count", 10, nil, -1, -3, ErrRow},
		{"smallest count", 10, nil, math.MinInt, 0, ErrRow},
		{"too few values", 10, nil, 2, 5, ErrShape},
		{"too many values", 10, nil, 2, 7, ErrShape},
		{"no values", 10, nil, 2, 0, ErrShape},
		{"ids, the last not of the shard", 0, []perdure.RowID{10, 11, 15}, 3, 9, ErrRow},
		{"ids, one huge", 0, []perdure.RowID{10, math.MaxUint64}, 2, 6, ErrRow},
		{"ids, too few values", 0, []perdure.RowID{10, 11}, 2, 3, ErrShape},
		{"ids, fewer announced", 0, []perdure.RowID{10, 11}, 1, 3, ErrShape},
		{"ids, more announced", 0, []perdure.RowID{10, 11}, 3, 9, ErrShape},
		{"ids, huge count", 0, []perdure.RowID{10}, huge + 1, 3, ErrShape},
	} {
		p := New(spec(dim, perdure.Init{Kind: perdure.InitUniform, Scale: 1}), 0, 1, first, rows)
		before := slices.Clone(p.Values)
		if err := p.CheckRows(tc.first, tc.ids, tc.count, tc.values); !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
			t.Errorf("%s: checked: %v, want %v", tc.what, err, tc.want)
		}
		if tc.values < 0 || tc.values > 1000 {
			continue
		}
		delta := slices.Repeat([]float32{1}, tc.values)
		if err := p.ApplyRows(tc.first, tc.ids, tc.count, delta, 0); !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
			t.Errorf("%s: applied: %v, want %v", tc.what, err, tc.want)
		}
		changed := !slices.Equal(p.Values, before)
		if changed != (tc.want == nil && tc.values > 0) {
			t.Errorf("%s: changed %v", tc.what, changed)
		}
	}
}

// ApplyRows does to each row what Apply does, in order, and nothing to others.
func TestApplyRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dim, first, rows := rapid.IntRange(1, 8).Draw(t, "dim"), perdure.RowID(rapid.IntRange(0, 5).Draw(t, "first")), rapid.IntRange(1, 6).Draw(t, "rows")
		s := spec(dim, perdure.Init{Kind: perdure.InitUniform, Scale: 1})
		s.Rule = rules().Draw(t, "rule")
		p := New(s, 0, 1, first, rows)
		want := slices.Clone(p.Values)

		var ids []perdure.RowID // that are changed, in order
		from, count := perdure.RowID(rapid.IntRange(0, 12).Draw(t, "from")), rapid.IntRange(0, 7).Draw(t, "count")
		named := rapid.Bool().Draw(t, "named")
		for i := range count {
			id := from + perdure.RowID(i)
			if named {
				id = perdure.RowID(rapid.IntRange(0, 12).Draw(t, "id"))
			}
			ids = append(ids, id)
		}
		delta := rapid.SliceOfN(floats(), count*dim, count*dim).Draw(t, "delta")
		here := func(id perdure.RowID) bool { return id >= first && id < first+perdure.RowID(rows) }
		fits := !slices.ContainsFunc(ids, func(id perdure.RowID) bool { return !here(id) })
		if count == 0 && !named {
			fits = from >= first && from <= first+perdure.RowID(rows)
		}
		if fits {
			for i, id := range ids {
				row := want[int(id-first)*dim:][:dim]
				copy(row, naiveApply(s.Rule, row, delta[i*dim:][:dim], 3))
			}
		}
		given := ids
		if !named {
			given = nil
		} else if given == nil {
			given = []perdure.RowID{}
		}
		err := p.ApplyRows(from, given, count, delta, 3)
		if (err == nil) != fits {
			t.Fatalf("rows %v of %d to %d: %v", ids, first, int(first)+rows-1, err)
		}
		if !sameBits(p.Values, want) {
			t.Fatalf("%v\nwant %v", p.Values, want)
		}
	})
}

func ExamplePart() {
	p := New(perdure.TableSpec{Name: "weights", Rows: 100, Dim: 2, Rule: perdure.Rule{Kind: perdure.RuleSGD, Rate: 0.5}}, 0, 1, 50, 50)
	fmt.Println(p.ApplyRows(98, nil, 2, []float32{1, 2, 3, 4}, 0))
	fmt.Println(p.Run(98, 2))
	fmt.Println(p.ApplyRows(98, nil, 3, make([]float32, 6), 0))
	// Output:
	// <nil>
	// [-0.5 -1 -1.5 -2] <nil>
	// table: row not on this shard: rows 98 to 100 of table weights; the shard holds 50 to 99
}

package table

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
)

// partRules are the rules with which parts are tested.
var partRules = []perdure.Rule{
	{Kind: perdure.RuleAdd},
	{Kind: perdure.RuleSet},
	{Kind: perdure.RuleSGD, Rate: 0.1, Schedule: perdure.ScheduleSqrt},
	{Kind: perdure.RuleMomentum, Rate: 0.1, Momentum: 0.9},
	{Kind: perdure.RuleNesterov, Rate: 0.1, Momentum: 0.9, ClipNorm: 2},
	{Kind: perdure.RuleAdagrad, Rate: 0.1, Epsilon: 1e-10, Decay: 0.01},
	{Kind: perdure.RuleRowwiseAdagrad, Rate: 0.1, Epsilon: 1e-10},
	perdure.Rule{Kind: perdure.RuleAdam, Rate: 0.1, Decay: 0.01, ClipValue: 1}.WithDefaults(),
	perdure.Rule{Kind: perdure.RuleFTRL, Rate: 0.1, L1: 0.1, L2: 0.1}.WithDefaults(),
}

// naivePart is a naive part that stores each row separately.
type naivePart struct {
	spec   perdure.TableSpec
	id     perdure.TableID
	seed   uint64
	update *updater
	rows   map[perdure.RowID]*naiveRow
	order  []perdure.RowID // in storage order
}

type naiveRow struct {
	planes
	touched perdure.Clock
}

func (p *naivePart) initial(id perdure.RowID) []float32 {
	row := make([]float32, p.spec.Dim)
	fillInitial(row, p.spec.Init, p.seed, p.id, id)
	return row
}

func (p *naivePart) store(id perdure.RowID) *naiveRow {
	if r := p.rows[id]; r != nil {
		return r
	}
	r := &naiveRow{planes: planes{values: p.initial(id)}}
	full, perRow := StateShape(p.spec.Rule)
	for i := range full {
		r.state[i] = make([]float32, p.spec.Dim)
	}
	if perRow {
		r.row = make([]float32, 1)
	}
	p.rows[id] = r
	p.order = append(p.order, id)
	return r
}

func (p *naivePart) apply(ids []perdure.RowID, delta []float32, clock perdure.Clock) {
	for i, id := range ids {
		r := p.store(id)
		p.update.apply(r.planes, delta[i*p.spec.Dim:(i+1)*p.spec.Dim], clock)
		r.touched = max(r.touched, clock)
	}
}

// evict removes the rows that were not updated since oldest. From the end on, the last row fills each hole.
func (p *naivePart) evict(oldest perdure.Clock) (n int) {
	for i := len(p.order) - 1; i >= 0; i-- {
		if id := p.order[i]; p.rows[id].touched < oldest {
			last := len(p.order) - 1
			p.order[i] = p.order[last]
			p.order = p.order[:last]
			delete(p.rows, id)
			n++
		}
	}
	return n
}

// sameImage compares a part's image with the expected one.
func (p *naivePart) sameImage(part *Part) error {
	m := part.Image()
	if m.Rows != len(p.order) || part.Stored() != len(p.order) {
		return fmt.Errorf("%d rows, %d stored, want %d", m.Rows, part.Stored(), len(p.order))
	}
	var want Image
	want.Planes = make([][][]float32, len(m.Planes))
	var touched []uint32
	lists := make([][]float32, len(m.Planes))
	for _, id := range p.order {
		r := p.rows[id]
		touched = append(touched, uint32(r.touched))
		all := [][]float32{r.values}
		for _, s := range append(r.state[:], r.row) {
			if s != nil {
				all = append(all, s)
			}
		}
		if len(all) != len(lists) {
			return fmt.Errorf("%d planes, want %d", len(lists), len(all))
		}
		for i := range all {
			lists[i] = append(lists[i], all[i]...)
		}
	}
	for i := range lists {
		if got := slices.Concat(m.Planes[i]...); !sameBits(got, lists[i]) {
			return fmt.Errorf("plane %d is %v, want %v", i, got, lists[i])
		}
	}
	switch {
	case p.spec.Sparse && !slices.Equal(slices.Concat(m.IDs...), p.order):
		return fmt.Errorf("ids %v, want %v", m.IDs, p.order)
	case !p.spec.Sparse && m.IDs != nil:
		return errors.New("a dense table's image has ids")
	case p.spec.Evict > 0 && !slices.Equal(slices.Concat(m.Touched...), touched):
		return fmt.Errorf("touched at %v, want %v", m.Touched, touched)
	case p.spec.Evict == 0 && m.Touched != nil:
		return errors.New("the image of a table without eviction has clocks")
	}
	return nil
}

// restored returns a part restored from a copy of another's image.
func restored(p *Part, pieceBytes int) (*Part, error) {
	from := p.Image()
	q := newUninitialized(p.Spec, p.id, p.seed, p.First, from.Rows, pieceBytes)
	to := q.Image()
	if err := copyPieces(to.IDs, from.IDs); err != nil {
		return nil, err
	}
	if err := copyPieces(to.Touched, from.Touched); err != nil {
		return nil, err
	}
	if len(to.Planes) != len(from.Planes) {
		return nil, fmt.Errorf("%d planes for %d", len(to.Planes), len(from.Planes))
	}
	for i := range to.Planes {
		if err := copyPieces(to.Planes[i], from.Planes[i]); err != nil {
			return nil, err
		}
	}
	return q, q.FinishRestore()
}

func copyPieces[T any](to, from [][]T) error {
	if len(to) != len(from) {
		return fmt.Errorf("%d pieces for %d", len(to), len(from))
	}
	for i := range to {
		if copy(to[i], from[i]) != len(from[i]) || len(to[i]) != len(from[i]) {
			return fmt.Errorf("piece %d has %d values for %d", i, len(to[i]), len(from[i]))
		}
	}
	return nil
}

// partCase is a part, its expected content, and the generators for it.
type partCase struct {
	part       *Part
	want       *naivePart
	pieceBytes int
	clock      *rapid.Generator[perdure.Clock] // of updates, at or after MinClock
	min        perdure.Clock
	ids        *rapid.Generator[perdure.RowID]
}

func drawPart(t *rapid.T, sparse, evict bool) *partCase {
	s := perdure.TableSpec{
		Name: "t", Rows: 100, Dim: rapid.IntRange(1, 9).Draw(t, "dim"),
		Rule: rapid.SampledFrom(partRules).Draw(t, "rule"),
		Init: perdure.Init{Kind: rapid.SampledFrom([]perdure.InitKind{
			perdure.InitZeros, perdure.InitUniform,
			perdure.InitNormal,
		}).Draw(t, "init"), Scale: 1},
	}
	c := &partCase{
		pieceBytes: rapid.SampledFrom([]int{1, 64, 300, 1 << 20}).Draw(t, "bytes of a piece"),
		clock:      rapid.Map(rapid.Int64Range(0, 12), func(v int64) perdure.Clock { return perdure.Clock(v) }),
	}
	first, rows := perdure.RowID(rapid.IntRange(0, 5).Draw(t, "first")), rapid.IntRange(0, 40).Draw(t, "rows")
	seed := rapid.Uint64().Draw(t, "seed")
	c.want = &naivePart{id: 3, seed: seed, update: newUpdater(s.Rule, s.Dim), rows: map[perdure.RowID]*naiveRow{}}
	s.Sparse = sparse
	if sparse {
		s.Rows = 0
		if evict {
			s.Evict = perdure.Clock(rapid.SampledFrom([]int{1, 3, 4, 11}).Draw(t, "evict"))
		}
		c.ids = rapid.OneOf(
			rapid.Map(rapid.Uint64Range(0, 50), func(v uint64) perdure.RowID { return perdure.RowID(v) }),
			rapid.Map(rapid.Uint64Range(0, 50), func(v uint64) perdure.RowID { return perdure.RowID(v << 58) }),
			rapid.Map(rapid.Uint64(), func(v uint64) perdure.RowID { return perdure.RowID(v) }))
		c.part = newUninitialized(s, 3, seed, 7, 0, c.pieceBytes)
	} else {
		c.ids = rapid.Map(rapid.Uint64Range(0, 45), func(v uint64) perdure.RowID { return perdure.RowID(v) })
		c.part = New(s, 3, seed, first, rows)
	}
	c.want.spec = s
	if !s.Sparse {
		for i := range rows {
			c.want.store(first + perdure.RowID(i))
		}
	}
	return c
}

// drawRows draws rows as a message identifies them, and expands them to ids.
func (c *partCase) drawRows(t *rapid.T) (first perdure.RowID, ids, all []perdure.RowID, fits bool) {
	fits = true
	if rapid.Bool().Draw(t, "named") {
		ids = rapid.SliceOfN(c.ids, 0, 200).Draw(t, "ids")
		if !c.want.spec.Sparse && len(ids) > 0 && len(c.want.order) > 0 &&
			rapid.IntRange(0, 4).Draw(t, "0: as drawn") > 0 {
			for i := range ids {
				ids[i] = c.want.order[int(ids[i])%len(c.want.order)]
			}
		}
		if ids == nil {
			ids = []perdure.RowID{}
		}
		all = ids
	} else {
		first = perdure.RowID(rapid.IntRange(0, 50).Draw(t, "from"))
		for i := range rapid.IntRange(0, 30).Draw(t, "count") {
			all = append(all, first+perdure.RowID(i))
		}
		if c.want.spec.Sparse {
			return first, nil, all, len(all) == 0
		}
		end := c.part.First + perdure.RowID(c.part.Rows)
		fits = first >= c.part.First && first <= end
	}
	if !c.want.spec.Sparse {
		fits = fits && !slices.ContainsFunc(all, func(id perdure.RowID) bool { return c.want.rows[id] == nil })
	}
	return first, ids, all, fits
}

func (c *partCase) apply(t *rapid.T) {
	first, ids, all, fits := c.drawRows(t)
	values := len(all) * c.want.spec.Dim
	if rapid.IntRange(0, 9).Draw(t, "0: of a wrong shape") == 0 {
		values, fits = values+1, false
	}
	clock := c.min + c.clock.Draw(t, "clock")
	delta := rapid.SliceOfN(rapid.Float32Range(-10, 10), values, values).Draw(t, "delta")
	err := c.part.ApplyRows(first, ids, len(all), delta, clock)
	if fits {
		c.want.apply(all, delta, clock)
	}
	if (err == nil) != fits || err != nil && !errors.Is(err, ErrRow) && !errors.Is(err, ErrShape) {
		t.Fatalf("update of rows %v: %v", all, err)
	}
}

func (c *partCase) read(t *rapid.T) {
	first, ids, all, fits := c.drawRows(t)
	got, want := make([]float32, len(all)*c.want.spec.Dim), []float32(nil)
	err := c.part.ReadRows(got, first, ids, len(all))
	if (err == nil) != fits {
		t.Fatalf("read of rows %v: %v", all, err)
	}
	if !fits {
		return
	}
	for _, id := range all {
		if r := c.want.rows[id]; r != nil {
			want = append(want, r.values...)
		} else {
			want = append(want, c.want.initial(id)...)
		}
	}
	if !sameBits(got, want) {
		t.Fatalf("rows %v are %v, want %v", all, got, want)
	}
}

func (c *partCase) evict(t *rapid.T) {
	c.min += perdure.Clock(rapid.IntRange(0, 12).Draw(t, "clocks on"))
	want := 0
	if k := c.want.spec.Evict; k > 0 {
		step := max(1, k/4)
		want = c.want.evict(c.min/step*step - k)
	}
	if got := c.part.Evict(c.min, nil); got != want {
		t.Fatalf("evicted %d rows, want %d", got, want)
	}
	for id, r := range c.want.rows {
		if k := c.want.spec.Evict; k > 0 && r.touched+k+max(1, k/4) <= c.min {
			t.Fatalf("row %d, last updated at clock %d, is stored at MinClock %d", id, r.touched, c.min)
		}
	}
}

// TestPartLikeRows: a part behaves like separate rows, with rejected updates, reads, evictions and restores in between.
func TestPartLikeRows(t *testing.T) {
	t.Run("dense", func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { drawPart(t, false, false).run(t) }) })
	t.Run("sparse", func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { drawPart(t, true, false).run(t) }) })
	t.Run("evicting", func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { drawPart(t, true, true).run(t) }) })
}

func (c *partCase) run(t *rapid.T) {
	for range rapid.IntRange(1, 15).Draw(t, "steps") {
		switch rapid.IntRange(0, 5).Draw(t, "step") {
		case 0:
			q, err := restored(c.part, c.pieceBytes)
			if err != nil {
				t.Fatal(err)
			}
			c.part = q
		case 1:
			c.evict(t)
		case 2:
			c.read(t)
		default:
			c.apply(t)
		}
		if err := c.want.sameImage(c.part); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLargePart: a sparse part with many rows and pieces of the usual size releases memory when most rows are evicted,
// and continues to work.
func TestLargePart(t *testing.T) {
	const n = 280_000
	s := perdure.TableSpec{Name: "t", Sparse: true, Dim: 3, Evict: 8, Rule: perdure.Rule{Kind: perdure.RuleAdd}}
	p := New(s, 0, 1, 0, 0)
	ids := make([]perdure.RowID, n)
	for i := range ids {
		ids[i] = perdure.RowID(i) << 20
	}
	delta := make([]float32, 3*n)
	for i := range delta {
		delta[i] = float32(i)
	}
	check := func(p *Part, factor float32) {
		got := make([]float32, 3*n)
		if err := p.ReadRows(got, 0, ids, n); err != nil {
			t.Fatal(err)
		}
		for i, v := range got {
			if want := factor * delta[i]; v != want && (p.Stored() == n || i < 3*p.Stored()) {
				t.Fatalf("value %d of %d rows is %v, want %v", i, p.Stored(), v, want)
			}
		}
	}
	for clock := range perdure.Clock(2) {
		if err := p.ApplyRows(0, ids, n, delta, clock); err != nil {
			t.Fatal(err)
		}
	}
	check(p, 2)
	const kept = 1000
	if err := p.ApplyRows(0, ids[:kept], kept, delta[:3*kept], 5); err != nil {
		t.Fatal(err)
	}
	if got := p.Evict(9, nil); got != 0 {
		t.Fatalf("evicted %d rows at MinClock 9", got)
	}
	if got := p.Evict(10, nil); got != n-kept || p.Stored() != kept {
		t.Fatalf("evicted %d rows at MinClock 10, %d remain", got, p.Stored())
	}
	check(p, 3)
	if pieces := len(p.planes[0].pieces) + len(p.touched.pieces) + len(p.index.ids.pieces); pieces > 6 {
		t.Errorf("%d pieces for %d rows", pieces, p.Stored())
	}
	q, err := restored(p, pieceBytes)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := q.ApplyRows(0, ids, n, delta, 11); err != nil {
			t.Fatal(err)
		}
	}
	if got := q.planes[0].rows(5, 1)[0]; got != 6*15 {
		t.Errorf("row 5 starts with %v, want 90", got)
	}
	if got := q.planes[0].rows(n-1, 1)[1]; got != 3*delta[3*n-2] {
		t.Errorf("the last row is %v, want %v", got, 3*delta[3*n-2])
	}
}

// TestPlaceUsedAgain: a row stored at the position of an evicted row inherits nothing from it.
func TestPlaceUsedAgain(t *testing.T) {
	for _, rule := range partRules {
		s := perdure.TableSpec{Name: "t", Sparse: true, Dim: 3, Evict: 1, Rule: rule}
		p := New(s, 0, 1, 0, 0)
		if err := p.ApplyRows(0, []perdure.RowID{7}, 1, []float32{1, 2, 3}, 5); err != nil {
			t.Fatal(err)
		}
		if got := p.Evict(7, nil); got != 1 || p.Stored() != 0 {
			t.Fatalf("evicted %d rows, %d remain", got, p.Stored())
		}
		q := New(s, 0, 1, 0, 0)
		for _, p := range []*Part{p, q} {
			if err := p.ApplyRows(0, []perdure.RowID{8}, 1, []float32{1, 2, 3}, 2); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := p.Image(), q.Image(); !reflect.DeepEqual(got, want) {
			t.Errorf("rule %s: %v, want %v", rule.Kind, got, want)
		}
	}
}

// TestRestoredRefuses: an image with a duplicate row is rejected.
func TestRestoredRefuses(t *testing.T) {
	for _, n := range []int{2, 100, 140_000} {
		p := NewUninitialized(
			perdure.TableSpec{Name: "t", Sparse: true, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd}}, 0, 1, 0, n)
		at := 0
		for _, piece := range p.Image().IDs {
			for i := range piece {
				piece[i] = perdure.RowID(at)
				at++
			}
		}
		if err := p.FinishRestore(); err != nil || p.Stored() != n {
			t.Errorf("%d rows: %v, %d stored", n, err, p.Stored())
		}
		pieces := p.Image().IDs
		pieces[len(pieces)-1][0] = 0
		pieces[0][0] = 0
		if n == 2 {
			pieces[0][1] = 0
		}
		err := p.FinishRestore()
		if wantErr := n == 2 || n > 1<<idShift; errors.Is(err, ErrCorruptImage) != wantErr {
			t.Errorf("%d rows, one of them twice: %v", n, err)
		}
	}
}

// TestFull: a shard rejects rows beyond the max number of positions.
func TestFull(t *testing.T) {
	p := New(perdure.TableSpec{Name: "t", Sparse: true, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd}}, 0, 1, 0, 0)
	p.index.n = MaxStoredRows - 1 // simulated
	if err := p.CheckRows(0, []perdure.RowID{1}, 1, 1); err != nil {
		t.Error(err)
	}
	if err := p.CheckRows(0, []perdure.RowID{1, 2}, 2, 2); !errors.Is(err, ErrFull) {
		t.Errorf("2 rows beyond the limit: %v", err)
	}
}

// TestNoAllocation: reads and updates of stored rows do not allocate.
func TestNoAllocation(t *testing.T) {
	for _, sparse := range []bool{false, true} {
		for _, rule := range partRules {
			const n = 1000
			s := perdure.TableSpec{Name: "t", Sparse: sparse, Dim: 8, Rule: rule}
			if sparse {
				s.Evict = 1000
			}
			p := New(s, 0, 1, 0, n)
			ids := make([]perdure.RowID, n)
			for i := range ids {
				ids[i] = perdure.RowID(i * 7 % n)
			}
			values := make([]float32, n*8)
			clock := perdure.Clock(0)
			if got := testing.AllocsPerRun(20, func() {
				if err := errors.Join(p.ApplyRows(0, ids, n, values, clock),
					p.ReadRows(values, 0, ids, n)); err != nil {
					t.Fatal(err)
				}
				p.Evict(clock, nil)
				clock++
			}); got != 0 {
				t.Errorf("sparse %v, rule %s: %v allocations", sparse, rule.Kind, got)
			}
		}
	}
}

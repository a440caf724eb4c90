package scar

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/table"
)

// load generates updates of two tables, one of which grows and shrinks.
type load struct {
	r     *rand.Rand
	parts []*table.Part
	clock perdure.Clock
	hot   int // number of rows that most updates touch
}

func newLoad(seed uint64) *load {
	g := &load{r: rand.New(rand.NewPCG(seed, 2))}
	g.hot = 1 + g.r.IntN(100)
	for i, s := range []perdure.TableSpec{
		{Name: "a", Rows: 150, Dim: 6, Rule: perdure.Rule{Kind: perdure.RuleAdd}},
		{
			Name: "b", Sparse: true, Dim: 3, Evict: 40,
			Rule: perdure.Rule{Kind: perdure.RuleMomentum, Rate: 1, Momentum: 0.5},
		},
	} {
		g.parts = append(g.parts, table.New(s, perdure.TableID(i), seed, 0, int(s.Rows)))
	}
	return g
}

// step makes the updates between two saves: usually a few, sometimes many, sometimes none.
func (g *load) step(l ...*Ledger) {
	g.clock++
	n := []int{0, 3, 20, 20, 20, 400}[g.r.IntN(6)]
	for range n {
		t := g.r.IntN(2)
		id := perdure.RowID(g.r.IntN(g.hot))
		if g.r.IntN(4) == 0 {
			id = perdure.RowID(g.r.IntN(150))
		}
		p, ids := g.parts[t], []perdure.RowID{id}
		delta := make([]float32, p.Spec.Dim)
		delta[0] = g.r.Float32()
		if err := p.ApplyRows(0, ids, 1, delta, g.clock); err != nil {
			panic(err)
		}
		for _, l := range l {
			l.Changed(perdure.TableID(t), p, 0, ids, 1)
		}
	}
	if g.r.IntN(20) == 0 {
		var gone []func(at int)
		for _, l := range l {
			gone = append(gone, l.EvictionHook(1, g.parts[1]))
		}
		g.parts[1].Evict(g.clock, func(_ perdure.RowID, at int) {
			for _, gone := range gone {
				gone(at)
			}
		})
	}
}

// After each save, all files together have at most three times the bytes of the rows whose newest save they have, plus
// this save. There are not many files, and at most half of all written bytes are saved again for compaction.
func TestSpace(t *testing.T) {
	for i := range 60 {
		by, share := allSelectors[i%4], allShares[i/4%5]
		t.Run(fmt.Sprintf("%s,%v,seed=%d", by, share, i), func(t *testing.T) {
			g := newLoad(uint64(i))
			l := New(Settings{Selector: by, Share: share, Full: i%3 == 0})
			var written, again, budgets int64
			saves := 300
			if share < 0.1 {
				saves = 1000
			}
			for n := range saves {
				g.step(l)
				full := l.full
				c := l.Choose(g.parts, 1)
				written += c.Bytes
				budgets += int64(math.Round(share * float64(storedBytes(g.parts))))
				for t, keys := range l.scratch.keys {
					for _, k := range keys {
						if k == keyForced && !full {
							again += int64(g.parts[t].RowBytes())
						}
					}
				}
				if full {
					budgets += c.Bytes
				}
				if g.r.IntN(10) == 0 {
					l.Unwritten(c)
					written -= c.Bytes
					continue
				}
				l.Written(c, protocol.SegmentFile{File: fmt.Sprint(n)})
				w := &world{t: t, ledger: l, choice: c}
				w.bounds()
			}
			if again > written/2 {
				t.Errorf("%d of %d bytes were written again", again, written)
			}
			if slack := storedBytes(g.parts); written > budgets+slack {
				t.Errorf("%d bytes were written with budgets of %d", written, budgets)
			}
			t.Logf("%d bytes, again %.3f, budgets %d, %d files of at most %d", written,
				float64(again)/float64(written), budgets, len(l.Files()), l.files.maxFiles)
		})
	}
}

func storedBytes(parts []*table.Part) (all int64) {
	for _, p := range parts {
		all += int64(p.Stored() * p.RowBytes())
	}
	return all
}

// With the whole shard as its budget, a save has all changed rows, and no others except those that compaction saves
// again.
func TestAllThatChanged(t *testing.T) {
	for _, by := range []perdure.Selector{perdure.SelectPriority, perdure.SelectUsed} {
		g := newLoad(5)
		l := New(Settings{Selector: by, Share: 1})
		was := map[rowKey][]float32{}
		for n := range 200 {
			g.step(l)
			c := l.Choose(g.parts, 1)
			for _, r := range stored(g.parts) {
				before, saved := was[r.rowKey]
				changed := !saved && !r.dense || !slices.Equal(r.values, before) && (saved || r.values[0] != 0)
				forced := l.scratch.keys[r.table][r.at] == keyForced
				if got := has(c, r); got != (changed || forced) {
					t.Fatalf("%s, save %d: row %v is %v, was %v: chosen is %v", by, n, r.rowKey, r.values, before, got)
				}
				if has(c, r) {
					was[r.rowKey] = r.values
				}
			}
			l.Written(c, protocol.SegmentFile{File: fmt.Sprint(n)})
			there := map[rowKey]bool{}
			for _, r := range stored(g.parts) {
				there[r.rowKey] = true
			}
			for k := range was {
				if !there[k] {
					delete(was, k)
				}
			}
		}
	}
}

func has(c *Choice, r present) bool {
	return slices.ContainsFunc(c.Runs[r.table], func(run table.Run) bool {
		return r.at >= run.First && r.at < run.First+run.Rows
	})
}

// Two ledgers of the same rows choose the same.
func TestSameChoices(t *testing.T) {
	for i, by := range allSelectors {
		g := newLoad(uint64(i))
		s := Settings{Selector: by, Share: 0.3, Seed: 3}
		a, b := New(s), New(s)
		b.Added(0, g.parts[0])
		for n := range 100 {
			g.step(a, b)
			c, d := a.Choose(g.parts, 1), b.Choose(g.parts, 1)
			if !reflect.DeepEqual(c.Runs, d.Runs) {
				t.Fatalf("%s, save %d: %v and %v", by, n, c.Runs, d.Runs)
			}
			f := protocol.SegmentFile{File: fmt.Sprint(n)}
			a.Written(c, f)
			b.Written(d, f)
		}
	}
}

// random chooses all rows equally often, and its choice depends on the seed, the shard and the save.
func TestRandom(t *testing.T) {
	p := table.New(perdure.TableSpec{Name: "a", Rows: 1000, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd}}, 0, 0, 0,
		1000)
	parts := []*table.Part{p}
	choices := func(s Settings) (all []*Choice) {
		s.Selector, s.Share = perdure.SelectRandom, 1.0/8
		l := New(s)
		for range 400 {
			c := l.Choose(parts, 1)
			l.Written(c, protocol.SegmentFile{})
			all = append(all, c)
		}
		return all
	}
	base := choices(Settings{})
	times := make([]int, 1000)
	for _, c := range base {
		if c.Bytes != 4*125 {
			t.Fatalf("%d bytes", c.Bytes)
		}
		for _, run := range c.Runs[0] {
			for at := run.First; at < run.First+run.Rows; at++ {
				times[at]++
			}
		}
	}
	for at, n := range times { // 50 expected, with a standard deviation of 6.6
		if n < 20 || n > 85 {
			t.Errorf("row %d is in %d of 400 saves", at, n)
		}
	}
	for _, s := range []Settings{{Seed: 1}, {Shard: 1}, {Saves: 400}} {
		if reflect.DeepEqual(base[0].Runs, choices(s)[0].Runs) {
			t.Errorf("%+v makes the same choice", s)
		}
	}
	if got := choices(Settings{Saves: 7})[0]; !reflect.DeepEqual(got.Runs, base[7].Runs) {
		t.Error("the eighth save depends on the earlier ones")
	}
}

// A plane keeps its rows while it grows and shrinks.
func TestPlane(t *testing.T) {
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 3))
		p := newChunkedArray[uint32](1 + r.IntN(70000))
		var want [][]uint32
		for range 30 {
			if n := len(want); r.IntN(2) == 0 {
				more := n + r.IntN(20)
				p.reserve(n, more)
				for at := n; at < more; at++ {
					if p.rows(at, 1)[p.width-1] != 0 {
						t.Fatalf("row %d starts as %d", at, p.rows(at, 1)[p.width-1])
					}
					p.rows(at, 1)[p.width-1] = r.Uint32()
					want = append(want, slices.Clone(p.rows(at, 1)))
				}
			} else if n > 0 {
				for range min(n, r.IntN(20)) {
					hole, last := r.IntN(len(want)), len(want)-1
					p.fill(hole, last)
					want[hole] = want[last]
					want = want[:last]
				}
			}
			for at, row := range want {
				if !slices.Equal(p.rows(at, 1), row) {
					t.Fatalf("seed %d: row %d", seed, at)
				}
			}
			if room := len(p.pieces) << p.shift; room > len(want)+3<<p.shift {
				t.Fatalf("memory for %d rows, want %d", room, len(want))
			}
		}
	}
}

// The bytes of the rows down to the threshold are sufficient, and without the rows at the threshold they are not.
func TestThreshold(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 4))
	for range 2000 {
		lists, bytes := make([][]uint64, 1+r.IntN(3)), make([]int64, 3)
		narrow := make([][]uint32, len(lists))
		type row struct {
			key   uint64
			bytes int64
		}
		var rows []row
		mask := uint64(1)<<r.IntN(33) - 1
		for i := range lists {
			bytes[i] = 1 + r.Int64N(9)
			for range r.IntN(30) {
				k := r.Uint64() & mask
				lists[i], narrow[i] = append(lists[i], k<<31|k>>3), append(narrow[i], uint32(k))
				rows = append(rows, row{k, bytes[i]})
			}
		}
		least := 1 + r.Int64N(300)
		slices.SortFunc(rows, func(a, b row) int { return -cmpUint(a.key, b.key) })
		wantAt, wantAbove, total := uint64(0), int64(0), int64(0)
		for _, o := range rows {
			if o.key == 0 || total >= least {
				break
			}
			if wantAt != o.key {
				wantAt, wantAbove = o.key, total
			}
			total += o.bytes
		}
		if total < least {
			wantAt, wantAbove = 0, total
		}
		if at, above := threshold(narrow, bytes, least); uint64(at) != wantAt || above != wantAbove {
			t.Fatalf("%v of %v bytes, at least %d: %d, %d above; want %d, %d", narrow, bytes, least, at, above, wantAt,
				wantAbove)
		}
		if at, above := threshold(lists, bytes, least); at != wantAt<<31|wantAt>>3 || above != wantAbove {
			t.Fatalf("%v of %v bytes, at least %d: %d, %d above; want %d, %d", lists, bytes, least, at, above,
				wantAt, wantAbove)
		}
	}
}

// A sample of many keys estimates the last one. Whatever the order of the keys, and even if the sample is wrong, the
// result equals that of examining all keys.
func TestLast(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 4))
	const n = 17 * samples
	wrong := func(i int) uint32 { // a sample of these keys is misleading
		if at := i - i%16; i%16 == int(mix(uint64(at))%16) {
			return 1
		}
		return uint32(i)
	}
	for name, key := range map[string]func(i int) uint32{
		"one":     func(int) uint32 { return 7 },
		"few":     func(int) uint32 { return uint32(r.IntN(5)) },
		"rising":  func(i int) uint32 { return uint32(i) },
		"any":     func(int) uint32 { return r.Uint32() },
		"seldom":  func(i int) uint32 { return uint32(i % 1000 / 999) },
		"forced":  func(i int) uint32 { return max(r.Uint32()>>1, uint32(i%3)*math.MaxUint32/2*2+uint32(i%3)/2) },
		"falling": func(i int) uint32 { return math.MaxUint32 - uint32(i) },
		"wrong":   wrong,
	} {
		k := choiceScratch{}
		bytes, all := []int64{3, 8}, int64(0)
		for t, n := range []int{n - 1000, 16 * 1000} {
			keys := k.list(t, n)
			for i := range keys {
				keys[i] = key(i)
			}
			all += int64(n) * bytes[t]
		}
		for _, least := range []int64{1, 100, all / 100, all / 8, all / 2, all - 100, all, all + 1} {
			want, wantAbove := threshold(k.keys, bytes, least)
			if at, above := k.last(2, bytes, least); at != want || above != wantAbove {
				t.Fatalf("%s, at least %d: %d, %d above; want %d, %d", name, least, at, above, want, wantAbove)
			}
		}
	}
}

func cmpUint(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// An update counts once for each of its rows, up to the maximum count.
func TestCounts(t *testing.T) {
	const rows = 600_000 // in three pieces
	spec := perdure.TableSpec{Name: "a", Rows: rows, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd}}
	p := table.New(spec, 0, 0, 50, rows)
	r := newRows(p, &Settings{Selector: perdure.SelectUsed})
	r.meet(p, false)
	r.used(p, 60, nil, rows-20)
	r.used(p, 0, []perdure.RowID{50, 60, 60, 50 + rows - 1}, 4)
	r.counts.rows(rows/2, 1)[0] = math.MaxUint32
	r.used(p, 50+rows/2, nil, 1)
	want := map[int]uint32{0: 1, 10: 3, rows / 2: math.MaxUint32, rows - 1: 1}
	for at := range rows {
		n, special := want[at]
		if !special && at >= 10 && at < rows-10 {
			n = 1
		}
		if got := r.counts.rows(at, 1)[0]; got != n {
			t.Fatalf("row %d: %d updates, want %d", at, got, n)
		}
	}
}

// Rows that equal their restored or initial values need no memory and are not read. When a row changes, its block is
// stored as it was before. A ledger that has ended observes no changes.
func TestPast(t *testing.T) {
	spec := perdure.TableSpec{
		Name: "a", Rows: 10_000, Dim: 16, Rule: perdure.Rule{Kind: perdure.RuleAdd},
		Init: perdure.Init{Kind: perdure.InitNormal, Scale: 1},
	}
	p := table.New(spec, 0, 0, 0, 10_000)
	l := Resume(Settings{Selector: perdure.SelectPriority, Share: 1.0 / 8}, []*table.Part{p}, nil, nil)
	before := slices.Clone(p.Values(0, 10_000))
	past := &l.tables[0].saved
	blocks := func() (n int) {
		for _, word := range past.stored {
			n += bits.OnesCount64(word)
		}
		return n
	}
	choose := func() []table.Run {
		c := l.Choose([]*table.Part{p}, 1)
		l.Written(c, protocol.SegmentFile{File: "f"})
		return c.Runs[0]
	}
	if got := choose(); len(got) > 0 || len(past.values.pieces) > 0 {
		t.Fatalf("no row has changed, but the choice is %v", got)
	}
	change := func(row perdure.RowID, by float32) {
		if err := p.ApplyRows(0, []perdure.RowID{row}, 1, slices.Repeat([]float32{by}, 16), 1); err != nil {
			t.Fatal(err)
		}
	}
	change(5000, 1)
	change(31, 2)
	change(32, 0)
	if blocks() != 3 {
		t.Fatalf("%d blocks are stored", blocks())
	}
	for _, row := range []int{31, 32, 5000} {
		if !slices.Equal(past.values.rows(row, 1), before[16*row:16*row+16]) {
			t.Fatalf("row %d is stored as %v, want %v", row, past.values.rows(row, 1), before[16*row:16*row+16])
		}
	}
	if got := choose(); !slices.Equal(got, []table.Run{{First: 31, Rows: 1}, {First: 5000, Rows: 1}}) {
		t.Fatalf("chosen: %v", got)
	}
	l.Close()
	if change(1, 1); blocks() != 3 {
		t.Fatal("a ledger that has ended stores rows")
	}
}

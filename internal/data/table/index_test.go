package table

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
)

// naiveIndex is a naive index.
type naiveIndex struct {
	ids []perdure.RowID
	at  map[perdure.RowID]int
}

func (x *naiveIndex) add(id perdure.RowID) (at int, added bool) {
	if at, ok := x.at[id]; ok {
		return at, false
	}
	x.at[id] = len(x.ids)
	x.ids = append(x.ids, id)
	return len(x.ids) - 1, true
}

func (x *naiveIndex) remove(id perdure.RowID) (hole int, ok bool) {
	hole, ok = x.at[id]
	if !ok {
		return 0, false
	}
	last := len(x.ids) - 1
	x.ids[hole] = x.ids[last]
	x.at[x.ids[last]] = hole
	x.ids = x.ids[:last]
	delete(x.at, id)
	return hole, true
}

// patterns are typical sequences of ids: the i-th id of each.
var patterns = map[string]func(i uint64) perdure.RowID{
	"sequential":  func(i uint64) perdure.RowID { return perdure.RowID(i) },
	"from above":  func(i uint64) perdure.RowID { return perdure.RowID(^i) },
	"strided":     func(i uint64) perdure.RowID { return perdure.RowID(i * 4096) },
	"odd stride":  func(i uint64) perdure.RowID { return perdure.RowID(i * 1_000_003) },
	"high bits":   func(i uint64) perdure.RowID { return perdure.RowID(i << 40) },
	"highest":     func(i uint64) perdure.RowID { return perdure.RowID(i << 48) }, // 65,536 of them
	"two fields":  func(i uint64) perdure.RowID { return perdure.RowID(i%1000<<32 | i/1000) },
	"multiplied":  func(i uint64) perdure.RowID { return perdure.RowID(i * goldenGamma) },
	"as if mixed": func(i uint64) perdure.RowID { return perdure.RowID(mix(i)) },
}

// sameIndex compares an index with the expected one.
func sameIndex(x *Index, want *naiveIndex, more ...perdure.RowID) error {
	if x.Len() != len(want.ids) {
		return fmt.Errorf("%d ids, want %d", x.Len(), len(want.ids))
	}
	var ids []perdure.RowID
	for from := 0; from < x.Len(); from = len(ids) {
		ids = append(ids, x.IDs(from, 1000)...)
	}
	if !slices.Equal(ids, want.ids) {
		return fmt.Errorf("ids %v, want %v", ids, want.ids)
	}
	ask := append(slices.Clone(want.ids), more...)
	at := make([]int, len(ask))
	x.FindAll(ask, at)
	for i, id := range ask {
		wantAt, ok := want.at[id]
		if !ok {
			wantAt = -1
		}
		found, foundOK := x.Find(id)
		if at[i] != wantAt || found != wantAt || foundOK != ok {
			return fmt.Errorf("id %d is at %d (by FindAll: %d), want %d", id, found, at[i], wantAt)
		}
		if ok && x.ID(wantAt) != id {
			return fmt.Errorf("id %d at position %d, want %d", x.ID(wantAt), wantAt, id)
		}
	}
	return nil
}

// TestIndexLikeMap: an index behaves like a map and a list.
func TestIndexLikeMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := patterns[rapid.SampledFrom(slices.Sorted(maps.Keys(patterns))).Draw(t, "pattern")]
		x, want := NewIndex(), &naiveIndex{at: map[perdure.RowID]int{}}
		few := rapid.Uint64Range(0, 300)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if rapid.IntRange(0, 9).Draw(t, "0 resets") == 0 {
				x.Reset()
				*want = naiveIndex{at: map[perdure.RowID]int{}}
			}
			from, n := few.Draw(t, "from"), few.Draw(t, "count")
			remove := rapid.IntRange(0, 2).Draw(t, "0 removes") == 0
			for i := from; i < from+n; i++ {
				id := pattern(i)
				var at, wantAt int
				var ok, wantOK bool
				if remove {
					at, ok = x.Remove(id)
					wantAt, wantOK = want.remove(id)
				} else {
					at, ok = x.Add(id)
					wantAt, wantOK = want.add(id)
				}
				if at != wantAt || ok != wantOK {
					t.Fatalf("id %d, remove %v: %d, %v; want %d, %v", id, remove, at, ok, wantAt, wantOK)
				}
			}
			if err := sameIndex(x, want, 12345678, pattern(10_000), pattern(few.Draw(t, "other"))); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestIndexLarge: any pattern of ids is distributed evenly: hardly any id is outside of its bucket's neighbourhood, and
// memory stays within the bounds of Index. Piece and size limits are crossed in both directions, and a restored index
// is equal.
func TestIndexLarge(t *testing.T) {
	const n = 140_000
	for name, pattern := range patterns {
		n := uint64(n)
		if name == "highest" {
			n = 1 << 16
		}
		x, want := NewIndex(), &naiveIndex{at: map[perdure.RowID]int{}}
		for i := range n {
			x.Add(pattern(i))
			want.add(pattern(i))
			if count := int(i + 1); count&(count-1) == 0 || count%10_000 == 0 {
				if ids, most := 8*x.ids.capacity, max(9*count, 8*count+pieceBytes)+8; ids > most {
					t.Fatalf("%s: capacity of %d bytes for %d ids", name, ids, count)
				}
				if tables, most := x.bytes()-8*x.ids.capacity, 9.6*1.02*float64(count)+25<<10; float64(tables) > most {
					t.Fatalf("%s: hash tables of %d bytes for %d ids, more than %.0f", name, tables, count, most)
				}
			}
		}
		if passed, counted := x.passed(); passed > int(n)/8 || passed != counted {
			t.Errorf("%s: %d of %d ids skipped a full bucket, but %d are counted", name, passed, n, counted)
		}
		if err := sameIndex(x, want, perdure.RowID(1)<<63|12345); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, ok := x.restore(x.Len()); !ok {
			t.Errorf("%s: an id occurs twice", name)
		}
		if err := sameIndex(x, want, perdure.RowID(1)<<63|12345); err != nil {
			t.Errorf("%s, restored: %v", name, err)
		}
		for i := n - n/4; i < n; i++ { // late ones met full buckets
			x.Remove(pattern(i))
			want.remove(pattern(i))
		}
		if passed, counted := x.passed(); passed != counted {
			t.Errorf("%s, some removed: %d ids skipped a full bucket, but %d are counted", name, passed, counted)
		}
		for i := range n - n/4 - 1000 {
			x.Remove(pattern(i))
			want.remove(pattern(i))
		}
		if err := sameIndex(x, want, pattern(0), pattern(n-1)); err != nil {
			t.Errorf("%s, removed: %v", name, err)
		}
		if most := 3*6.4*1000 + 25<<10 + 2*pieceBytes; float64(x.bytes()) > most {
			t.Errorf("%s: %d bytes after removals, more than %.0f", name, x.bytes(), most)
		}
	}
}

// passed counts how often an id had to skip a full bucket, and returns the sum of the buckets' own counts.
func (x *Index) passed() (passed, counted int) {
	for at := range x.n {
		h := hash(x.ID(at))
		here, _ := x.slot(h, at)
		t := &x.tables[h>>56]
		for i := t.homeBucket(h); &t.buckets[i] != here; i = t.next(i) {
			passed++
		}
	}
	for i := range x.tables {
		for _, b := range x.tables[i].buckets {
			counted += int(b.overflow)
		}
	}
	return passed, counted
}

// TestIndexAroundPiece: an index whose length varies around the end of a piece does not reallocate that piece each
// time.
func TestIndexAroundPiece(t *testing.T) {
	x := NewIndex()
	for i := range perdure.RowID(1<<idShift + 1) {
		x.Add(i)
	}
	if got := testing.AllocsPerRun(10, func() {
		x.Remove(5)
		x.Add(5)
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

// bytes returns the memory of an index.
func (x *Index) bytes() int {
	n := 8*x.ids.capacity + hashTables*32
	for i := range x.tables {
		n += 64 * len(x.tables[i].buckets)
	}
	return n
}

// benchIDs returns n ids in an order unrelated to their values.
func benchIDs(n int, seed uint64) []perdure.RowID {
	ids := make([]perdure.RowID, n)
	for i := range ids {
		ids[i] = perdure.RowID(mix(seed<<40 + uint64(i)))
	}
	return ids
}

// indexBench is an index and a Go map with the same ids, and the order of lookups.
type indexBench struct {
	ids, others []perdure.RowID
	x           *Index
	m           map[perdure.RowID]uint32
	sum         int
}

func newIndexBench(n int) *indexBench {
	c := &indexBench{ids: benchIDs(n, 1), others: benchIDs(n, 2), x: NewIndex(), m: map[perdure.RowID]uint32{}}
	for i, id := range c.ids {
		c.x.Add(id)
		c.m[id] = uint32(i)
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(n, func(i, j int) { c.ids[i], c.ids[j] = c.ids[j], c.ids[i] })
	return c
}

func (c *indexBench) find(ids []perdure.RowID) {
	for _, id := range ids {
		at, _ := c.x.Find(id)
		c.sum += at
	}
}

func (c *indexBench) findAll(ids []perdure.RowID) {
	var at [batch]int
	for len(ids) > 0 {
		n := min(len(ids), batch)
		c.x.FindAll(ids[:n], at[:n])
		c.sum += at[0]
		ids = ids[n:]
	}
}

func (c *indexBench) findInMap(ids []perdure.RowID) {
	for _, id := range ids {
		c.sum += int(c.m[id])
	}
}

func (c *indexBench) add() {
	x := NewIndex()
	for _, id := range c.ids {
		x.Add(id)
	}
}

func (c *indexBench) addToMap() {
	m := map[perdure.RowID]uint32{}
	for i, id := range c.ids {
		m[id] = uint32(i)
	}
}

// BenchmarkIndex compares the index with a Go map, in nanoseconds per id.
func BenchmarkIndex(b *testing.B) {
	for _, n := range []int{100_000, 10_000_000} {
		c := newIndexBench(n)
		for _, f := range []struct {
			name string
			ids  []perdure.RowID
			do   func(ids []perdure.RowID)
		}{
			{"find/hit", c.ids, c.find},
			{"find/miss", c.others, c.find},
			{"find all/hit", c.ids, c.findAll},
			{"find all/miss", c.others, c.findAll},
			{"map/hit", c.ids, c.findInMap},
			{"map/miss", c.others, c.findInMap},
		} {
			b.Run(fmt.Sprintf("%s/%d", f.name, n), func(b *testing.B) {
				const each = 10_000
				i := 0
				for b.Loop() {
					f.do(f.ids[i : i+each])
					i = (i + each) % n
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/each, "ns/id")
			})
		}
		for _, f := range []struct {
			name string
			do   func()
		}{{"add", c.add}, {"map add", c.addToMap}, {"restore", func() { c.x.restore(n) }}} {
			b.Run(fmt.Sprintf("%s/%d", f.name, n), func(b *testing.B) {
				for b.Loop() {
					f.do()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/id")
			})
		}
	}
}

// TestFindEach: ids of several indexes are looked up together, each in its own index; a nil index has no ids.
func TestFindEach(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	of := []*Index{NewIndex(), nil, NewIndex(), NewIndex()}
	for range 3000 {
		if x := of[rng.IntN(len(of))]; x != nil {
			x.Add(perdure.RowID(rng.IntN(2000)))
		}
	}
	for _, n := range []int{0, 1, batch - 1, batch, batch + 1, 3*batch + 5} {
		xs, ids, at := make([]*Index, n), make([]perdure.RowID, n), make([]int, n)
		for i := range n {
			xs[i], ids[i] = of[rng.IntN(len(of))], perdure.RowID(rng.IntN(4000))
		}
		FindEach(xs, ids, at)
		for i, x := range xs {
			want := -1
			if x != nil {
				want, _ = x.Find(ids[i])
			}
			if at[i] != want {
				t.Fatalf("%d of %d: id %d is at %d, want %d", i, n, ids[i], at[i], want)
			}
		}
	}
}

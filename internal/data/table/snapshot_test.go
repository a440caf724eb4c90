package table

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
)

// reading is a snapshot being read, its expected content, and the bytes read so far.
type reading struct {
	s         *Snapshot
	want, got []byte
	done      bool
	chosen    bool // not all rows
}

// bytesOf returns the expected bytes of a snapshot of the part.
func bytesOf(p *Part) []byte {
	m := p.Image()
	all := slices.Concat(m.Memory()...)
	if littleEndian {
		return all
	}
	ids := 8 * len(slices.Concat(m.IDs...))
	swapBytes(all[:ids], 8)
	swapBytes(all[ids:], 4)
	return all
}

// bytesOfRuns returns the expected bytes of a snapshot of these rows.
func bytesOfRuns(p *Part, runs []Run) (b []byte) {
	all := bytesOf(p)
	columns, _, _ := p.sources(snapshotBlockBytes)
	for _, c := range columns {
		for _, r := range runs {
			b = append(b, all[r.First*c.rowSize:][:r.Rows*c.rowSize]...)
		}
		all = all[p.Stored()*c.rowSize:]
	}
	return b
}

// drawRuns draws rows of a part: scattered single rows, long runs, neighbours.
func drawRuns(t *rapid.T, p *Part) (runs []Run) {
	most := rapid.SampledFrom([]int{1, 3, 1000}).Draw(t, "longest run")
	gap := rapid.SampledFrom([]int{0, 2, 30}).Draw(t, "widest gap")
	for at := rapid.IntRange(0, gap).Draw(t, "gap"); at < p.Stored(); {
		n := min(rapid.IntRange(0, most).Draw(t, "run"), p.Stored()-at)
		runs = append(runs, Run{at, n})
		at += max(1, n) + rapid.IntRange(0, gap).Draw(t, "gap")
	}
	return runs
}

// next reads at most most bytes and checks them as far as possible.
func (r *reading) next(t *rapid.T, most int) {
	b, live := r.s.Next(most, func(n int) []byte { return make([]byte, n) })
	if live && (!littleEndian || len(b) != cap(b)) || len(b) > max(most, 8) {
		t.Fatalf("%d bytes (of %d, live %v); want at most %d", len(b), cap(b), live, most)
	}
	r.got, r.done = append(r.got, b...), len(b) == 0
	if !bytes.HasPrefix(r.want, r.got) {
		t.Fatalf("bytes %d… are\n%v, want\n%v", len(r.got)-len(b), b, r.want[len(r.got)-len(b):])
	}
	if r.done && len(r.got) != len(r.want) {
		t.Fatalf("%d bytes, want %d", len(r.got), len(r.want))
	}
}

// TestSnapshotIsOfOneMoment: a snapshot has the part's content at its start, whatever happens between the pieces:
// updates, stored and evicted rows, other snapshots. A part restored from it is equal.
func TestSnapshotIsOfOneMoment(t *testing.T) {
	for name, kind := range map[string]struct{ sparse, evict bool }{
		"dense": {}, "sparse": {sparse: true},
		"evicting": {true, true},
	} {
		for _, little := range []bool{littleEndian, !littleEndian} {
			t.Run(name, func(t *testing.T) {
				defer func(was bool) { littleEndian = was }(littleEndian)
				littleEndian = little
				rapid.Check(t, func(t *rapid.T) { drawPart(t, kind.sparse, kind.evict).snapshots(t) })
			})
		}
	}
}

func (c *partCase) snapshots(t *rapid.T) {
	var open []*reading
	most := rapid.SampledFrom([]int{1, 8, 50, 1000})
	for range rapid.IntRange(1, 40).Draw(t, "steps") {
		step := rapid.IntRange(0, 9).Draw(t, "step")
		switch {
		case step == 0 && len(open) < 3:
			s := c.part.snapshot(rapid.SampledFrom([]int{1, 40, 400}).Draw(t, "bytes aside"))
			r := &reading{s: s, want: bytesOf(c.part)}
			if rapid.Bool().Draw(t, "chosen") {
				s.Close()
				runs := drawRuns(t, c.part)
				s = c.part.snapshotRuns(runs, rapid.SampledFrom([]int{1, 40, 400}).Draw(t, "bytes aside"))
				r = &reading{s: s, want: bytesOfRuns(c.part, runs), chosen: true}
			}
			open = append(open, r)
			if s.Rows() != c.part.Stored() || s.Bytes() != int64(len(r.want)) {
				t.Fatalf("%d rows of %d bytes in all, want %d", s.Rows(), s.Bytes(), c.part.Stored())
			}
		case step < 4 && len(open) > 0:
			r := open[rapid.IntRange(0, len(open)-1).Draw(t, "which")]
			r.next(t, most.Draw(t, "most"))
		case step == 4 && len(open) > 0:
			i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
			open[i].s.Close()
			open = slices.Delete(open, i, i+1)
		case step == 5:
			c.evict(t)
		default:
			c.apply(t)
		}
	}
	for _, r := range open {
		for !r.done {
			r.next(t, most.Draw(t, "most"))
		}
		if len(r.s.savedBlocks) != 0 {
			t.Fatalf("%d blocks are still saved", len(r.s.savedBlocks))
		}
		r.s.Close()
		if r.chosen {
			c.overlaid(t, r)
			continue
		}
		c.sameAgain(t, r)
	}
	if len(c.part.snapshots) != 0 {
		t.Fatalf("%d snapshots are still open", len(c.part.snapshots))
	}
	if err := c.want.sameImage(c.part); err != nil {
		t.Fatal(err)
	}
}

// sameAgain restores a part from the bytes of a snapshot.
func (c *partCase) sameAgain(t *rapid.T, r *reading) {
	p := newUninitialized(c.part.Spec, c.part.id, c.part.seed, c.part.First, r.s.Rows(), c.pieceBytes)
	from := r.got
	for _, piece := range p.Image().Memory() {
		from = from[copy(piece, from):]
	}
	p.Image().ConvertByteOrder()
	if err := p.FinishRestore(); err != nil || len(from) != 0 || !bytes.Equal(bytesOf(p), r.want) {
		t.Fatalf("the restored part differs: %v, %d bytes left", err, len(from))
	}
}

// overlaid writes selected rows over a part of initial rows, and reads them back.
func (c *partCase) overlaid(t *rapid.T, r *reading) {
	rows, native := c.part.Rows, littleEndian
	littleEndian = true // fill writes numbers in this machine's byte order
	defer func() { littleEndian = native }()
	p := newUninitialized(c.part.Spec, c.part.id, c.part.seed, c.part.First, rows, c.pieceBytes)
	runs, from := r.s.Runs(), bytes.Clone(r.got)
	for i := range r.s.columns {
		col := &r.s.columns[i]
		n := r.s.count * col.rowSize
		if !native {
			swapBytes(from[:n], col.word)
		}
		var read []byte
		read, from = from[:n], from[n:]
		if i == 0 && p.Spec.Sparse {
			ids := make([]perdure.RowID, r.s.count)
			copy(memoryOf(ids), read)
			half := len(ids) / 2
			places, err := p.AssignPositions(ids[:half], nil)
			if err == nil {
				runs, err = p.AssignPositions(ids[half:], places)
			}
			again, errAgain := p.AssignPositions(ids, nil) // all have a position now
			if err != nil || errAgain != nil || p.Stored() != len(ids) || !slices.Equal(again, runs) || len(runs) > 1 {
				t.Fatalf("%d rows have the positions %v, and then %v; %v, %v", len(ids), runs, again, err, errAgain)
			}
			continue
		}
		if err := p.Overlay(i, runs, func(_ int, memory []byte) error {
			read = read[copy(memory, read):]
			return nil
		}); err != nil || len(read) > 0 {
			t.Fatalf("column %d: %v, %d bytes are left", i, err, len(read))
		}
	}
	want := bytes.Clone(r.want)
	if !native {
		for b, i := want, 0; i < len(r.s.columns); i++ {
			n := r.s.count * r.s.columns[i].rowSize
			swapBytes(b[:n], r.s.columns[i].word)
			b = b[n:]
		}
	}
	if got := bytesOfRuns(p, runs); !bytes.Equal(got, want) {
		t.Fatalf("selected rows, read back, are\n%v, want\n%v", got, want)
	}
}

// TestSnapshotsOfChanges: successive snapshots of changed rows, applied in order, yield the part's content at each of
// them, whatever is changed, stored or evicted in between, and even if one is undone.
func TestSnapshotsOfChanges(t *testing.T) {
	for name, kind := range map[string]struct{ sparse, evict bool }{
		"dense": {}, "sparse": {sparse: true},
		"evicting": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { drawPart(t, kind.sparse, kind.evict).followed(t) })
		})
	}
}

// layers are a part's columns, assembled from its snapshots.
type layers struct {
	columns [][]byte
	rows    int
}

// put applies the bytes of a snapshot to the layers.
func (l *layers) put(s *Snapshot, read []byte) {
	if l.columns == nil {
		l.columns = make([][]byte, len(s.columns))
	}
	l.rows = s.rows
	for i, c := range s.columns {
		size := s.rows * c.rowSize
		l.columns[i] = append(l.columns[i], make([]byte, max(0, size-len(l.columns[i])))...)[:size]
		for _, r := range s.Runs() {
			read = read[copy(l.columns[i][r.First*c.rowSize:][:r.Rows*c.rowSize], read):]
		}
	}
}

func (c *partCase) followed(t *rapid.T) {
	block := rapid.SampledFrom([]int{1, 40, 400}).Draw(t, "bytes of a block")
	var l layers
	change := func() {
		for range rapid.IntRange(0, 4).Draw(t, "changes") {
			if rapid.IntRange(0, 4).Draw(t, "evict") == 0 {
				c.evict(t)
			} else {
				c.apply(t)
			}
		}
	}
	for range rapid.IntRange(2, 5).Draw(t, "snapshots") {
		most, want := rapid.SampledFrom([]int{100, 1000}).Draw(t, "most"), bytesOf(c.part)
		if rapid.Bool().Draw(t, "chosen rows too") { // these do not affect the recorded changes
			defer c.part.snapshotRuns(drawRuns(t, c.part), block).Close()
		}
		changed, all := c.part.ChangedBytes()
		s := c.part.snapshotChanged(rapid.IntRange(0, 5).Draw(t, "all") == 0, block)
		if changed > all || all != int64(len(want)) {
			t.Fatalf("%d bytes of %d changed, want %d", changed, all, len(want))
		}
		var read []byte
		for more := true; more; {
			change()
			b, _ := s.Next(most, func(n int) []byte { return make([]byte, n) })
			read, more = append(read, b...), len(b) > 0
		}
		if int64(len(read)) != s.Bytes() {
			t.Fatalf("%d bytes, want %d", len(read), s.Bytes())
		}
		s.Close()
		if rapid.IntRange(0, 3).Draw(t, "undo") == 0 && l.columns != nil {
			s.MarkChanged()
			continue
		}
		l.put(s, read)
		if got := slices.Concat(l.columns...); !bytes.Equal(got, want) {
			t.Fatalf("the snapshots yield\n%v, want\n%v", got, want)
		}
		change()
	}
}

// TestChangesAreFew: unchanged rows are not read again.
func TestChangesAreFew(t *testing.T) {
	p := New(spec(64, perdure.Init{}), 0, 1, 0, 10_000)
	if s := p.SnapshotChanged(false); s.Bytes() != 10_000*256 {
		t.Errorf("the first has %d bytes", s.Bytes())
	}
	if err := p.ApplyRows(5000, nil, 1, make([]float32, 64), 1); err != nil {
		t.Fatal(err)
	}
	s := p.SnapshotChanged(false)
	if runs := s.Runs(); len(runs) != 1 || runs[0] != (Run{5000, 8}) || s.Bytes() != 8*256 {
		t.Errorf("after one change: %v, %d bytes", runs, s.Bytes())
	}
	if s := p.SnapshotChanged(false); s.Bytes() != 0 || len(s.Runs()) != 0 {
		t.Errorf("without changes: %d bytes", s.Bytes())
	}
	if changed, _ := p.ChangedBytes(); changed != 0 {
		t.Errorf("without changes: %d bytes", changed)
	}
}

// BenchmarkPutAside updates scattered rows while snapshots that are never read are started repeatedly, and without
// snapshots.
func BenchmarkPutAside(b *testing.B) {
	const rows, dim, named = 100_000, 64, 1000
	for name, with := range map[string]bool{"none": false, "a snapshot each": true} {
		b.Run(name, func(b *testing.B) {
			p := New(spec(dim, perdure.Init{}), 0, 1, 0, rows)
			ids, delta := make([]perdure.RowID, named), make([]float32, named*dim)
			for i := range ids {
				ids[i] = perdure.RowID(i * 7919 % rows)
			}
			for b.Loop() {
				if with {
					p.Snapshot()
				}
				if err := p.ApplyRows(0, ids, named, delta, 1); err != nil {
					b.Fatal(err)
				}
				for _, s := range p.snapshots {
					s.Close()
				}
			}
		})
	}
}

// TestAsideRoomIsUsedAgain: saved blocks reuse the memory of the previous snapshot, whose content does not show.
func TestAsideRoomIsUsedAgain(t *testing.T) {
	p := New(perdure.TableSpec{Name: "t", Rows: 512, Dim: 512, Rule: perdure.Rule{Kind: perdure.RuleAdd}}, 0, 1, 0, 512)
	delta := slices.Repeat([]float32{1}, 512*512)
	for len(freeArenas) > 0 {
		<-freeArenas
	}
	had := map[*byte]bool{}
	for round := range 3 {
		s := p.Snapshot()
		if err := p.ApplyRows(0, nil, 512, delta, 0); err != nil {
			t.Fatal(err)
		}
		for _, room := range s.arenas {
			if first := unsafe.SliceData(room); round == 0 {
				had[first] = true
			} else if !had[first] {
				t.Errorf("round %d: memory was newly allocated", round)
			}
		}
		for read := 0; read < 4*len(delta); {
			b, _ := s.Next(1<<20, func(n int) []byte { return make([]byte, n) })
			for _, v := range asFloats(b) {
				if v != float32(round) {
					t.Fatalf("round %d: read %v", round, v)
				}
			}
			read += len(b)
		}
		s.Close()
	}
	if len(had) < 4 {
		t.Fatalf("%d allocations kept", len(had))
	}
}

func asFloats(b []byte) []float32 {
	v := make([]float32, len(b)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return v
}

package checkpoint

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/table"
)

// picking is a job of one shard that saves random selections of rows. Its model is naive: for each row, the bytes that
// were saved last.
type picking struct {
	fsys   *disk.Memory
	specs  []perdure.TableSpec
	parts  []*table.Part
	saved  []map[perdure.RowID]savedRow
	files  []FileRef
	clock  perdure.Clock
	number uint64
}

// savedRow is a saved row: the bytes of its columns, concatenated.
type savedRow struct {
	file  int
	bytes string
}

const pickingJob = "job-1"

func pickingSpecs() []perdure.TableSpec {
	adam := testTable("w", 300, 3)
	adam.Rule = perdure.Rule{Kind: perdure.RuleAdam, Rate: 0.5}.WithDefaults()
	evicting := testSparse("e", 2)
	evicting.Evict = 4
	steady := testSparse("f", 1)
	steady.Evict, steady.Rule = 0, perdure.Rule{Kind: perdure.RuleFTRL, Rate: 0.5, Beta: 1, L1: 0.1, L2: 0.2}
	return []perdure.TableSpec{adam, evicting, steady, testTable("v", 40, 300)}
}

func initialParts(specs []perdure.TableSpec) (parts []*table.Part) {
	for i, spec := range specs {
		parts = append(parts, table.New(spec, perdure.TableID(i), 7, 0, int(spec.Rows)))
	}
	return parts
}

// blankParts returns the parts that files are restored into.
func blankParts(specs []perdure.TableSpec) (parts []*table.Part) {
	for i, spec := range specs {
		parts = append(parts, table.NewUninitialized(spec, perdure.TableID(i), 7, 0, int(spec.Rows)))
	}
	return parts
}

func newPicking(t interface{ Fatal(...any) }) *picking {
	c := &picking{fsys: disk.NewMemory(), specs: pickingSpecs()}
	if err := c.fsys.MkdirAll("ckpt"); err != nil {
		t.Fatal(err)
	}
	c.parts = initialParts(c.specs)
	for range c.parts {
		c.saved = append(c.saved, map[perdure.RowID]savedRow{})
	}
	return c
}

// rowsOf returns the bytes of all rows of a part, by id.
func rowsOf(p *table.Part) (ids []perdure.RowID, rows map[perdure.RowID]string) {
	img := p.Image()
	rows = map[perdure.RowID]string{}
	for at := range img.Rows {
		id := p.First + perdure.RowID(at)
		if p.Spec.Sparse {
			id = p.IDs(at, 1)[0]
		}
		ids = append(ids, id)
	}
	for _, c := range columns(p.Spec) {
		all := bytes.Join(c.bytesOf(img), nil)
		for at, id := range ids {
			rows[id] += string(all[int64(at)*c.rowBytes:][:c.rowBytes])
		}
	}
	return ids, rows
}

// train changes some rows.
func (c *picking) train(t *rapid.T) {
	c.clock++
	for _, p := range c.parts {
		n := rapid.IntRange(0, 10).Draw(t, "rows")
		ids, delta := make([]perdure.RowID, n), make([]float32, n*p.Spec.Dim)
		last := 60
		if !p.Spec.Sparse {
			last = int(p.Spec.Rows) - 1
		}
		for i := range ids {
			ids[i] = perdure.RowID(rapid.IntRange(0, last).Draw(t, "row"))
		}
		for i := range delta {
			delta[i] = float32(i%7) - 2
		}
		if err := p.ApplyRows(0, ids, n, delta, c.clock); err != nil {
			t.Fatal(err)
		}
		p.Evict(c.clock, nil)
	}
}

// pick draws rows of a part.
func pick(t *rapid.T, p *table.Part) (runs []table.Run) {
	most := rapid.SampledFrom([]int{1, 3, 100}).Draw(t, "longest run")
	for at := rapid.IntRange(0, 20).Draw(t, "first"); at < p.Stored() && len(runs) < 40; {
		n := min(rapid.IntRange(1, most).Draw(t, "run"), p.Stored()-at)
		runs = append(runs, table.Run{First: at, Rows: n})
		at += n + rapid.IntRange(0, 30).Draw(t, "gap")
	}
	return runs
}

// segment returns the next segment, with the given rows. It calls meanwhile whenever rows are read.
func (c *picking) segment(runs [][]table.Run, meanwhile func()) (*Segment, []*table.Snapshot) {
	c.number++
	s := &Segment{
		Job: pickingJob, Generation: 1, Epoch: 2, Cut: c.clock, Shard: 3, Seq: 10 * c.number, Number: c.number,
		Applied: []perdure.Clock{c.clock, c.clock + 1}, States: [][]byte{fmt.Append(nil, c.number), nil},
	}
	var open []*table.Snapshot
	for i, p := range c.parts {
		rows := p.SnapshotRuns(runs[i])
		open = append(open, rows)
		room := make([]byte, 1000)
		s.Tables = append(s.Tables, TableRows{Spec: p.Spec, Stream: &Stream{
			Rows: int64(rows.Rows()), Runs: rows.Runs(),
			Next: func() ([]byte, error) {
				meanwhile()
				b, _ := rows.Next(len(room), func(int) []byte { return room })
				return b, nil
			},
		}})
	}
	return s, open
}

// save writes a random selection of rows, while all rows keep changing.
func (c *picking) save(t *rapid.T) {
	runs := make([][]table.Run, len(c.parts))
	for i, p := range c.parts {
		runs[i] = pick(t, p)
		ids, rows := rowsOf(p)
		for _, r := range runs[i] {
			for _, id := range ids[r.First : r.First+r.Rows] {
				c.saved[i][id] = savedRow{len(c.files), rows[id]}
			}
		}
	}
	pause, calls := rapid.IntRange(3, 50).Draw(t, "calls between two clocks"), 0
	s, open := c.segment(runs, func() {
		if calls++; calls%pause == 0 {
			c.train(t)
		}
	})
	ref, err := WriteSegment(ckpt(c.fsys), s)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range open {
		s.Close()
	}
	c.files = append(c.files, ref.Self())
}

// same restores the rows and compares each with its last saved value.
func (c *picking) same(t *rapid.T) {
	parts := initialParts(c.specs)
	_, dense0 := rowsOf(parts[0])
	_, dense3 := rowsOf(parts[3])
	initial := map[int]map[perdure.RowID]string{0: dense0, 3: dense3}
	parts = blankParts(c.specs)
	l, err := RestoreRows(ckpt(c.fsys), pickingJob, 3, c.files, parts)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range parts {
		ids, rows := rowsOf(p)
		want := map[perdure.RowID]savedRow{}
		for id, row := range initial[i] {
			want[id] = savedRow{-1, row}
		}
		for id, row := range c.saved[i] {
			want[id] = row
		}
		if len(ids) != len(want) || len(rows) != len(want) || len(l.FileIndex[i]) != len(want) {
			t.Fatalf("table %s: %d rows, origin known for %d, want %d", p.Spec.Name, len(ids), len(l.FileIndex[i]),
				len(want))
		}
		for at, id := range ids {
			if w, ok := want[id]; !ok || rows[id] != w.bytes || int(l.FileIndex[i][at]) != w.file {
				t.Fatalf("table %s, row %d from file %d (expected: %t): % x\nwant % x from file %d", p.Spec.Name, id,
					l.FileIndex[i][at], ok, rows[id], w.bytes, w.file)
			}
			if p.Spec.Sparse { // check that the index finds it
				if err := p.ReadRows(make([]float32, p.Spec.Dim), 0, []perdure.RowID{id}, 1); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if len(l.Segments) != len(c.files) {
		t.Fatalf("%d segments of %d files", len(l.Segments), len(c.files))
	}
	for i, s := range l.Segments {
		if s.Number != uint64(i+1) || s.Seq != 10*s.Number || len(s.Applied) != 2 || s.Applied[1] != s.Cut+1 ||
			string(s.States[0]) != fmt.Sprint(s.Number) || s.States[1] != nil {
			t.Fatalf("segment %d: %+v", i, s)
		}
	}
}

// TestRestoreRows: each restored row has the value saved last, bit for bit, or else its initial value. It covers dense
// rows, sparse rows and evicted rows, with the state of their rules.
func TestRestoreRows(t *testing.T) {
	native := littleEndian
	defer func() { littleEndian = native }()
	rapid.Check(t, func(t *rapid.T) {
		littleEndian = native
		c := newPicking(t)
		c.same(t)
		for range rapid.IntRange(1, 5).Draw(t, "saves") {
			for range rapid.IntRange(0, 3).Draw(t, "clocks") {
				c.train(t)
			}
			c.save(t)
		}
		littleEndian = rapid.Bool().Draw(t, "read by cast") && native
		c.same(t)
	})
}

package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/table"
)

// streamOf streams rows of an image, as a table's snapshot does.
func streamOf(spec perdure.TableSpec, img table.Image, runs ...table.Run) *Stream {
	var columnsOf [][]byte
	for _, c := range columns(spec) {
		var b []byte
		all := bytes.Join(c.bytesOf(img), nil)
		for _, r := range runs {
			b = append(b, all[int64(r.First)*c.rowBytes:][:int64(r.Rows)*c.rowBytes]...)
		}
		if !littleEndian {
			toLittleEndian(b, c.word)
		}
		columnsOf = append(columnsOf, b)
	}
	next := func() ([]byte, error) {
		for len(columnsOf[0]) == 0 {
			columnsOf = columnsOf[1:]
		}
		n := min(len(columnsOf[0]), 24)
		b := columnsOf[0][:n]
		columnsOf[0] = columnsOf[0][n:]
		return b, nil
	}
	return &Stream{Rows: int64(img.Rows), Runs: runs, Next: next}
}

// following returns a segment that follows another one. It has one row of the first table and most rows of the second
// sparse one.
func following(f FileRef) *Segment {
	s := testSegment()
	s.Cut, s.Seq, s.Follows = 60, 180, &f
	runs := [][]table.Run{{{First: 1, Rows: 1}}, nil, {{Rows: 1}, {First: 2, Rows: 1}}}
	for i := range s.Tables {
		t := &s.Tables[i]
		t.Stream, t.Image = streamOf(t.Spec, t.Image, runs[i]...), table.Image{}
	}
	s.Tables[0].Stream = streamOf(s.Tables[0].Spec, dense(3, 0, 0, 0, 7, 8, 9), runs[0]...)
	return s
}

func TestFollowingSegmentGolden(t *testing.T) {
	fsys := newFolder(t)
	base := testSegment()
	base.Tables[0].Image = dense(3, 1, 2, 3, 4, 5, 6)
	first, err := WriteSegment(ckpt(fsys), base)
	must(t, err)
	ref, err := WriteSegment(ckpt(fsys), following(first.Self()))
	must(t, err)
	b, err := fsys.ReadFile("ckpt/" + ref.File)
	must(t, err)
	golden(t, "testdata/segment-follower.golden", b)
	if sum := sumOf(b); ref.Bytes != int64(len(b)) || ref.CRC != sum ||
		binary.LittleEndian.Uint16(b[10:]) != kindIncremental {
		t.Errorf("%+v of a file of %d bytes, checksum %08x", ref, len(b), sum)
	}

	ref.Base = []FileRef{first.Self()}
	m := Manifest{Job: testJob(), Generation: 2, Cut: 60}
	s, err := m.restore(ckpt(fsys), ref, nil, false)
	must(t, err)
	want := following(first.Self())
	want.Follows = nil
	for i, t := range testSegment().Tables {
		want.Tables[i] = t
	}
	want.Tables[0].Image = dense(3, 1, 2, 3, 7, 8, 9)
	if !sameSegment(s, want) {
		t.Errorf("restored %+v", s)
	}
}

// course is a job of one shard that is saved repeatedly.
type course struct {
	fsys   *disk.Memory
	parts  []*table.Part
	tables []perdure.TableSpec
	base   []FileRef
	cut    perdure.Clock
}

func courseSpecs() []perdure.TableSpec {
	steady := testSparse("f", 2)
	steady.Evict = 0
	evicting := testSparse("e", 1)
	evicting.Evict = 4
	return []perdure.TableSpec{testTable("w", 3000, 2), evicting, steady}
}

func (c *course) addTable() {
	spec := courseSpecs()[len(c.parts)]
	c.tables = append(c.tables, spec)
	c.parts = append(c.parts, table.New(spec, perdure.TableID(len(c.parts)), 1, 0, int(spec.Rows)))
}

// train changes some rows.
func (c *course) train(t *rapid.T) {
	for _, p := range c.parts {
		n := rapid.IntRange(0, 20).Draw(t, "rows")
		ids, delta := make([]perdure.RowID, n), make([]float32, n*p.Spec.Dim)
		for i := range ids {
			ids[i] = perdure.RowID(rapid.IntRange(0, 2999).Draw(t, "row"))
			delta[i] = 1
		}
		if err := p.ApplyRows(0, ids, n, delta, c.cut); err != nil {
			t.Fatal(err)
		}
		p.Evict(c.cut, nil)
	}
}

// save writes and publishes the next checkpoint.
func (c *course) save(all bool) error {
	c.cut++
	if all {
		c.base = nil
	}
	job := testJob()
	job.Servers, job.Shards = 1, 1
	seg := &Segment{
		Job: job.ID, Generation: 1, Epoch: 1, Cut: c.cut, Seq: uint64(c.cut),
		Applied: []perdure.Clock{c.cut, c.cut, c.cut},
	}
	if n := len(c.base); n > 0 {
		seg.Follows = &c.base[n-1]
	}
	for _, p := range c.parts {
		rows := p.SnapshotChanged(all)
		defer rows.Close()
		room := make([]byte, 1000)
		seg.Tables = append(seg.Tables, TableRows{Spec: p.Spec, Stream: &Stream{
			Rows: int64(rows.Rows()), Runs: rows.Runs(),
			Next: func() ([]byte, error) {
				b, _ := rows.Next(len(room), func(int) []byte { return room })
				return b, nil
			},
		}})
	}
	ref, err := WriteSegment(ckpt(c.fsys), seg)
	if err != nil {
		return err
	}
	ref.Base = slices.Clone(c.base)
	c.base = append(c.base, ref.Self())
	m := Manifest{Job: job, Generation: 1, Cut: c.cut, Tables: c.tables, Segments: []SegmentRef{ref}}
	if err := Publish(ckpt(c.fsys), m); err != nil {
		return err
	}
	return Prune(ckpt(c.fsys), m, 1)
}

// same compares the restored rows with the job's.
func (c *course) same(t *rapid.T) {
	m, err := Latest(ckpt(c.fsys))
	if err != nil {
		t.Fatal(err)
	}
	s, err := Restore(ckpt(c.fsys), m, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range c.parts {
		if !sameImage(s.Tables[i].Image, p.Image()) {
			t.Fatalf("table %s at cut %d differs from the job's", p.Spec.Name, c.cut)
		}
	}
	if s.Cut != c.cut || s.Follows != nil || len(s.Tables) != len(c.parts) {
		t.Fatalf("restored cut %d with %d tables, want %d with %d", s.Cut, len(s.Tables), c.cut, len(c.parts))
	}
	if err := Verify(ckpt(c.fsys), m); err != nil {
		t.Fatal(err)
	}
	rows, wrong, whole := NewAudit(ckpt(c.fsys)).Checkpoint(m)
	if !whole || len(wrong) > 0 {
		t.Fatalf("whole: %t; wrong: %v", whole, wrong)
	}
	for i, p := range c.parts {
		if rows[i] != int64(p.Stored()) {
			t.Fatalf("table %s has %d rows, but %d were read", p.Spec.Name, p.Stored(), rows[i])
		}
	}
	names, err := c.fsys.List("ckpt")
	if err != nil || len(names) != len(c.base)+1 {
		t.Fatalf("the disk holds %v, want a manifest and %d segments (%v)", names, len(c.base), err)
	}
}

// TestFollowingSegments: a segment and its followers restore to the saved state, while rows change and are stored and
// evicted and tables are added.
func TestFollowingSegments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fsys := disk.NewMemory()
		if err := fsys.MkdirAll("ckpt"); err != nil {
			t.Fatal(err)
		}
		c := &course{fsys: fsys}
		c.addTable()
		for range rapid.IntRange(1, 6).Draw(t, "checkpoints") {
			if len(c.parts) < 3 && rapid.Bool().Draw(t, "one table more") {
				c.addTable()
			}
			c.train(t)
			if err := c.save(c.cut == 0 || rapid.IntRange(0, 4).Draw(t, "all") == 0); err != nil {
				t.Fatal(err)
			}
			c.same(t)
		}
	})
}

// trained returns a course with three checkpoints, each following the previous one.
func trained(t *testing.T) *course {
	t.Helper()
	c := &course{fsys: newFolder(t)}
	c.addTable()
	c.addTable()
	for i := range 3 {
		must(t, c.parts[0].ApplyRows(perdure.RowID(1000*i), nil, 1, []float32{1, 2}, c.cut))
		must(t, c.parts[1].ApplyRows(0, []perdure.RowID{perdure.RowID(i)}, 1, []float32{1}, c.cut))
		must(t, c.save(i == 0))
	}
	return c
}

// TestFollowingSegmentsRefuseEveryChange: readers reject any checkpoint file with a changed byte, a truncated one or a
// missing one, and name it.
func TestFollowingSegmentsRefuseEveryChange(t *testing.T) {
	c := trained(t)
	m, err := Latest(ckpt(c.fsys))
	must(t, err)
	must(t, Verify(ckpt(c.fsys), m))
	for _, f := range c.base {
		name := "ckpt/" + f.File
		good, err := c.fsys.ReadFile(name)
		must(t, err)
		refused := func(what string, i int, b []byte) {
			t.Helper()
			overwrite(t, c.fsys, name, b)
			_, restored := Restore(ckpt(c.fsys), m, 0, nil)
			for _, err := range []error{Verify(ckpt(c.fsys), m), restored} {
				if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrOtherVersion) ||
					!strings.Contains(err.Error(), f.File) || strings.Contains(err.Error(), "\n") {
					t.Fatalf("%s: %s %d gives %v", f.File, what, i, err)
				}
			}
			_, wrong, whole := NewAudit(ckpt(c.fsys)).Checkpoint(m)
			if whole || len(wrong) != 1 || !strings.HasPrefix(wrong[0].String(), f.File+", ") ||
				strings.Contains(wrong[0].String(), "\n") {
				t.Fatalf("%s: %s %d: whole %t, defects %v", f.File, what, i, whole, wrong)
			}
		}
		step := max(1, len(good)/700) // the first has 24 KB
		for i := 0; i < len(good); i += step {
			refused("truncated to", i, good[:i])
			b := bytes.Clone(good)
			b[i] ^= 1 << (i % 8)
			refused("flipped a bit of byte", i, b)
		}
		must(t, c.fsys.Remove(name))
		wantErr(t, Verify(ckpt(c.fsys), m), ErrCorrupt, f.File+" is missing")
		wantErr(t, Publish(ckpt(c.fsys), m), ErrCorrupt, f.File+" is missing")
		overwrite(t, c.fsys, name, good)
	}
	must(t, Verify(ckpt(c.fsys), m))
}

// TestWrongBase: a segment is applied only on top of the segment that it was written to follow.
func TestWrongBase(t *testing.T) {
	c := trained(t)
	m, err := Latest(ckpt(c.fsys))
	must(t, err)
	ref := &m.Segments[0]
	ref.Base = ref.Base[:1]
	wantErr(t, Verify(ckpt(c.fsys), m), ErrCorrupt, ref.File+": damaged: it does not follow the segment that")
	ref.Base = nil
	wantErr(t, Verify(ckpt(c.fsys), m), ErrCorrupt, ref.File+": damaged:")
	ref.Base = []FileRef{c.base[1], c.base[0]}
	wantErr(t, Verify(ckpt(c.fsys), m), ErrCorrupt,
		"is not an earlier segment of shard 0; a segment at generation 1, cut 1 cannot follow it")
	_, err = readSegment(c.fsys, "ckpt/"+c.base[2].File, nil)
	must(t, err)

	// A row is in no segment: the last one follows a longer table than there was.
	spec := courseSpecs()[2]
	job := testJob()
	job.Servers, job.Shards = 1, 1
	first, err := WriteSegment(ckpt(c.fsys),
		&Segment{Job: job.ID, Cut: 1, Tables: []TableRows{{Spec: spec, Image: newImage(spec, 2)}}})
	must(t, err)
	f := first.Self()
	last, err := WriteSegment(ckpt(c.fsys), &Segment{Job: job.ID, Cut: 2, Follows: &f, Tables: []TableRows{{
		Spec: spec, Stream: streamOf(spec, newImage(spec, 4), table.Run{First: 3, Rows: 1}),
	}}})
	must(t, err)
	last.Base = []FileRef{f}
	gap := Manifest{Job: job, Cut: 2, Segments: []SegmentRef{last}}
	_, err = Restore(ckpt(c.fsys), gap, 0, nil)
	wantErr(t, err, ErrCorrupt, last.File+": damaged: table f has 4 rows, but row 2 is in no segment")
	_, wrong, whole := NewAudit(ckpt(c.fsys)).Checkpoint(gap)
	if whole || len(wrong) != 1 || wrong[0].String() != last.File+": table f has 4 rows, but row 2 is in no segment" {
		t.Errorf("whole: %t; wrong: %v", whole, wrong)
	}
}

// TestFollowingCrashesAtEveryStep: a power failure at any step of writing, publishing and pruning leaves the old
// checkpoint or the new one complete. This also holds if the new one needs files of the old one, and if it replaces it.
func TestFollowingCrashesAtEveryStep(t *testing.T) {
	for _, all := range []bool{false, true} {
		for step := 1; ; step++ {
			finished := false
			for seed := range uint64(8) {
				c := trained(t)
				must(t, c.parts[0].ApplyRows(7, nil, 1, []float32{1, 2}, c.cut))
				before := c.cut
				c.fsys.FailAfter(step)
				err := c.save(all)
				if err != nil && !errors.Is(err, disk.ErrCrashed) {
					t.Fatal(err)
				}
				finished = err == nil
				c.fsys.Crash(rand.New(rand.NewPCG(seed, uint64(step))))
				m, err := Latest(ckpt(c.fsys))
				if err == nil {
					err = Verify(ckpt(c.fsys), m)
				}
				if err != nil || m.Cut != before && m.Cut != before+1 || finished && m.Cut != before+1 {
					t.Fatalf("all %t, step %d, seed %d: cut %d, %v", all, step, seed, m.Cut, err)
				}
			}
			if finished {
				break
			}
		}
	}
}

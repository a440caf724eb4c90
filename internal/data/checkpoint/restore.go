package checkpoint

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
)

// check returns an error unless f is a valid predecessor for a segment of that kind.
func (f *FileRef) check(s *Segment, kind uint16) error {
	if follows := kind == kindIncremental; follows != (f != nil) {
		return corrupt("a segment of kind %d is not valid here (follows another segment: %t)", kind, f != nil)
	}
	if f == nil {
		return nil
	}
	if k, shard, ok := parseSegmentName(f.File); !ok || shard != s.Shard || k.compare(key{s.Generation, s.Cut}) >= 0 {
		return corrupt("it follows %q, which is not an earlier segment of shard %d", f.File, s.Shard)
	}
	return nil
}

// runs reads the positions of the rows of table i; a segment of all rows does not list them.
func (r *checksumReader) runs(i int, t metaTable) ([]table.Run, error) {
	if r.kind == kindFull {
		return allRows(t.Rows), nil
	}
	kind, index, n, err := r.sectionHead()
	switch {
	case err != nil:
		return nil, err
	case kind != sectionRuns || index != uint32(i):
		return nil, unexpected(kind, index)
	case n%16 != 0:
		return nil, corrupt("table %s has %d bytes of runs, not a multiple of 16", t.Spec.Name, n)
	}
	b, err := r.bytes(n)
	if err == nil {
		err = r.sectionEnd(n)
	}
	if err != nil {
		return nil, err
	}
	var out []table.Run
	end := int64(0)
	for ; len(b) > 0; b = b[16:] {
		first, rows := int64(binary.LittleEndian.Uint64(b)), int64(binary.LittleEndian.Uint64(b[8:]))
		if first < end || rows < 1 || first > t.Rows || rows > t.Rows-first {
			return nil, corrupt(
				"table %s has an invalid run of %d rows from position %d (must start at %d or later; %d rows in all)",
				t.Spec.Name, rows, first, end, t.Rows)
		}
		out, end = append(out, table.Run{First: int(first), Rows: int(rows)}), first+rows
	}
	one := t.Spec.Sparse || t.Spec.Whole && len(out) > 0 // of a whole table, all rows are selected or none
	if r.kind == kindSelected && one && !slices.Equal(out, allRows(t.Rows)) {
		return nil, corrupt("table %s has %d of %d selected rows in %d runs; expected one run of all rows", t.Spec.Name,
			countRows(out), t.Rows, len(out))
	}
	return out, nil
}

// Restore reads one shard of a checkpoint, from the segment that the manifest names and those it builds on, and checks
// that each is the one that the manifest means. The tables are read directly into the memory that dst returns; the
// segment refers to that memory. Restore calls dst only after checking that the files are long enough. After an error,
// the contents of that memory are undefined.
func Restore(in store.Store, m Manifest, shard perdure.ShardID, dst Dest) (*Segment, error) {
	for _, ref := range m.Segments {
		if ref.Shard == shard {
			return m.restore(in, ref, dst, false)
		}
	}
	return nil, fmt.Errorf("checkpoint: %s: %w: it does not name a segment of shard %d", m.key().manifest(), ErrCorrupt,
		shard)
}

// restore reads a shard. With look it only verifies the files.
func (m Manifest) restore(in store.Store, ref SegmentRef, dst Dest, look bool) (s *Segment, err error) {
	l := segmentOverlay{dst: dst, verifyOnly: look}
	files := ref.files()
	for _, f := range files {
		l.bytes += f.Bytes
	}
	if l.tables, err = readTables(in, ref.File); err != nil {
		return nil, err
	}
	for i, f := range files {
		var sum uint32
		s, sum, err = readFile(in, f.File, l.sink)
		if err != nil {
			return nil, err
		}
		if err := m.checkFile(ref, i, s, sum); err != nil {
			return nil, fmt.Errorf("checkpoint: segment %s/%s: %w", in, f.File, err)
		}
	}
	for i, img := range l.images {
		s.Tables[i].Image = *img
	}
	s.Follows = nil // it is complete now
	return s, nil
}

// checkFile returns an error unless a segment, read with the given checksum, is the i-th file that the manifest names
// for a shard.
func (m Manifest) checkFile(ref SegmentRef, i int, s *Segment, sum uint32) error {
	files := ref.files()
	k, shard, _ := parseSegmentName(files[i].File)
	switch follows := i > 0; {
	case s.Number > 0:
		return corrupt("it has only selected rows, but %s must name segments of a checkpoint",
			m.key().manifest())
	case s.Job != m.Job.ID:
		return fmt.Errorf("%w: %q, not %q", ErrOtherJob, s.Job, m.Job.ID)
	case s.Shard != shard || (key{s.Generation, s.Cut}) != k || sum != files[i].CRC,
		i == len(files)-1 && s.Seq != ref.Seq:
		return corrupt("it is not the segment that %s names", m.key().manifest())
	case follows != (s.Follows != nil) || follows && *s.Follows != files[i-1]:
		return corrupt("it does not follow the segment that %s names before it", m.key().manifest())
	}
	return nil
}

// segmentOverlay applies a sequence of segments, each on top of its predecessor.
type segmentOverlay struct {
	dst        Dest
	verifyOnly bool           // verify only; fill no memory
	bytes      int64          // of all files
	tables     []metaTable    // of the last segment
	images     []*table.Image // by table; only the tables seen so far
	covered    []int64        // by table: all rows below this position are in some segment
}

// sink directs a segment's table to the memory of the last segment's table.
func (l *segmentOverlay) sink(i int, t metaTable, runs []table.Run) (rowWriter, error) {
	if i >= len(l.tables) || l.tables[i].Spec != t.Spec || l.tables[i].First != t.First {
		return nil, corrupt("table %d is %s, which differs from that table in later segments", i, t.Spec.Name)
	}
	if i == len(l.covered) {
		l.covered = append(l.covered, 0)
	}
	end := min(l.covered[i], t.Rows)
	for _, r := range runs {
		if int64(r.First) <= end {
			end = max(end, int64(r.First+r.Rows))
		}
	}
	if l.covered[i] = end; end != t.Rows {
		return nil, corrupt("table %s has %d rows, but row %d is in no segment", t.Spec.Name, t.Rows, end)
	}
	if l.verifyOnly {
		return nil, nil
	}
	if i == len(l.images) {
		if most := l.bytes / rowBytes(columns(t.Spec)); l.tables[i].Rows > most {
			return nil, corrupt("table %s claims %d rows, but its segments hold at most %d", t.Spec.Name,
				l.tables[i].Rows, most)
		}
		img, err := l.dst.image(l.tables[i])
		if err != nil {
			return nil, err
		}
		l.images = append(l.images, &img)
	}
	return imageWriter{l.images[i]}, nil
}

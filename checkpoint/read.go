package checkpoint

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/disk"
)

// Dest returns where a table's rows first, first+1, … first+rows-1 are to be
// read to: a slice of rows × spec.Dim values. Its error ends the reading. A nil
// Dest means newly made slices.
type Dest func(spec perdure.TableSpec, first, rows int64) ([]float32, error)

// ReadSegment reads and checks a segment file. The values go straight into the
// slices that dst returns, and the segment's tables refer to them; after an
// error what those slices hold is undefined.
func ReadSegment(fsys disk.FS, file string, dst Dest) (*Segment, error) {
	s, _, err := readFile(fsys, file, dst.keep)
	return s, err
}

// A sink takes the n bytes of values of a table, which it asks fill for.
type sink func(t metaTable, n int64, fill func([]byte) error) (TableRows, error)

// keep is the sink that reads into what dst returns.
func (dst Dest) keep(t metaTable, n int64, fill func([]byte) error) (TableRows, error) {
	count := n / 4
	if dst == nil {
		dst = func(perdure.TableSpec, int64, int64) ([]float32, error) { return make([]float32, count), nil }
	}
	v, err := dst(t.Spec, t.First, t.Rows)
	if err != nil {
		return TableRows{}, err
	}
	if int64(len(v)) != count {
		return TableRows{}, fmt.Errorf("table %s: a destination of %d values for %d", t.Spec.Name, len(v), count)
	}
	return TableRows{Spec: t.Spec, First: t.First, Values: v}, decodeFloats(v, fill)
}

// discard is the sink that only looks.
func discard(t metaTable, n int64, fill func([]byte) error) (TableRows, error) {
	buf := make([]byte, min(n, chunkBytes))
	for ; n > 0; n -= int64(len(buf)) {
		buf = buf[:min(n, chunkBytes)]
		if err := fill(buf); err != nil {
			return TableRows{}, err
		}
	}
	return TableRows{Spec: t.Spec, First: t.First}, nil
}

// readFile also returns the checksum of the whole file.
func readFile(fsys disk.FS, file string, values sink) (*Segment, uint32, error) {
	size, err := disk.Size(fsys, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, fmt.Errorf("checkpoint: segment %s is missing: %w: %w", file, ErrCorrupt, fs.ErrNotExist)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("checkpoint: read segment: %w", err)
	}
	f, err := fsys.Open(file)
	if err != nil {
		return nil, 0, fmt.Errorf("checkpoint: read segment: %w", err)
	}
	r := &sumReader{r: f, left: size}
	s, err := r.segment(values)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, 0, fmt.Errorf("checkpoint: segment %s: %w", file, err)
	}
	return s, r.file, nil
}

// sumReader reads a segment file of known size and keeps the checksums of the
// section and of the file. Nothing is made larger than what is left to read.
type sumReader struct {
	r         io.Reader
	left      int64
	sec, file uint32
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

func (r *sumReader) fill(b []byte) error {
	if int64(len(b)) > r.left {
		return corrupt("truncated: %d bytes are wanted, %d are left", len(b), r.left)
	}
	_, err := io.ReadFull(r.r, b)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return corrupt("truncated while it was read")
	}
	if err != nil {
		return err
	}
	r.left -= int64(len(b))
	r.sec = crc32.Update(r.sec, castagnoli, b)
	r.file = crc32.Update(r.file, castagnoli, b)
	return nil
}

// segment reads a whole file: the header, the meta, and the sections that the
// meta allows.
func (r *sumReader) segment(values sink) (*Segment, error) {
	s, sections, err := r.header()
	if err != nil {
		return nil, err
	}
	m, err := r.meta()
	if err != nil {
		return nil, err
	}
	s.Job, s.Applied = m.Job, m.Applied
	s.States = make([][]byte, len(m.Applied))
	nextSlot := uint32(0)
	for range sections - 1 {
		kind, index, n, err := r.sectionHead()
		if err != nil {
			return nil, err
		}
		switch {
		case kind == sectionState && index >= nextSlot && int(index) < len(s.States) && len(s.Tables) == 0:
			s.States[index], err = r.bytes(n)
			nextSlot = index + 1
		case kind == sectionValues && int(index) == len(s.Tables) && int(index) < len(m.Tables):
			var t TableRows
			t, err = r.table(m.Tables[index], n, values)
			s.Tables = append(s.Tables, t)
		default:
			err = corrupt("an unexpected section of kind %d, index %d", kind, index)
		}
		if err == nil {
			err = r.sectionEnd(n)
		}
		if err != nil {
			return nil, err
		}
	}
	if len(s.Tables) != len(m.Tables) || r.left != 0 {
		return nil, corrupt("it has %d of %d tables, and %d bytes too many", len(s.Tables), len(m.Tables), r.left)
	}
	return s, nil
}

func (r *sumReader) header() (s *Segment, sections uint32, err error) {
	size := r.left
	var h [headerBytes]byte
	if size < headerBytes {
		return nil, 0, corrupt("truncated: %d bytes, its header alone has %d", size, headerBytes)
	}
	if err := r.fill(h[:]); err != nil {
		return nil, 0, err
	}
	le := binary.LittleEndian
	if string(h[:8]) != segmentMagic {
		return nil, 0, corrupt("not a segment: it begins with % x", h[:8])
	}
	if v := le.Uint32(h[8:]); v > SegmentVersion {
		return nil, 0, disk.NewerVersion(uint64(v), SegmentVersion)
	} else if v == 0 {
		return nil, 0, corrupt("format 0")
	}
	want := le.Uint32(h[12:])
	le.PutUint32(h[12:], 0)
	if got := crc32.Checksum(h[:], castagnoli); got != want {
		return nil, 0, corrupt("header checksum mismatch: it says %08x, its bytes give %08x", want, got)
	}
	if n := le.Uint64(h[64:]); n > uint64(size) {
		return nil, 0, corrupt("truncated: %d of %d bytes", size, n)
	} else if n < uint64(size) {
		return nil, 0, corrupt("%d bytes follow its end", uint64(size)-n)
	}
	s = &Segment{
		Generation: perdure.Generation(le.Uint64(h[16:])),
		Epoch:      perdure.Epoch(le.Uint64(h[24:])),
		Cut:        perdure.Clock(le.Uint64(h[32:])),
		Seed:       le.Uint64(h[40:]),
		Seq:        le.Uint64(h[48:]),
		Shard:      perdure.ShardID(le.Uint32(h[56:])),
	}
	sections = le.Uint32(h[60:])
	if s.Shard < 0 || s.Cut < 0 || sections == 0 || le.Uint64(h[72:]) != 0 {
		return nil, 0, corrupt("impossible header: shard %d, cut %d, %d sections", s.Shard, s.Cut, sections)
	}
	return s, sections, nil
}

// sectionHead reads a section's head. Its payload is known to be there.
func (r *sumReader) sectionHead() (kind, index uint32, n int64, err error) {
	r.sec = 0
	var h [sectionBytes]byte
	if err := r.fill(h[:]); err != nil {
		return 0, 0, 0, err
	}
	le := binary.LittleEndian
	kind, index, n = le.Uint32(h[0:]), le.Uint32(h[4:]), int64(le.Uint64(h[8:]))
	if n < 0 || n > r.left {
		return 0, 0, 0, corrupt("section %d announces %d bytes, %d are left", kind, uint64(n), r.left)
	}
	return kind, index, n, nil
}

func (r *sumReader) sectionEnd(n int64) error {
	var b [8]byte
	pad := b[:padding(n)]
	if err := r.fill(pad); err != nil {
		return err
	}
	got := r.sec
	if [8]byte{} != b {
		return corrupt("padding is not zero")
	}
	if err := r.fill(b[:trailerBytes]); err != nil {
		return err
	}
	if want := binary.LittleEndian.Uint32(b[:]); want != got {
		return corrupt("section checksum mismatch: it says %08x, its bytes give %08x", want, got)
	}
	return nil
}

func (r *sumReader) bytes(n int64) ([]byte, error) {
	b := make([]byte, n)
	return b, r.fill(b)
}

func (r *sumReader) meta() (m meta, err error) {
	kind, _, n, err := r.sectionHead()
	if err != nil {
		return m, err
	}
	if kind != sectionMeta {
		return m, corrupt("its first section is of kind %d, not %d", kind, sectionMeta)
	}
	words, err := r.bytes(n)
	if err == nil {
		err = r.sectionEnd(n)
	}
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(words, &m); err != nil {
		return m, corrupt("meta: %v", err)
	}
	for _, t := range m.Tables {
		err := t.Spec.Validate(1)
		if err == nil {
			err = checkRange(t.Spec, t.First, t.Rows)
		}
		if err != nil {
			return m, corrupt("meta: %v", err)
		}
	}
	return m, nil
}

// table reads a section of n bytes of values.
func (r *sumReader) table(t metaTable, n int64, values sink) (TableRows, error) {
	// Validate has bounded Spec.Rows × Dim × 4, and so this product.
	if want := t.Rows * int64(t.Spec.Dim) * 4; n != want {
		return TableRows{}, corrupt("table %s has %d bytes of values, its %d rows need %d", t.Spec.Name, n, t.Rows, want)
	}
	return values(t, n, r.fill)
}

// Restore reads the segment of one shard of a checkpoint, and checks that it is
// the one that the manifest means. See ReadSegment for dst.
func Restore(fsys disk.FS, dir string, m Manifest, shard perdure.ShardID, dst Dest) (*Segment, error) {
	for _, ref := range m.Segments {
		if ref.Shard == shard {
			return m.read(fsys, path.Join(dir, ref.File), ref, dst.keep)
		}
	}
	return nil, fmt.Errorf("checkpoint: %s: %w: it names no segment of shard %d", m.key().manifest(), ErrCorrupt, shard)
}

func (m Manifest) read(fsys disk.FS, file string, ref SegmentRef, values sink) (*Segment, error) {
	s, sum, err := readFile(fsys, file, values)
	if err != nil {
		return nil, err
	}
	switch {
	case s.Job != m.Job.ID:
		err = fmt.Errorf("%w: %q, not %q", ErrOtherJob, s.Job, m.Job.ID)
	case s.Shard != ref.Shard || s.Seq != ref.Seq || s.Generation != m.Generation || s.Cut != m.Cut || sum != ref.CRC:
		err = corrupt("it is not the one that %s names", m.key().manifest())
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint: segment %s: %w", file, err)
	}
	return s, nil
}

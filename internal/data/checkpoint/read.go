package checkpoint

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// Dest returns the memory to read a table's part into: an image of that many rows, in pieces of any length. For a dense
// table these are the rows first, first+1, …, first+rows-1. An error aborts the read. With a nil Dest, the reader
// allocates memory.
type Dest func(spec perdure.TableSpec, first, rows int64) (table.Image, error)

// A sink returns the destination for the given rows of table i; nil means that they are only verified.
type sink func(i int, t metaTable, runs []table.Run) (rowWriter, error)

// rowWriter is a destination for rows of a table.
type rowWriter interface {
	// column reads a payload of n bytes: column i of the table, for the given rows.
	column(r *checksumReader, i int, c column, n int64, runs []table.Run) error
}

// imageWriter stores rows in an image. Rows beyond the end of the image are skipped.
type imageWriter struct{ *table.Image }

// image returns memory for a table.
func (dst Dest) image(t metaTable) (table.Image, error) {
	if dst == nil {
		return newImage(t.Spec, t.Rows), nil
	}
	img, err := dst(t.Spec, t.First, t.Rows)
	if err == nil && int64(img.Rows) != t.Rows {
		err = fmt.Errorf("table %s: the buffer holds %d rows, but %d are needed", t.Spec.Name, img.Rows, t.Rows)
	}
	if err == nil {
		err = checkImage(t.Spec, img)
	}
	return img, err
}

// readFile reads and verifies a segment file and passes its tables to the sink. It also returns the file's checksum,
// over the header and the sections' checksums.
func readFile(in store.Store, file string, into sink) (s *Segment, sum uint32, err error) {
	err = withReader(in, file, func(r *checksumReader) (err error) {
		s, err = r.segment(into)
		sum = r.fileSum
		return err
	})
	return s, sum, err
}

// readTables reads the list of a segment's tables.
func readTables(in store.Store, file string) (tables []metaTable, err error) {
	err = withReader(in, file, func(r *checksumReader) error {
		_, _, err := r.header()
		if err != nil {
			return err
		}
		m, err := r.meta()
		tables = m.Tables
		return err
	})
	return tables, err
}

// withReader opens a segment file, calls read and closes the file.
func withReader(in store.Store, file string, read func(r *checksumReader) error) error {
	f, err := in.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("checkpoint: segment %s/%s is missing: %w: %w", in, file, ErrCorrupt, fs.ErrNotExist)
	}
	if err != nil {
		return fmt.Errorf("checkpoint: read segment: %w", err)
	}
	// Pieces of memory may be small; reads of 64 KiB and more bypass the buffer.
	err = read(&checksumReader{r: bufio.NewReaderSize(f, 64<<10), left: f.Size()})
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("checkpoint: segment %s/%s: %w", in, file, err)
	}
	return nil
}

// checksumReader reads a segment file of known size and maintains the checksums of the section and of the file, as
// checksumWriter does. It never allocates more than the number of bytes left to read.
type checksumReader struct {
	r                   io.Reader
	left                int64
	sectionSum, fileSum uint32
	kind                uint16   // of the segment
	scratch             []byte   // buffer for bytes that are only verified
	pos                 position // current position
	// onDefect, if not nil, receives the error for a section whose checksum is wrong but on which the rest of the file
	// does not depend; reading then continues.
	onDefect func(err error)
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

func (r *checksumReader) fill(b []byte) error {
	if int64(len(b)) > r.left {
		return corrupt("truncated: need %d bytes, %d are left", len(b), r.left)
	}
	_, err := io.ReadFull(r.r, b)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return corrupt("truncated during the read")
	}
	if err != nil {
		return err
	}
	r.left -= int64(len(b))
	r.sectionSum = wire.AddSum(r.sectionSum, b)
	return nil
}

// fillSummed reads a header or a section's checksum.
func (r *checksumReader) fillSummed(b []byte) error {
	if err := r.fill(b); err != nil {
		return err
	}
	r.fileSum = wire.AddSum(r.fileSum, b)
	return nil
}

// segment reads a whole file: the header, the meta, and the sections that the meta describes.
func (r *checksumReader) segment(into sink) (*Segment, error) {
	s, sections, err := r.header()
	if err != nil {
		return nil, err
	}
	m, err := r.meta()
	if err != nil {
		return nil, err
	}
	if err := m.Follows.check(s, r.kind); err != nil {
		return nil, err
	}
	s.Job, s.Applied, s.Follows = m.Job, m.Applied, m.Follows
	s.States = make([][]byte, len(m.Applied))
	states := int64(sections) - 1
	for _, t := range m.Tables {
		states -= int64(len(columns(t.Spec)))
		if r.kind != kindFull {
			states--
		}
	}
	if states < 0 {
		return nil, corrupt("it has %d sections, but its tables need %d more", sections, -states)
	}
	if err := r.states(s.States, states); err != nil {
		return nil, err
	}
	for i, t := range m.Tables {
		rows, err := r.table(i, t, into)
		if err != nil {
			return nil, err
		}
		s.Tables = append(s.Tables, rows)
	}
	if r.left != 0 {
		return nil, corrupt("it has %d extra bytes at its end", r.left)
	}
	return s, nil
}

// states reads the given number of slot states.
func (r *checksumReader) states(into [][]byte, sections int64) error {
	next := uint32(0)
	for range sections {
		kind, slot, n, err := r.sectionHead()
		if err != nil {
			return err
		}
		if kind != sectionState || slot < next || int64(slot) >= int64(len(into)) {
			return unexpected(kind, slot)
		}
		next = slot + 1
		if into[slot], err = r.bytes(n); err == nil {
			err = r.sectionEnd(n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func unexpected(kind, index uint32) error {
	return corrupt("unexpected section of kind %d, index %d", kind, index)
}

// table reads the sections of table i.
func (r *checksumReader) table(i int, t metaTable, into sink) (TableRows, error) {
	out := TableRows{Spec: t.Spec, First: t.First}
	cols := columns(t.Spec)
	runs, err := r.runs(i, t)
	if err != nil {
		return out, err
	}
	rows := countRows(runs)
	if most := r.left / rowBytes(cols); rows > most { // so that no product below overflows
		return out, corrupt("table %s claims %d rows, but the rest of the file holds at most %d", t.Spec.Name, rows,
			most)
	}
	to, err := into(i, t, runs)
	if err != nil {
		return out, err
	}
	if to == nil {
		to = discardRows{}
	}
	for k, c := range cols {
		kind, index, n, err := r.sectionHead()
		switch {
		case err != nil:
			return out, err
		case kind != c.kind || index != c.index(i):
			return out, unexpected(kind, index)
		case n != rows*c.rowBytes:
			return out, corrupt("table %s has %d bytes of %s, but its %d rows need %d", t.Spec.Name, n, c, rows,
				rows*c.rowBytes)
		}
		if err = to.column(r, k, c, n, runs); err == nil {
			err = r.sectionEnd(n)
		}
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

// discardRows discards rows that are only verified.
type discardRows struct{}

func (discardRows) column(r *checksumReader, _ int, _ column, n int64, _ []table.Run) error {
	return r.skip(n)
}

func (img imageWriter) column(r *checksumReader, _ int, c column, _ int64, runs []table.Run) error {
	pieces := cursor{left: c.bytesOf(*img.Image)}
	for _, run := range runs {
		first, rows := int64(run.First), int64(run.Rows)
		there := min(max(int64(img.Rows)-first, 0), rows)
		err := pieces.each(first*c.rowBytes, there*c.rowBytes,
			func(b []byte) error { return decodeNumbers(b, c.word, r.fill) })
		if err == nil {
			err = r.skip((rows - there) * c.rowBytes)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// cursor iterates over memory that consists of several pieces.
type cursor struct {
	left [][]byte
	at   int64 // offset of the first remaining piece
}

// each passes n bytes, starting at offset from, to f. Offsets must not decrease between calls.
func (c *cursor) each(from, n int64, f func([]byte) error) error {
	for n > 0 {
		size := int64(len(c.left[0]))
		if skip := from - c.at; skip < size {
			b := c.left[0][skip:min(skip+n, size)]
			if err := f(b); err != nil {
				return err
			}
			from, n = from+int64(len(b)), n-int64(len(b))
		}
		if from >= c.at+size {
			c.left, c.at = c.left[1:], c.at+size
		}
	}
	return nil
}

func (r *checksumReader) skip(n int64) error {
	for n > 0 {
		b, err := r.chunk(n)
		if err != nil {
			return err
		}
		n -= int64(len(b))
	}
	return nil
}

// chunk reads the next bytes of n, up to chunkBytes. They are valid until the next call.
func (r *checksumReader) chunk(n int64) ([]byte, error) {
	n = min(n, chunkBytes)
	if int64(cap(r.scratch)) < n {
		r.scratch = make([]byte, n)
	}
	b := r.scratch[:n]
	return b, r.fill(b)
}

func (r *checksumReader) header() (s *Segment, sections uint32, err error) {
	size := r.left
	var h [headerBytes]byte
	if size < headerBytes {
		return nil, 0, corrupt("truncated: %d bytes, but a header alone has %d", size, headerBytes)
	}
	if err := r.fillSummed(h[:]); err != nil {
		return nil, 0, err
	}
	le := binary.LittleEndian
	if string(h[:8]) != segmentMagic {
		return nil, 0, corrupt("not a segment: it starts with % x", h[:8])
	}
	if err := disk.CheckVersion(uint64(le.Uint16(h[8:])), SegmentVersion); err != nil {
		return nil, 0, err
	}
	r.kind = le.Uint16(h[10:])
	want := le.Uint32(h[12:])
	le.PutUint32(h[12:], 0)
	if got := crc32.Checksum(h[:], castagnoli); got != want {
		return nil, 0, corrupt("header checksum mismatch: recorded %08x, computed %08x", want, got)
	}
	if n := le.Uint64(h[64:]); n > uint64(size) {
		return nil, 0, corrupt("truncated: %d of %d bytes", size, n)
	} else if n < uint64(size) {
		return nil, 0, corrupt("%d extra bytes follow its end", uint64(size)-n)
	}
	s = &Segment{
		Generation: perdure.Generation(le.Uint64(h[16:])),
		Epoch:      perdure.Epoch(le.Uint64(h[24:])),
		Cut:        perdure.Clock(le.Uint64(h[32:])),
		Seed:       le.Uint64(h[40:]),
		Seq:        le.Uint64(h[48:]),
		Shard:      perdure.ShardID(le.Uint32(h[56:])),
		Number:     le.Uint64(h[72:]),
	}
	sections = le.Uint32(h[60:])
	known, chosen := r.kind >= kindFull && r.kind <= kindSelected, r.kind == kindSelected
	if !known || s.Shard < 0 || s.Cut < 0 || sections == 0 || chosen != (s.Number > 0) {
		return nil, 0, corrupt("invalid header: kind %d, shard %d, cut %d, %d sections, number %d", r.kind, s.Shard,
			s.Cut, sections, s.Number)
	}
	return s, sections, nil
}

// sectionHead reads a section's head and checks that the file is long enough for its payload.
func (r *checksumReader) sectionHead() (kind, index uint32, n int64, err error) {
	r.sectionSum, r.pos = 0, position{left: r.left}
	var h [sectionBytes]byte
	if err := r.fill(h[:]); err != nil {
		return 0, 0, 0, err
	}
	le := binary.LittleEndian
	kind, index, n = le.Uint32(h[0:]), le.Uint32(h[4:]), int64(le.Uint64(h[8:]))
	if n < 0 || n > r.left {
		return 0, 0, 0, corrupt("section of kind %d claims %d bytes, but %d are left", kind, uint64(n), r.left)
	}
	r.pos = position{r.pos.left, kind, index}
	return kind, index, n, nil
}

func (r *checksumReader) sectionEnd(n int64) error {
	var b [8]byte
	pad := b[:padding(n)]
	if err := r.fill(pad); err != nil {
		return err
	}
	got := r.sectionSum
	if [8]byte{} != b {
		return corrupt("padding is not zero")
	}
	if err := r.fillSummed(b[:trailerBytes]); err != nil {
		return err
	}
	if want := binary.LittleEndian.Uint32(b[:]); want != got {
		err := corrupt("section checksum mismatch: recorded %08x, computed %08x", want, got)
		if r.onDefect == nil || !r.pos.skippable() {
			return err
		}
		r.onDefect(err)
	}
	return nil
}

func (r *checksumReader) bytes(n int64) ([]byte, error) {
	b := make([]byte, n)
	return b, r.fill(b)
}

func (r *checksumReader) meta() (m meta, err error) {
	kind, index, n, err := r.sectionHead()
	if err != nil {
		return m, err
	}
	if kind != sectionMeta || index != 0 {
		return m, unexpected(kind, index)
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
	if err := m.check(); err != nil {
		return m, corrupt("meta: %v", err)
	}
	return m, nil
}

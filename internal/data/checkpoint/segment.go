package checkpoint

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"unicode/utf8"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// SegmentVersion is the version of the segment format.
const SegmentVersion = 1

// The kinds of segments: all rows, the rows changed since another segment, and selected rows.
const (
	kindFull        = 1
	kindIncremental = 2
	kindSelected    = 3
)

func (s *Segment) kind() uint16 {
	switch {
	case s.Number > 0:
		return kindSelected
	case s.Follows != nil:
		return kindIncremental
	}
	return kindFull
}

// A segment file is a header of 80 bytes and then sections, little-endian.
//
//	 0      8     magic "PERDSEGM"
//	 8      2     version of this format (1)
//	10      2     kind: 1 all rows; 2 changed rows, follows another segment; 3 selected rows
//	12      4     CRC-32C of the header, with these 4 bytes zero
//	16      8     generation
//	24      8     epoch of the shard
//	32      8     cut
//	40      8     seed of the initialisers
//	48      8     seq
//	56      4     shard
//	60      4     number of sections
//	64      8     bytes of the whole file
//	72      8     kind 3: number, from 1; else zero
//
// A section:
//
//	 0      4     kind
//	 4      4     index
//	 8      8     payload bytes n
//	16      n     payload
//	16+n    p     zeros, so that the section ends at a multiple of 8
//	16+n+p  4     CRC-32C of the section up to here
//
// The sections, in this order:
//
//	kind 1  index 0      meta: JSON, see the type meta
//	kind 2  index slot   the slot's saved state, as saved; slots ascending,
//	                     slots without a state have no section
//
// and then for each table of the meta in turn, one number after another in the order of the rows:
//
//	kind 7  index table  segments of kinds 2 and 3: positions of the rows: for each run of
//	                     rows, in order and without overlap, the position of its first row and
//	                     the number of rows, uint64 each. Kind 3, sparse tables: one run
//	                     from 0 with all rows; the ids identify them
//	kind 4  index table  sparse tables: the rows' ids, uint64
//	kind 5  index table  tables that evict: the clock of each row's last update,
//	                     uint32
//	kind 3  index table  the rows: float32, row by row
//	kind 6  index table·256+plane
//	                     planes 1, 2, … of the rule's state: float32; per row either
//	                     as many as the row has values, or 1
//
// The table's spec in the meta determines which sections it has; the number of rows, or of rows in the runs,
// determines their sizes. A reader rejects everything else: skipping unknown sections would silently lose state.

const (
	segmentMagic   = "PERDSEGM"
	headerBytes    = 80
	sectionBytes   = 16
	trailerBytes   = 4
	sectionMeta    = 1
	sectionState   = 2
	sectionValues  = 3
	sectionIDs     = 4
	sectionTouched = 5
	sectionPlane   = 6
	sectionRuns    = 7
	// planeBits is the number of low bits of a section's index that hold the plane.
	planeBits = 8
	maxTables = 1 << (32 - planeBits)
)

// meta is a segment's description, stored as JSON.
type meta struct {
	Job     string          `json:"job"`
	Applied []perdure.Clock `json:"applied"` // per slot
	Tables  []metaTable     `json:"tables"`
	Follows *FileRef        `json:"follows,omitempty"` // kind 2
}

type metaTable struct {
	Spec  perdure.TableSpec `json:"spec"`
	First int64             `json:"first"` // dense: the first row; sparse: 0
	Rows  int64             `json:"rows"`  // in the shard
}

// check returns an error for a meta that every reader would reject.
func (m meta) check() error {
	if len(m.Tables) > maxTables {
		return fmt.Errorf("too many tables: %d; a segment has at most %d", len(m.Tables), maxTables)
	}
	for _, t := range m.Tables {
		if err := t.check(); err != nil {
			return err
		}
	}
	return nil
}

func (t metaTable) check() error {
	if err := t.Spec.Requested().Validate(1); err != nil { // the number of shards is not known here
		return err
	}
	switch {
	case t.Spec.Sparse && (t.First != 0 || t.Rows < 0):
		return fmt.Errorf("sparse table %s: invalid range of %d rows from row %d", t.Spec.Name, t.Rows, t.First)
	case !t.Spec.Sparse && (t.First < 0 || t.Rows < 0 || t.First > t.Spec.Rows || t.Rows > t.Spec.Rows-t.First):
		return fmt.Errorf("table %s: range of %d rows from row %d exceeds its %d rows", t.Spec.Name, t.Rows,
			t.First, t.Spec.Rows)
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// padding returns the number of zero bytes after a payload of n bytes.
func padding(n int64) int64 { return -(n + trailerBytes) & 7 }

// sectionSize returns the size of a section with a payload of n bytes.
func sectionSize(n int64) int64 { return sectionBytes + n + padding(n) + trailerBytes }

// section is one section to write: either memory that holds numbers of word bytes each, or a stream.
type section struct {
	kind, index uint32
	bytes       int64
	word        int
	memory      [][]byte
	stream      *Stream
}

func bytesSection(kind, index uint32, b []byte) section {
	return section{kind: kind, index: index, bytes: int64(len(b)), word: 1, memory: [][]byte{b}}
}

// section returns the section of the column for table number t.
func (c column) section(t int, rows *TableRows) section {
	s := section{
		kind: c.kind, index: c.index(t), bytes: countRows(rows.runs()) * c.rowBytes, word: c.word,
		stream: rows.Stream,
	}
	if s.stream == nil {
		s.memory = c.bytesOf(rows.Image)
	}
	return s
}

// meta returns the table's entry in the segment's meta. For a sparse table of a segment of selected rows, Rows counts
// only those.
func (t *TableRows) meta(chosen bool) metaTable {
	m := metaTable{Spec: t.Spec, First: t.First, Rows: t.numRows()}
	if chosen && t.Spec.Sparse {
		m.Rows = countRows(t.runs())
	}
	return m
}

// storedRuns returns the positions of the written rows as the segment records them.
func (t *TableRows) storedRuns(chosen bool) []table.Run {
	if chosen && t.Spec.Sparse {
		return allRows(countRows(t.runs()))
	}
	return t.runs()
}

// runs returns the positions of the rows to write.
func (t *TableRows) runs() []table.Run {
	if t.Stream != nil {
		return t.Stream.Runs
	}
	return allRows(int64(t.Image.Rows))
}

// allRows returns the runs that cover n rows.
func allRows(n int64) []table.Run {
	if n == 0 {
		return nil
	}
	return []table.Run{{Rows: int(n)}}
}

func countRows(runs []table.Run) (n int64) {
	for _, r := range runs {
		n += int64(r.Rows)
	}
	return n
}

// encodeRuns returns the payload of a runs section.
func encodeRuns(runs []table.Run) (b []byte) {
	for _, r := range runs {
		b = binary.LittleEndian.AppendUint64(b, uint64(r.First))
		b = binary.LittleEndian.AppendUint64(b, uint64(r.Rows))
	}
	return b
}

// numRows returns the number of rows in the shard.
func (t *TableRows) numRows() int64 {
	if t.Stream != nil {
		return t.Stream.Rows
	}
	return int64(t.Image.Rows)
}

// WriteSegment writes the segment to a store, durably and atomically, and returns the reference for a manifest. It
// streams the rows directly from the memory that holds them.
func WriteSegment(in store.Store, s *Segment) (SegmentRef, error) {
	name := s.fileName()
	sections, err := s.sections()
	if err != nil {
		return SegmentRef{}, fmt.Errorf("checkpoint: segment %s: %w", name, err)
	}
	var w *checksumWriter
	size := int64(0)
	err = in.Put(name, func(file io.Writer) (err error) {
		w = &checksumWriter{w: file}
		size, err = s.write(w, sections)
		return err
	})
	if err != nil {
		return SegmentRef{}, fmt.Errorf("checkpoint: write segment: %w", err)
	}
	ref := SegmentRef{File: name, Bytes: size, CRC: w.fileSum, Shard: s.Shard, Seq: s.Seq}
	for _, f := range slotstate.Files(s.States) {
		ref.States = append(ref.States, FileRef(f))
	}
	return ref, nil
}

// fileName returns the name of the segment's file.
func (s *Segment) fileName() string {
	if s.Number > 0 {
		return rowsKey{s.Generation, s.Epoch, s.Number}.segment(s.Shard)
	}
	return key{s.Generation, s.Cut}.segment(s.Shard, s.Epoch)
}

func (s *Segment) write(w *checksumWriter, sections []section) (size int64, err error) {
	header, size := s.header(sections)
	if err := w.writeSummed(header); err != nil {
		return 0, err
	}
	for _, sec := range sections {
		if err := w.section(sec); err != nil {
			return 0, err
		}
	}
	return size, nil
}

// sections returns the sections after the header. It checks first that a reader will accept them.
func (s *Segment) sections() ([]section, error) {
	if s.Shard < 0 || s.Cut < 0 {
		return nil, fmt.Errorf("invalid shard %d or cut %d; both must be ≥ 0", s.Shard, s.Cut)
	}
	if s.Number > 0 && s.Follows != nil {
		return nil, fmt.Errorf("a segment of selected rows follows %s, which also has only selected rows",
			s.Follows.File)
	}
	if len(s.States) != 0 && len(s.States) != len(s.Applied) {
		return nil, fmt.Errorf("%d saved states for %d slots", len(s.States), len(s.Applied))
	}
	if !utf8.ValidString(s.Job) { // JSON would alter it
		return nil, fmt.Errorf("job ID %q is not UTF-8", s.Job)
	}
	m := meta{Job: s.Job, Applied: s.Applied, Follows: s.Follows}
	for i := range s.Tables {
		m.Tables = append(m.Tables, s.Tables[i].meta(s.Number > 0))
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	words, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	out := []section{bytesSection(sectionMeta, 0, words)}
	for slot, state := range s.States {
		if state != nil {
			out = append(out, bytesSection(sectionState, uint32(slot), state))
		}
	}
	for i := range s.Tables {
		t := &s.Tables[i]
		if t.Stream == nil {
			if err := checkImage(t.Spec, t.Image); err != nil {
				return nil, err
			}
		}
		if s.kind() != kindFull {
			out = append(out, bytesSection(sectionRuns, uint32(i), encodeRuns(t.storedRuns(s.Number > 0))))
		} else if n := countRows(t.runs()); n != t.numRows() {
			return nil, fmt.Errorf("table %s: the segment contains only %d of %d rows, but follows no segment that "+
				"has the others",
				t.Spec.Name, n, t.numRows())
		}
		for _, c := range columns(t.Spec) {
			out = append(out, c.section(i, t))
		}
	}
	return out, nil
}

func (s *Segment) header(sections []section) (h []byte, fileBytes int64) {
	fileBytes = headerBytes
	for _, sec := range sections {
		fileBytes += sectionSize(sec.bytes)
	}
	le := binary.LittleEndian
	h = make([]byte, headerBytes)
	copy(h, segmentMagic)
	le.PutUint16(h[8:], SegmentVersion)
	le.PutUint16(h[10:], s.kind())
	le.PutUint64(h[16:], uint64(s.Generation))
	le.PutUint64(h[24:], uint64(s.Epoch))
	le.PutUint64(h[32:], uint64(s.Cut))
	le.PutUint64(h[40:], s.Seed)
	le.PutUint64(h[48:], s.Seq)
	le.PutUint32(h[56:], uint32(s.Shard))
	le.PutUint32(h[60:], uint32(len(sections)))
	le.PutUint64(h[64:], uint64(fileBytes))
	le.PutUint64(h[72:], s.Number)
	le.PutUint32(h[12:], crc32.Checksum(h, castagnoli))
	return h, fileBytes
}

// checksumWriter writes and maintains two checksums: of the current section, and of the header together with the
// sections' checksums. The latter identifies the file. (A checksum of all bytes would not: the CRC of data that ends
// with its own CRC is a constant.)
type checksumWriter struct {
	w                   io.Writer
	sectionSum, fileSum uint32
}

func (w *checksumWriter) write(b []byte) error {
	w.sectionSum = wire.AddSum(w.sectionSum, b)
	_, err := w.w.Write(b)
	return err
}

// writeSummed writes a header or a section's checksum.
func (w *checksumWriter) writeSummed(b []byte) error {
	w.fileSum = wire.AddSum(w.fileSum, b)
	_, err := w.w.Write(b)
	return err
}

func (w *checksumWriter) section(s section) error {
	n := s.bytes
	var head [sectionBytes]byte
	binary.LittleEndian.PutUint32(head[0:], s.kind)
	binary.LittleEndian.PutUint32(head[4:], s.index)
	binary.LittleEndian.PutUint64(head[8:], uint64(n))
	w.sectionSum = 0
	if err := w.write(head[:]); err != nil {
		return err
	}
	if err := w.content(&s); err != nil {
		return err
	}
	if err := w.write(make([]byte, padding(n))); err != nil {
		return err
	}
	var sum [trailerBytes]byte
	binary.LittleEndian.PutUint32(sum[:], w.sectionSum)
	return w.writeSummed(sum[:])
}

func (w *checksumWriter) content(s *section) error {
	if s.stream == nil {
		for _, piece := range s.memory {
			if err := encodeNumbers(piece, s.word, w.write); err != nil {
				return err
			}
		}
		return nil
	}
	for left := s.bytes; left > 0; {
		piece, err := s.stream.Next()
		if err == nil && (len(piece) == 0 || int64(len(piece)) > left) {
			err = fmt.Errorf("checkpoint: stream returned %d bytes, but only %d bytes of the section are left",
				len(piece), left)
		}
		if err == nil {
			err = w.write(piece)
		}
		if err != nil {
			return err
		}
		left -= int64(len(piece))
	}
	return nil
}

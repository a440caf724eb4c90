package checkpoint

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"path"
	"unicode/utf8"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/disk"
)

// SegmentVersion is the version of the segment format written here.
const SegmentVersion = 1

// A segment file is a header of 80 bytes and then sections, little-endian.
//
//	 0      8     magic "PRDRSEGM"
//	 8      4     version of this format (1)
//	12      4     CRC-32C of the header, with these 4 bytes zero
//	16      8     generation
//	24      8     epoch of the shard
//	32      8     cut
//	40      8     seed of the initialisers
//	48      8     seq
//	56      4     shard
//	60      4     number of sections
//	64      8     bytes of the whole file
//	72      8     zero
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
//	                     slots that saved nothing have none
//	kind 3  index table  the table's rows: float32, row by row; every table
//
// Kind 4 is kept for the state of a table's update rule. A reader refuses kinds
// that it does not know: to skip one would be to lose state in silence.
const (
	segmentMagic  = "PRDRSEGM"
	headerBytes   = 80
	sectionBytes  = 16
	trailerBytes  = 4
	sectionMeta   = 1
	sectionState  = 2
	sectionValues = 3
)

// meta is what a segment says in words.
type meta struct {
	Job     string          `json:"job"`
	Applied []perdure.Clock `json:"applied"` // per slot
	Tables  []metaTable     `json:"tables"`
}

type metaTable struct {
	Spec  perdure.TableSpec `json:"spec"`
	First int64             `json:"first"`
	Rows  int64             `json:"rows"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// padding returns the zeros after a payload of n bytes.
func padding(n int64) int64 { return -(n + trailerBytes) & 7 }

// sectionSize returns the bytes of a section with a payload of n bytes.
func sectionSize(n int64) int64 { return sectionBytes + n + padding(n) + trailerBytes }

// section is one section to write: its payload is bytes, or values.
type section struct {
	kind, index uint32
	bytes       []byte
	values      []float32
}

func (s section) payload() int64 { return int64(len(s.bytes)) + 4*int64(len(s.values)) }

// WriteSegment writes the segment into a folder, durably and whole or not at
// all, and returns how a manifest refers to it. It streams: the values are
// written from the memory they are in.
func WriteSegment(fsys disk.FS, dir string, s *Segment) (SegmentRef, error) {
	name := key{s.Generation, s.Cut}.segment(s.Shard, s.Epoch)
	sections, err := s.sections()
	if err != nil {
		return SegmentRef{}, fmt.Errorf("checkpoint: segment %s: %w", name, err)
	}
	header, size := s.header(sections)
	var w *sumWriter
	err = disk.WriteFile(fsys, path.Join(dir, name), func(file io.Writer) error {
		w = &sumWriter{w: file}
		if err := w.write(header); err != nil {
			return err
		}
		for _, sec := range sections {
			if err := w.section(sec); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return SegmentRef{}, fmt.Errorf("checkpoint: write segment: %w", err)
	}
	return SegmentRef{File: name, Bytes: size, CRC: w.file, Shard: s.Shard, Seq: s.Seq}, nil
}

// sections returns what follows the header, after checking that a reader will
// accept it.
func (s *Segment) sections() ([]section, error) {
	if s.Shard < 0 || s.Cut < 0 {
		return nil, fmt.Errorf("shard %d at cut %d; both must be ≥ 0", s.Shard, s.Cut)
	}
	if len(s.States) != 0 && len(s.States) != len(s.Applied) {
		return nil, fmt.Errorf("%d saved states for %d slots", len(s.States), len(s.Applied))
	}
	if !utf8.ValidString(s.Job) { // JSON would change it
		return nil, fmt.Errorf("job ID %q is not UTF-8", s.Job)
	}
	m := meta{Job: s.Job, Applied: s.Applied}
	for _, t := range s.Tables {
		if err := t.check(); err != nil {
			return nil, err
		}
		m.Tables = append(m.Tables, metaTable{Spec: t.Spec, First: t.First, Rows: t.Rows()})
	}
	words, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	out := []section{{kind: sectionMeta, bytes: words}}
	for slot, state := range s.States {
		if state != nil {
			out = append(out, section{kind: sectionState, index: uint32(slot), bytes: state})
		}
	}
	for i, t := range s.Tables {
		out = append(out, section{kind: sectionValues, index: uint32(i), values: t.Values})
	}
	return out, nil
}

func (t TableRows) check() error {
	if err := t.Spec.Validate(1); err != nil {
		return err
	}
	if len(t.Values)%t.Spec.Dim != 0 {
		return fmt.Errorf("table %s: %d values are not whole rows of %d", t.Spec.Name, len(t.Values), t.Spec.Dim)
	}
	return checkRange(t.Spec, t.First, t.Rows())
}

func checkRange(spec perdure.TableSpec, first, rows int64) error {
	if first < 0 || rows < 0 || first > spec.Rows || rows > spec.Rows-first {
		return fmt.Errorf("table %s: %d rows from row %d, of %d", spec.Name, rows, first, spec.Rows)
	}
	return nil
}

func (s *Segment) header(sections []section) (h []byte, fileBytes int64) {
	fileBytes = headerBytes
	for _, sec := range sections {
		fileBytes += sectionSize(sec.payload())
	}
	le := binary.LittleEndian
	h = make([]byte, headerBytes)
	copy(h, segmentMagic)
	le.PutUint32(h[8:], SegmentVersion)
	le.PutUint64(h[16:], uint64(s.Generation))
	le.PutUint64(h[24:], uint64(s.Epoch))
	le.PutUint64(h[32:], uint64(s.Cut))
	le.PutUint64(h[40:], s.Seed)
	le.PutUint64(h[48:], s.Seq)
	le.PutUint32(h[56:], uint32(s.Shard))
	le.PutUint32(h[60:], uint32(len(sections)))
	le.PutUint64(h[64:], uint64(fileBytes))
	le.PutUint32(h[12:], crc32.Checksum(h, castagnoli))
	return h, fileBytes
}

// sumWriter writes and keeps the checksums of the section and of the file.
type sumWriter struct {
	w         io.Writer
	sec, file uint32
}

func (w *sumWriter) write(b []byte) error {
	w.sec = crc32.Update(w.sec, castagnoli, b)
	w.file = crc32.Update(w.file, castagnoli, b)
	_, err := w.w.Write(b)
	return err
}

func (w *sumWriter) section(s section) error {
	n := s.payload()
	var head [sectionBytes]byte
	binary.LittleEndian.PutUint32(head[0:], s.kind)
	binary.LittleEndian.PutUint32(head[4:], s.index)
	binary.LittleEndian.PutUint64(head[8:], uint64(n))
	w.sec = 0
	if err := w.write(head[:]); err != nil {
		return err
	}
	if err := w.write(s.bytes); err != nil {
		return err
	}
	if err := encodeFloats(s.values, w.write); err != nil {
		return err
	}
	if err := w.write(make([]byte, padding(n))); err != nil {
		return err
	}
	var sum [trailerBytes]byte
	binary.LittleEndian.PutUint32(sum[:], w.sec)
	return w.write(sum[:])
}

package checkpoint

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
)

// A rowsKey orders a shard's segments of chosen rows.
type rowsKey struct {
	generation perdure.Generation
	epoch      perdure.Epoch
	number     uint64
}

func (k rowsKey) compare(other rowsKey) int {
	return cmp.Or(cmp.Compare(k.generation, other.generation), cmp.Compare(k.epoch, other.epoch),
		cmp.Compare(k.number, other.number))
}

func (k rowsKey) segment(shard perdure.ShardID) string {
	return fmt.Sprintf("s%05d-g%06d-e%06d-n%012d.rows", shard, k.generation, k.epoch, k.number)
}

var rowsName = regexp.MustCompile(`^s(\d+)-g(\d+)-e(\d+)-n(\d+)\.rows$`)

// parseRowsName takes the name of a segment of chosen rows apart.
func parseRowsName(name string) (k rowsKey, shard perdure.ShardID, ok bool) {
	m := rowsName.FindStringSubmatch(name)
	if m == nil {
		return k, 0, false
	}
	n, err := strconv.ParseInt(m[1], 10, 32)
	var of [3]uint64
	for i := range of {
		if err == nil {
			of[i], err = strconv.ParseUint(m[2+i], 10, 64)
		}
	}
	k, shard = rowsKey{perdure.Generation(of[0]), perdure.Epoch(of[1]), of[2]}, perdure.ShardID(n)
	return k, shard, err == nil && k.number > 0 && k.segment(shard) == name
}

// checkRowsFiles reports whether files can be those that a shard's running checkpoint is made of:
// segments of chosen rows, the oldest first, none twice.
func checkRowsFiles(shard perdure.ShardID, files []FileRef) error {
	if len(files) > math.MaxInt32 {
		return fmt.Errorf("%d files of shard %d", len(files), shard)
	}
	var last rowsKey
	for i, f := range files {
		k, of, ok := parseRowsName(f.File)
		switch {
		case !ok || of != shard:
			return fmt.Errorf("%q is no segment of chosen rows of shard %d", f.File, shard)
		case i > 0 && k == last:
			return fmt.Errorf("%s is named twice", f.File)
		case i > 0 && k.compare(last) < 0:
			return fmt.Errorf("%s is named after %s, and is older", f.File, files[i-1].File)
		}
		last = k
	}
	return nil
}

// Layers says what rows were restored of.
type Layers struct {
	// Segments are the files', without rows. The last says how far the shard had come, and what
	// its slots had given to be saved.
	Segments []*Segment
	// Of says of each row, by table and position, which file it came from; -1: of none, it has its
	// initial values.
	Of [][]int32
}

// RestoreRows gives each row of a shard's parts what the newest segment of chosen rows has of it, and a dense row that
// is in none its initial values. The files are the oldest first; the parts are as table.Blank makes them, sparse ones
// without rows. Dense rows are read straight into the parts' memory; sparse ones are stored. It begins with the newest
// file, so that each row is laid once. Each file is read in full, and has to be the one that is meant: of the job, of
// the shard, with the checksum that its reference has. After an error what the parts hold is undefined.
func RestoreRows(in store.Store, job string, shard perdure.ShardID, files []FileRef, parts []*table.Part,
) (*Layers, error) {
	if err := checkRowsFiles(shard, files); err != nil {
		return nil, fmt.Errorf("checkpoint: %w: %w", ErrCorrupt, err)
	}
	for _, f := range files { // before anything is laid
		if err := checkSize(in, f); err != nil {
			return nil, fmt.Errorf("checkpoint: %w", err)
		}
	}
	l := &laying{parts: parts, out: &Layers{
		Of: make([][]int32, len(parts)), Segments: make([]*Segment, len(files)),
	}}
	for i, p := range parts {
		l.grow(i, p.Stored())
	}
	for i, f := range slices.Backward(files) {
		l.file = int32(i)
		s, sum, err := readFile(in, f.File, l.sink)
		if err != nil {
			return nil, err
		}
		if err := meansRows(job, shard, f, s, sum); err != nil {
			return nil, fmt.Errorf("checkpoint: segment %s/%s: %w", in, f.File, err)
		}
		s.Tables = nil
		l.out.Segments[i] = s
	}
	for i, p := range parts {
		p.Begin(func(at int) bool { return l.out.Of[i][at] < 0 })
	}
	return l.out, nil
}

// ClockOf returns at which MinClock a shard was when a segment of its chosen rows was begun.
func ClockOf(in store.Store, f FileRef) (clock perdure.Clock, err error) {
	err = withReader(in, f.File, func(r *sumReader) error {
		s, _, err := r.header()
		if err == nil {
			clock = s.Cut
		}
		return err
	})
	return clock, err
}

// Furthest returns how many clocks of any slot some shard of a running checkpoint has. The coordinator hears of a
// shard's clocks later than they are saved, so that may be more than the checkpoint's own clock.
func Furthest(in store.Store, m *Running) (clock perdure.Clock, err error) {
	for _, s := range m.Shards {
		if len(s.Files) == 0 {
			continue
		}
		err := withReader(in, s.Files[len(s.Files)-1].File, func(r *sumReader) error {
			_, _, err := r.header()
			if err != nil {
				return err
			}
			of, err := r.meta()
			for _, c := range of.Applied {
				clock = max(clock, c)
			}
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return clock, nil
}

// meansRows reports whether a segment that was read, with its checksum, is the one that a
// reference means.
func meansRows(job string, shard perdure.ShardID, f FileRef, s *Segment, sum uint32) error {
	k, _, _ := parseRowsName(f.File)
	switch {
	case s.Job != job:
		return fmt.Errorf("%w: %q, not %q", ErrOtherJob, s.Job, job)
	case s.Number == 0:
		return corrupt("it is a checkpoint's segment, and not one of chosen rows")
	case s.Shard != shard || (rowsKey{s.Generation, s.Epoch, s.Number}) != k || sum != f.CRC:
		return corrupt("it is not the one that is meant")
	}
	return nil
}

// laying is a restore of chosen rows.
type laying struct {
	parts []*table.Part
	file  int32 // that is being read
	out   *Layers
}

// grow lets rows up to n of a table be of no file yet.
func (l *laying) grow(i, n int) {
	had := len(l.out.Of[i])
	l.out.Of[i] = append(l.out.Of[i], make([]int32, n-had)...)
	for at := had; at < n; at++ {
		l.out.Of[i][at] = -1
	}
}

// sink gives a table of a segment the part's memory.
func (l *laying) sink(i int, t metaTable, runs []table.Run) (rowsTo, error) {
	switch {
	case i >= len(l.parts):
		return nil, corrupt("table %d is %s, and the job has only %d", i, t.Spec.Name, len(l.parts))
	case l.parts[i].Spec != t.Spec:
		return nil, corrupt("table %d is %s, and the job's %s is another", i, t.Spec.Name, l.parts[i].Spec.Name)
	}
	p := l.parts[i]
	if !t.Spec.Sparse && (t.First != int64(p.First) || t.Rows != int64(p.Rows)) {
		return nil, corrupt("table %s is of %d rows from row %d, and the shard has %d from row %d", t.Spec.Name,
			t.Rows, t.First, p.Rows, p.First)
	}
	to := &partTo{laying: l, i: i, part: p}
	if t.Spec.Sparse {
		return to, nil // the ids say which rows
	}
	return to, to.lay(runs)
}

// partTo is the memory of rows of a part.
type partTo struct {
	*laying
	i    int
	part *table.Part
	runs []table.Run // of its rows, in the order of the file
	laid []bool      // by run: a newer file has these rows
}

// lay notes which rows come from this file, of those that it has: all of a run, or none.
func (to *partTo) lay(runs []table.Run) error {
	to.grow(to.i, to.part.Stored())
	of := to.out.Of[to.i]
	for _, r := range runs {
		for at, end := r.First, r.First+r.Rows; at < end; {
			first, laid := at, of[at] >= 0
			for ; at < end && (of[at] >= 0) == laid; at++ {
				if of[at] == to.file {
					return corrupt("table %s has a row twice", to.part.Spec.Name)
				} else if !laid {
					of[at] = to.file
				}
			}
			to.runs, to.laid = append(to.runs, table.Run{First: first, Rows: at - first}), append(to.laid, laid)
		}
	}
	return nil
}

func (to *partTo) column(r *sumReader, i int, c column, n int64, _ []table.Run) error {
	if c.kind == sectionIDs {
		return to.places(r, n)
	}
	pieces := pieces{r: r, left: n}
	return to.part.Overlay(i, to.runs, func(run int, memory []byte) error {
		switch {
		case to.laid[run]:
			return pieces.each(len(memory), func([]byte) {})
		case len(pieces.have) >= len(memory) && littleEndian:
			pieces.have = pieces.have[copy(memory, pieces.have):]
			return nil
		}
		return decodeNumbers(memory, c.word, pieces.read)
	})
}

// places reads which rows there are, of a sparse table.
func (to *partTo) places(r *sumReader, n int64) (err error) {
	ids, runs := make([]perdure.RowID, 0, min(n, chunkBytes)/8), []table.Run(nil)
	for n > 0 {
		b, err := r.chunk(n)
		if err != nil {
			return err
		}
		n -= int64(len(b))
		ids = ids[:0]
		for ; len(b) > 0; b = b[8:] {
			ids = append(ids, perdure.RowID(binary.LittleEndian.Uint64(b)))
		}
		if runs, err = to.part.Places(ids, runs); err != nil {
			return err
		}
	}
	return to.lay(runs)
}

// pieces reads a payload into memory that lies here and there: long pieces straight, and short
// ones through a chunk, since to read and sum up each would cost a call.
type pieces struct {
	r    *sumReader
	left int64  // of the payload, that is not read yet
	have []byte // that is read, and nowhere yet
}

// straightBytes is how long a piece is that is read straight.
const straightBytes = 4 << 10

func (p *pieces) read(b []byte) (err error) {
	if len(p.have) == 0 && len(b) >= straightBytes {
		p.left -= int64(len(b))
		return p.r.fill(b)
	}
	return p.each(len(b), func(have []byte) { b = b[copy(b, have):] })
}

// each gives f n bytes, a chunk's at a time.
func (p *pieces) each(n int, f func(have []byte)) (err error) {
	for n > 0 {
		if len(p.have) == 0 {
			if p.have, err = p.r.chunk(p.left); err != nil {
				return err
			}
			p.left -= int64(len(p.have))
		}
		had := min(n, len(p.have))
		f(p.have[:had])
		n, p.have = n-had, p.have[had:]
	}
	return nil
}

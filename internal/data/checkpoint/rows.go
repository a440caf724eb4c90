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

// A rowsKey orders the segments of selected rows of one shard.
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

// parseRowsName parses the name of a segment of selected rows.
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

// checkRowsFiles returns an error unless files can make up a shard's running checkpoint: segments of selected rows,
// oldest first, without duplicates.
func checkRowsFiles(shard perdure.ShardID, files []FileRef) error {
	if len(files) > math.MaxInt32 {
		return fmt.Errorf("too many files for shard %[2]d: %[1]d", len(files), shard)
	}
	var last rowsKey
	for i, f := range files {
		k, of, ok := parseRowsName(f.File)
		switch {
		case !ok || of != shard:
			return fmt.Errorf("%q is not a segment of selected rows of shard %d", f.File, shard)
		case i > 0 && k == last:
			return fmt.Errorf("%s is listed twice", f.File)
		case i > 0 && k.compare(last) < 0:
			return fmt.Errorf("%s is listed after %s but is older", f.File, files[i-1].File)
		}
		last = k
	}
	return nil
}

// RowOrigins describes which files the rows were restored from.
type RowOrigins struct {
	// Segments are the segments of the files, without rows. The last one holds the shard's progress and its slot
	// states.
	Segments []*Segment
	// FileIndex is, by table and row position, the index of the file that the row came from; -1 if none has it and it
	// has its initial values.
	FileIndex [][]int32
}

// RestoreRows restores each row of a shard's parts from the newest segment of selected rows that contains it. Dense
// rows that are in no segment get their initial values. files are ordered oldest first; parts are as
// table.NewUninitialized makes them, sparse ones without rows. Dense rows are read directly into the parts' memory;
// sparse rows are inserted. RestoreRows starts with the newest file, so that it writes each row once. Every file is
// read in full and must be the one that is meant: of this job and shard, with the checksum of its reference. After an
// error, the contents of the parts are undefined.
func RestoreRows(in store.Store, job string, shard perdure.ShardID, files []FileRef, parts []*table.Part,
) (*RowOrigins, error) {
	if err := checkRowsFiles(shard, files); err != nil {
		return nil, fmt.Errorf("checkpoint: %w: %w", ErrCorrupt, err)
	}
	for _, f := range files { // before any row is written
		if err := checkSize(in, f); err != nil {
			return nil, fmt.Errorf("checkpoint: %w", err)
		}
	}
	l := &rowRestore{parts: parts, out: &RowOrigins{
		FileIndex: make([][]int32, len(parts)), Segments: make([]*Segment, len(files)),
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
		if err := checkRowsFile(job, shard, f, s, sum); err != nil {
			return nil, fmt.Errorf("checkpoint: segment %s/%s: %w", in, f.File, err)
		}
		s.Tables = nil
		l.out.Segments[i] = s
	}
	for i, p := range parts {
		p.SetInitial(func(at int) bool { return l.out.FileIndex[i][at] < 0 })
	}
	return l.out, nil
}

// SegmentClock returns the MinClock of a shard when it started to write a segment of selected rows.
func SegmentClock(in store.Store, f FileRef) (clock perdure.Clock, err error) {
	err = withReader(in, f.File, func(r *checksumReader) error {
		s, _, err := r.header()
		if err == nil {
			clock = s.Cut
		}
		return err
	})
	return clock, err
}

// MaxClock returns the highest clock count of any slot that some shard of a running checkpoint contains. It may exceed
// the checkpoint's own clock, because the coordinator learns a shard's clocks only after they are saved.
func MaxClock(in store.Store, m *Running) (clock perdure.Clock, err error) {
	for _, s := range m.Shards {
		if len(s.Files) == 0 {
			continue
		}
		err := withReader(in, s.Files[len(s.Files)-1].File, func(r *checksumReader) error {
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

// checkRowsFile returns an error unless a segment, read with the given checksum, is the one that the reference means.
func checkRowsFile(job string, shard perdure.ShardID, f FileRef, s *Segment, sum uint32) error {
	k, _, _ := parseRowsName(f.File)
	switch {
	case s.Job != job:
		return fmt.Errorf("%w: %q, not %q", ErrOtherJob, s.Job, job)
	case s.Number == 0:
		return corrupt("it is a segment of a checkpoint, not one of selected rows")
	case s.Shard != shard || (rowsKey{s.Generation, s.Epoch, s.Number}) != k || sum != f.CRC:
		return corrupt("it is not the segment that the manifest names")
	}
	return nil
}

// rowRestore is a restore of selected rows in progress.
type rowRestore struct {
	parts []*table.Part
	file  int32 // being read
	out   *RowOrigins
}

// grow extends the record of table i to n rows, marking the new ones as not restored yet.
func (l *rowRestore) grow(i, n int) {
	had := len(l.out.FileIndex[i])
	l.out.FileIndex[i] = append(l.out.FileIndex[i], make([]int32, n-had)...)
	for at := had; at < n; at++ {
		l.out.FileIndex[i][at] = -1
	}
}

// sink directs a segment's table to the memory of its part.
func (l *rowRestore) sink(i int, t metaTable, runs []table.Run) (rowWriter, error) {
	switch {
	case i >= len(l.parts):
		return nil, corrupt("table %d is %s, but the job has only %d tables", i, t.Spec.Name, len(l.parts))
	case l.parts[i].Spec != t.Spec:
		return nil, corrupt("table %d is %s, which differs from the job's table %s", i, t.Spec.Name,
			l.parts[i].Spec.Name)
	}
	p := l.parts[i]
	if !t.Spec.Sparse && (t.First != int64(p.First) || t.Rows != int64(p.Rows)) {
		return nil, corrupt("table %s has %d rows from row %d, but the shard has %d from row %d", t.Spec.Name,
			t.Rows, t.First, p.Rows, p.First)
	}
	to := &partWriter{rowRestore: l, i: i, part: p}
	if t.Spec.Sparse {
		return to, nil // the ids identify the rows
	}
	return to, to.markRestored(runs)
}

// partWriter stores rows in a part.
type partWriter struct {
	*rowRestore
	i          int
	part       *table.Part
	runs       []table.Run // of the part's rows, in the order of the file
	superseded []bool      // by run: whether a newer file has restored these rows
}

// markRestored records which of the file's rows are restored from it. It splits the runs so that a newer file has
// restored all rows of a run or none.
func (to *partWriter) markRestored(runs []table.Run) error {
	to.grow(to.i, to.part.Stored())
	of := to.out.FileIndex[to.i]
	for _, r := range runs {
		for at, end := r.First, r.First+r.Rows; at < end; {
			first, laid := at, of[at] >= 0
			for ; at < end && (of[at] >= 0) == laid; at++ {
				if of[at] == to.file {
					return corrupt("table %s contains a row twice", to.part.Spec.Name)
				} else if !laid {
					of[at] = to.file
				}
			}
			to.runs, to.superseded = append(to.runs, table.Run{First: first, Rows: at - first}), append(to.superseded,
				laid)
		}
	}
	return nil
}

func (to *partWriter) column(r *checksumReader, i int, c column, n int64, _ []table.Run) error {
	if c.kind == sectionIDs {
		return to.insertRows(r, n)
	}
	pieces := scatterReader{r: r, left: n}
	return to.part.Overlay(i, to.runs, func(run int, memory []byte) error {
		switch {
		case to.superseded[run]:
			return pieces.each(len(memory), func([]byte) {})
		case len(pieces.unread) >= len(memory) && littleEndian:
			pieces.unread = pieces.unread[copy(memory, pieces.unread):]
			return nil
		}
		return decodeNumbers(memory, c.word, pieces.read)
	})
}

// insertRows reads the ids of a sparse table's rows and inserts the rows.
func (to *partWriter) insertRows(r *checksumReader, n int64) (err error) {
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
		if runs, err = to.part.AssignPositions(ids, runs); err != nil {
			return err
		}
	}
	return to.markRestored(runs)
}

// scatterReader reads a payload into scattered memory. Long pieces are read directly, short ones through a chunk,
// because reading and checksumming each of them would cost a call.
type scatterReader struct {
	r      *checksumReader
	left   int64  // not read yet
	unread []byte // read but not yet delivered
}

// minDirectBytes is the min length of a piece that is read directly.
const minDirectBytes = 4 << 10

func (p *scatterReader) read(b []byte) (err error) {
	if len(p.unread) == 0 && len(b) >= minDirectBytes {
		p.left -= int64(len(b))
		return p.r.fill(b)
	}
	return p.each(len(b), func(have []byte) { b = b[copy(b, have):] })
}

// each passes n bytes to f, at most a chunk at a time.
func (p *scatterReader) each(n int, f func(have []byte)) (err error) {
	for n > 0 {
		if len(p.unread) == 0 {
			if p.unread, err = p.r.chunk(p.left); err != nil {
				return err
			}
			p.left -= int64(len(p.unread))
		}
		had := min(n, len(p.unread))
		f(p.unread[:had])
		n, p.unread = n-had, p.unread[had:]
	}
	return nil
}

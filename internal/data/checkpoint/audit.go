package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
)

// position is a reader's position in a segment.
type position struct {
	left        int64  // from its start to the end of the file
	kind, index uint32 // of the section; kind 0 if not known
}

// skippable reports whether the rest of the file can be read although this section is damaged.
func (p position) skippable() bool { return p.kind != sectionMeta && p.kind != sectionRuns }

// describe returns the position as text, for a file of the given size with left bytes still to read.
func (p position) describe(size, left int64, tables []metaTable) string {
	from := size - p.left
	switch {
	case p.kind == 0 && from == 0:
		return "header"
	case p.kind == 0:
		return fmt.Sprintf("byte %d", from)
	}
	return fmt.Sprintf("bytes %d to %d (%s)", from, size-left-1, p.sectionName(tables))
}

func (p position) sectionName(tables []metaTable) string {
	c := column{kind: p.kind}
	t := p.index
	switch p.kind {
	case sectionMeta:
		return "meta"
	case sectionState:
		return fmt.Sprintf("saved state of slot %d", p.index)
	case sectionPlane:
		c.plane, t = int(p.index%(1<<planeBits)), p.index>>planeBits
	}
	what := c.String()
	if p.kind == sectionRuns {
		what = "positions of rows"
	}
	if int64(t) < int64(len(tables)) {
		what += " of table " + tables[t].Spec.Name
	}
	return what
}

// Audit reads the checkpoints of a store completely. It reads a file that several of them share only once. It is not
// safe for concurrent use.
type Audit struct {
	Bytes int64 // bytes read
	Files int
	store store.Store
	read  map[string]*segmentAudit // by file
}

// segmentAudit is the content and the defects of a segment file.
type segmentAudit struct {
	segment  *Segment
	sum      uint32
	tables   []metaTable
	runs     [][]table.Run // by table; empty for selected rows
	defects  []Defect
	reported bool
}

// NewAudit returns an Audit of a store.
func NewAudit(in store.Store) *Audit {
	return &Audit{store: in, read: map[string]*segmentAudit{}}
}

// Checkpoint reads all segments of a checkpoint. It returns the number of rows of each table and the defects. Defects
// of a file that was already reported for another checkpoint are not repeated; whole reports whether this checkpoint is
// free of defects.
func (a *Audit) Checkpoint(m Manifest) (rows []int64, defects []Defect, whole bool) {
	m = m.normalized()
	rows, whole = make([]int64, len(m.Tables)), true
	for _, ref := range m.Segments {
		var chain []*segmentAudit
		good := true
		for _, f := range ref.files() {
			one := a.auditFile(f.File)
			good = good && len(one.defects) == 0
			if !one.reported {
				defects = append(defects, one.defects...)
			}
			one.reported = true
			chain = append(chain, one)
		}
		if good {
			more := m.segmentDefects(ref, chain, rows)
			good, defects = len(more) == 0, append(defects, more...)
		}
		wrong, there := a.states(ref.States)
		whole, defects = whole && good && there, append(defects, wrong...)
	}
	return rows, defects, whole
}

// states reads the slot states that a checkpoint names and returns their defects. Defects that were already reported
// are not repeated.
func (a *Audit) states(files []FileRef) (defects []Defect, whole bool) {
	whole = true
	for _, f := range files {
		one := a.read[f.File]
		if one == nil {
			one = new(segmentAudit)
			a.read[f.File] = one
			a.Bytes, a.Files = a.Bytes+f.Bytes, a.Files+1
			err := store.CheckState(a.store, protocol.SavedFile(f))
			if errors.Is(err, fs.ErrNotExist) {
				err = errMissing
			}
			if err != nil {
				one.defects = []Defect{{File: f.File, Err: err}}
			}
		}
		if whole = whole && len(one.defects) == 0; !one.reported {
			defects = append(defects, one.defects...)
		}
		one.reported = true
	}
	return defects, whole
}

// Segment reads a segment, which need not belong to a checkpoint, and returns its defects.
func (a *Audit) Segment(file string) []Defect { return a.auditFile(file).defects }

// segmentDefects returns the defects of a shard's segments with respect to one another and to the manifest. It adds to
// the row counts.
func (m Manifest) segmentDefects(ref SegmentRef, chain []*segmentAudit, rows []int64) []Defect {
	last := chain[len(chain)-1]
	l := segmentOverlay{verifyOnly: true, tables: last.tables}
	for i, one := range chain {
		file := ref.files()[i].File
		if err := m.checkFile(ref, i, one.segment, one.sum); err != nil {
			return []Defect{{File: file, Err: err}}
		}
		for t := range one.tables {
			if _, err := l.sink(t, one.tables[t], one.runs[t]); err != nil {
				return []Defect{{File: file, Err: err}}
			}
		}
	}
	for t, has := range last.tables {
		if err := m.checkRowCount(ref.Shard, t, has); err != nil {
			return []Defect{{File: ref.File, Err: err}}
		}
		rows[t] += has.Rows
	}
	return nil
}

// checkRowCount compares a shard's number of rows of a table with the manifest.
func (m Manifest) checkRowCount(shard perdure.ShardID, t int, has metaTable) error {
	return checkRowCount(m.key().manifest(), m.Tables, m.Job.Shards, shard, t, has)
}

func checkRowCount(manifest string, tables []perdure.TableSpec, shards int, shard perdure.ShardID, t int, has metaTable,
) error {
	if t >= len(tables) || tables[t] != has.Spec {
		return corrupt("its table %d is %s, which differs from that table in %s", t, has.Spec.Name, manifest)
	}
	first, n := placement.Range(&has.Spec, shards, shard)
	if !has.Spec.Sparse && (has.First != int64(first) || has.Rows != int64(n)) {
		return corrupt("it has %d rows from row %d of table %s; of the table's %d rows, shard %d must have %d from "+
			"row %d",
			has.Rows, has.First, has.Spec.Name, has.Spec.Rows, shard, n, first)
	}
	return nil
}

// auditFile reads a segment file, unless it has been read before.
func (a *Audit) auditFile(name string) *segmentAudit {
	if one := a.read[name]; one != nil {
		return one
	}
	one := new(segmentAudit)
	a.read[name] = one
	found := func(place string, err error) {
		one.defects = append(one.defects, Defect{File: name, Location: place, Err: err})
	}
	err := withReader(a.store, name, func(r *checksumReader) (err error) {
		size := r.left
		r.pos = position{left: size}
		here := func(err error) { found(r.pos.describe(size, r.left, one.tables), err) }
		r.onDefect = here
		one.segment, err = r.segment(func(_ int, t metaTable, runs []table.Run) (rowWriter, error) {
			one.tables = append(one.tables, t)
			if r.kind != kindSelected {
				one.runs = append(one.runs, runs)
			}
			return nil, nil
		})
		if err != nil {
			here(err)
		}
		one.sum = r.fileSum
		a.Bytes, a.Files = a.Bytes+size-r.left, a.Files+1
		return nil
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		found("", errMissing)
	case err != nil:
		found("", err)
	}
	return one
}

// Rows returns the number of rows of each table in a checkpoint, as recorded at the start of the segments.
func Rows(in store.Store, m Manifest) ([]int64, error) {
	rows := make([]int64, len(m.Tables))
	for _, ref := range m.Segments {
		tables, err := readTables(in, ref.File)
		if err != nil {
			return nil, err
		}
		for t := range min(len(tables), len(rows)) {
			rows[t] += tables[t].Rows
		}
	}
	return rows, nil
}

// CheckSegment returns an error unless the tables of a restored segment are those of the manifest and have the rows
// that the shard must have.
func (m Manifest) CheckSegment(s *Segment) error {
	for t := range s.Tables {
		one := &s.Tables[t]
		if err := m.checkRowCount(
			s.Shard,
			t,
			metaTable{Spec: one.Spec, First: one.First, Rows: one.numRows()},
		); err != nil {
			return err
		}
	}
	return nil
}

package table

import (
	"fmt"

	"github.com/perdure/perdure"
)

// SnapshotRuns starts a snapshot of only the rows of the given runs, which must be within the part, in ascending order
// and disjoint. Other rows are not read, even if they share a block with these. The changes recorded for
// SnapshotChanged are unaffected.
func (p *Part) SnapshotRuns(runs []Run) *Snapshot { return p.snapshotRuns(runs, snapshotBlockBytes) }

func (p *Part) snapshotRuns(runs []Run, asideBytes int) *Snapshot {
	s := p.newSnapshot(asideBytes)
	for i := range s.doneBlocks { // skip blocks without any of these rows
		s.doneBlocks[i] = ^uint64(0)
	}
	s.runs = make([]Run, 0, len(runs))
	for _, r := range runs {
		if r.Rows == 0 {
			continue
		}
		s.runs = append(s.runs, r)
		for block := s.block(r.First); block <= s.block(r.First+r.Rows-1); block++ {
			s.doneBlocks[block/64] &^= 1 << (block % 64)
		}
	}
	return s.register()
}

// AssignPositions assigns positions to rows of a sparse table, new ones at the part's end, and appends the positions to
// runs, in the order of the ids. The content of a new row is undefined: the caller must fill it by Overlay.
func (p *Part) AssignPositions(ids []perdure.RowID, runs []Run) ([]Run, error) {
	var at [batch]int
	if p.index.Len() == 0 { // avoids growing the columns step by step
		p.reserve(len(ids))
	}
	for len(ids) > 0 {
		n := min(len(ids), batch)
		if n > MaxStoredRows-p.index.Len() {
			return runs, fmt.Errorf("%w: table %[3]s has %[4]d of at most %[5]d rows and cannot take %[2]d more",
				ErrFull, n, p.Spec.Name, p.index.Len(), MaxStoredRows)
		}
		p.find(ids[:n], at[:n])
		for i, at := range at[:n] {
			if at < 0 {
				at, _ = p.add(ids[i])
			}
			if last := len(runs) - 1; last >= 0 && runs[last].First+runs[last].Rows == at {
				runs[last].Rows++
				continue
			}
			runs = append(runs, Run{at, 1})
		}
		ids = ids[n:]
	}
	return runs, nil
}

// Overlay calls fill with the memory of the given runs in one column, in turn, and with the number of the run. Column i
// is the one that a Snapshot of the part reads as its i-th. fill must write numbers in this machine's byte order. The
// runs may be in any order. The column with the ids of a sparse part must not be filled: see AssignPositions.
func (p *Part) Overlay(i int, runs []Run, fill func(run int, memory []byte) error) error {
	columns, _, _ := p.sources(snapshotBlockBytes)
	c := &columns[i]
	for run, r := range runs {
		for at, end := r.First, r.First+r.Rows; at < end; {
			n := end - at
			if c.shift < singlePiece {
				n = min(n, (at>>c.shift+1)<<c.shift-at)
			}
			p.beforeChange(at, n)
			if err := fill(run, c.memory(at, n)); err != nil {
				return err
			}
			at += n
		}
	}
	return nil
}

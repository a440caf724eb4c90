package table

import (
	"fmt"

	"github.com/perdure/perdure"
)

// SnapshotOf begins a snapshot of the rows of these runs only, which the part must have, in order
// and apart. Rows that were not chosen are not read, whatever they share a block with. What
// SnapshotChanged is to know is left as it is.
func (p *Part) SnapshotOf(runs []Run) *Snapshot { return p.snapshotOf(runs, asideBytes) }

func (p *Part) snapshotOf(runs []Run, asideBytes int) *Snapshot {
	s := p.newSnapshot(asideBytes)
	for i := range s.passed { // nobody asks for a block without any of these rows
		s.passed[i] = ^uint64(0)
	}
	s.runs = make([]Run, 0, len(runs))
	for _, r := range runs {
		if r.Rows == 0 {
			continue
		}
		s.runs = append(s.runs, r)
		for block := s.block(r.First); block <= s.block(r.First+r.Rows-1); block++ {
			s.passed[block/64] &^= 1 << (block % 64)
		}
	}
	return s.begin()
}

// Places gives rows of a sparse part places, those that have none at the part's end, and adds the
// positions to runs, in the order of the ids. What a row holds that had no place is not defined:
// each is to be filled, by Overlay.
func (p *Part) Places(ids []perdure.RowID, runs []Run) ([]Run, error) {
	var at [batch]int
	if p.index.Len() == 0 { // so that columns need not grow by and by
		p.room(len(ids))
	}
	for len(ids) > 0 {
		n := min(len(ids), batch)
		if n > MaxStored-p.index.Len() {
			return runs, fmt.Errorf("%w: %d more of table %s, where %d of at most %d are", ErrFull, n, p.Spec.Name,
				p.index.Len(), MaxStored)
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

// Overlay gives fill the memory of the rows of these runs, one after the other, in one column, with
// the number of the run: the same column that a Snapshot of the part reads as its i-th. What it is
// filled with are this machine's numbers. The runs may be in any order. The column of a sparse
// part's ids is not to be filled: see Places.
func (p *Part) Overlay(i int, runs []Run, fill func(run int, memory []byte) error) error {
	columns, _, _ := p.sources(asideBytes)
	c := &columns[i]
	for run, r := range runs {
		for at, end := r.First, r.First+r.Rows; at < end; {
			n := end - at
			if c.shift < whole {
				n = min(n, (at>>c.shift+1)<<c.shift-at)
			}
			p.putAside(at, n)
			if err := fill(run, c.memory(at, n)); err != nil {
				return err
			}
			at += n
		}
	}
	return nil
}

package table

import "math/bits"

// changeSet records which rows of a part have changed, by blocks of a few rows.
type changeSet struct {
	shift  uint8 // a block has 1<<shift rows
	blocks []uint64
}

// mark records rows that are about to change.
func (c *changeSet) mark(at, n int) {
	if c == nil || n == 0 {
		return
	}
	last := (at + n - 1) >> c.shift
	for last/64 >= len(c.blocks) {
		c.blocks = append(c.blocks, 0)
	}
	for block := at >> c.shift; block <= last; block++ {
		c.blocks[block/64] |= 1 << (block % 64)
	}
}

// SnapshotChanged starts a snapshot of the rows that have changed since the last snapshot of this kind, together with
// the rows that share a block of about 2 KiB with them. It covers all rows if all is set or if there was no such
// snapshot. A row also counts as changed if its position held a different row before. To get the part's image, write
// the bytes read to the positions in Runs of the previous image, and resize that to Rows rows.
func (p *Part) SnapshotChanged(all bool) *Snapshot { return p.snapshotChanged(all, snapshotBlockBytes) }

func (p *Part) snapshotChanged(all bool, asideBytes int) *Snapshot {
	was := p.changed
	if was == nil || all {
		s := p.snapshot(asideBytes)
		p.changed = &changeSet{shift: s.shift}
		return s
	}
	p.changed = &changeSet{shift: was.shift, blocks: make([]uint64, len(was.blocks))}
	s := p.newSnapshot(asideBytes)
	for i := range s.doneBlocks {
		s.doneBlocks[i] = ^uint64(0)
		if i < len(was.blocks) {
			s.doneBlocks[i] = ^was.blocks[i]
		}
		for left := ^s.doneBlocks[i]; left != 0; left &= left - 1 {
			s.addBlock(i*64 + bits.TrailingZeros64(left))
		}
	}
	return s.register()
}

// addBlock appends a block to the rows to read.
func (s *Snapshot) addBlock(block int) {
	if block<<s.shift >= s.rows {
		return // these rows were removed
	}
	first, n := s.blockRows(block)
	if last := len(s.runs) - 1; last >= 0 && s.runs[last].First+s.runs[last].Rows == first {
		s.runs[last].Rows += n
		return
	}
	s.runs = append(s.runs, Run{first, n})
}

// MarkChanged marks the rows of a snapshot as changed again, because the bytes that were read are discarded.
func (s *Snapshot) MarkChanged() {
	for _, r := range s.runs {
		s.part.changed.mark(r.First, r.Rows)
	}
}

// ChangedBytes returns the approximate number of bytes that SnapshotChanged would read, and that of all rows.
func (p *Part) ChangedBytes() (changed, all int64) {
	_, rowSize, _ := p.sources(snapshotBlockBytes)
	all = int64(p.Stored()) * int64(rowSize)
	if p.changed == nil {
		return all, all
	}
	for _, word := range p.changed.blocks {
		changed += int64(bits.OnesCount64(word))
	}
	return min(changed*int64(rowSize)<<p.changed.shift, all), all
}

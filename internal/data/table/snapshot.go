package table

import (
	"encoding/binary"
	"slices"
	"unsafe"
)

// Snapshot is the content of a part at one moment, read in pieces while the part keeps changing. Before rows change
// that have not been read yet, their old content is saved, a block of a few rows at a time. Starting a snapshot takes
// constant time, and a change of rows waits at most for a copy of their blocks. A part may have any number of
// snapshots; each saves blocks on its own.
//
// A snapshot reads the rows' bytes, little-endian, one column after another: for a sparse table the ids; with eviction
// the clocks; then the planes, in the order of an Image.
//
// The part's owner must also serialise access to its snapshots: Next and Close count as changes of the part.
type Snapshot struct {
	part    *Part
	rows    int   // number of rows of the part
	runs    []Run // rows to read, ascending and disjoint
	count   int   // rows in runs
	shift   uint8 // a block has 1<<shift rows
	columns []columnBytes
	rowSize int // bytes per row in all columns

	at, from    int            // position: byte from of columns[position]
	run         int            // current run
	doneBlocks  []uint64       // a bit per block: it is saved, or will not be read again
	savedBlocks map[int][]byte // saved blocks: their columns, concatenated
	arena       []byte         // free memory for saved blocks
	arenas      [][]byte       // all memory obtained
}

// columnBytes accesses a column as bytes.
type columnBytes struct {
	word    int  // bytes per number
	rowSize int  // bytes per row
	shift   uint // 1<<shift rows per piece
	offset  int  // bytes per row in the columns before this one
	// memory returns the memory of n rows in one piece.
	memory func(at, n int) []byte
}

func newColumnBytes[T ~float32 | ~uint32 | ~uint64](c *column[T]) columnBytes {
	var word T
	size := int(unsafe.Sizeof(word))
	return columnBytes{
		word: size, rowSize: size * c.width, shift: uint(c.shift),
		memory: func(at, n int) []byte { return memoryOf(c.rows(at, n)) },
	}
}

func memoryOf[T ~float32 | ~uint32 | ~uint64](v []T) []byte {
	var word T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), int(unsafe.Sizeof(word))*len(v))
}

// snapshotBlockBytes is the approximate size of a block: small enough that scattered updates copy few other rows, and
// large enough that the overhead per copy is small.
const snapshotBlockBytes = 2 << 10

const (
	// arenaBytes is the size of an allocation for saved blocks.
	arenaBytes = 256 << 10
	// maxFreeArenas is the max number of these allocations that a process keeps for later snapshots.
	maxFreeArenas = 16
)

// freeArenas holds unused memory for saved blocks. Updates have to wait for new memory, and obtaining it may take many
// times as long as copying rows into it.
var freeArenas = make(chan []byte, maxFreeArenas)

func newArena(size int) []byte {
	if size <= arenaBytes {
		select {
		case room := <-freeArenas:
			return room
		default:
		}
	}
	return make([]byte, 0, max(size, arenaBytes))
}

func releaseArena(room []byte) {
	if cap(room) != arenaBytes {
		return
	}
	select {
	case freeArenas <- room[:0]:
	default:
	}
}

// Run is a range of rows at consecutive positions.
type Run struct{ First, Rows int }

// Snapshot starts a snapshot of the part's current content. Close ends it.
func (p *Part) Snapshot() *Snapshot { return p.snapshot(snapshotBlockBytes) }

func (p *Part) snapshot(asideBytes int) *Snapshot {
	s := p.newSnapshot(asideBytes)
	if s.rows > 0 {
		s.runs = []Run{{0, s.rows}}
	}
	return s.register()
}

// newSnapshot returns a snapshot without rows.
func (p *Part) newSnapshot(asideBytes int) *Snapshot {
	s := &Snapshot{part: p, rows: p.Stored(), savedBlocks: map[int][]byte{}}
	s.columns, s.rowSize, s.shift = p.sources(asideBytes)
	s.doneBlocks = make([]uint64, s.block(s.rows-1)/64+1)
	return s
}

func (s *Snapshot) register() *Snapshot {
	s.at = len(s.columns)
	if len(s.runs) > 0 {
		s.at, s.from = 0, s.runs[0].First*s.columns[0].rowSize
	}
	for _, r := range s.runs {
		s.count += r.Rows
	}
	s.part.snapshots = append(s.part.snapshots, s)
	return s
}

// sources returns the part's columns, the size of a row in all of them, and the shift of blocks of about blockBytes
// that do not cross pieces.
func (p *Part) sources(blockBytes int) (columns []columnBytes, rowSize int, shift uint8) {
	if p.Spec.Sparse {
		columns = append(columns, newColumnBytes(&p.index.ids))
	}
	if p.Spec.Evict > 0 {
		columns = append(columns, newColumnBytes(&p.touched))
	}
	for i := range p.planes {
		columns = append(columns, newColumnBytes(&p.planes[i]))
	}
	most := uint(singlePiece)
	for i := range columns {
		c := &columns[i]
		c.offset = rowSize
		rowSize += c.rowSize
		most = min(most, c.shift)
	}
	return columns, rowSize, min(pieceShift(rowSize, blockBytes), uint8(most))
}

// Close ends the snapshot at any point. Further calls have no effect.
func (s *Snapshot) Close() {
	s.part.snapshots = slices.DeleteFunc(s.part.snapshots, func(other *Snapshot) bool { return other == s })
	for _, room := range s.arenas {
		releaseArena(room)
	}
	s.at, s.savedBlocks, s.arena, s.arenas = len(s.columns), nil, nil, nil
}

// Rows returns the number of rows that the part had.
func (s *Snapshot) Rows() int { return s.rows }

// Runs returns the positions of the rows to read.
func (s *Snapshot) Runs() []Run { return s.runs }

// Bytes returns the total number of bytes to read.
func (s *Snapshot) Bytes() int64 { return int64(s.count) * int64(s.rowSize) }

func (s *Snapshot) block(row int) int { return row >> s.shift }

// blockRows returns a block's first row and its number of rows.
func (s *Snapshot) blockRows(block int) (first, n int) {
	first = block << s.shift
	return first, min(1<<s.shift, s.rows-first)
}

// Next returns the next bytes of one column, at most most, or none at the end. Contiguous unchanged bytes are the
// part's own memory (live), valid until the part changes. Others are copied into memory that Next requests by room.
func (s *Snapshot) Next(most int, room func(n int) []byte) (b []byte, live bool) {
	if s.at == len(s.columns) {
		return nil, false
	}
	c := &s.columns[s.at]
	row := s.from / c.rowSize
	end := s.runEnd()
	if last := (row>>c.shift + 1) << c.shift; last > row {
		end = min(end, last)
	}
	most = max(most/c.word, 1) * c.word
	n := min(end*c.rowSize-s.from, most)
	if n < shortBytes {
		if all := s.remaining(min(most, max(n, collectBytes))); all > n {
			return s.copyRuns(c, room(all)[:all]), false
		}
	}
	from := s.from
	s.from += n
	defer s.seek()
	if littleEndian && !s.isSaved(c, from, n) {
		skip := from - row*c.rowSize
		b := c.memory(row, (skip+n+c.rowSize-1)/c.rowSize)
		return b[skip : skip+n : skip+n], true
	}
	b = room(n)[:n]
	s.copyOriginal(b, c, from)
	if !littleEndian {
		swapBytes(b, c.word)
	}
	return b, false
}

const (
	// shortBytes is the min size of a result, unless the column ends: otherwise scattered rows would cost a call each.
	shortBytes = 4 << 10
	// collectBytes is the max size of a result collected from scattered rows. Each row takes some 0.1 µs to load from
	// memory, and updates wait for that time.
	collectBytes = 64 << 10
)

// remaining returns the number of unread bytes in the column, at most most.
func (s *Snapshot) remaining(most int) int {
	size := s.columns[s.at].rowSize
	n := s.runEnd()*size - s.from
	for run := s.run + 1; run < len(s.runs) && n < most; run++ {
		n += s.runs[run].Rows * size
	}
	return min(n, most)
}

// copyRuns copies the next bytes of a column from several runs.
func (s *Snapshot) copyRuns(c *columnBytes, b []byte) []byte {
	for left := b; len(left) > 0; {
		n := min(s.runEnd()*c.rowSize-s.from, len(left))
		from := s.from
		s.from += n
		s.copyOriginal(left[:n], c, from)
		s.seek()
		left = left[n:]
	}
	if !littleEndian {
		swapBytes(b, c.word)
	}
	return b
}

// runEnd returns the row after the current run.
func (s *Snapshot) runEnd() int { return s.runs[s.run].First + s.runs[s.run].Rows }

// seek moves to the next run or column once the current one has been read.
func (s *Snapshot) seek() {
	end := s.runEnd()
	if s.from < end*s.columns[s.at].rowSize {
		return
	}
	last := s.at == len(s.columns)-1
	if s.run++; s.run == len(s.runs) {
		s.at, s.run = s.at+1, 0
	}
	if s.at < len(s.columns) {
		s.from = s.runs[s.run].First * s.columns[s.at].rowSize
	}
	if block := s.block(end - 1); last && (s.at == len(s.columns) || s.block(s.runs[s.run].First) != block) {
		delete(s.savedBlocks, block) // also if the run ends before the block
	}
}

// isSaved reports whether any of n bytes of a column belong to saved blocks.
func (s *Snapshot) isSaved(c *columnBytes, from, n int) bool {
	if len(s.savedBlocks) == 0 {
		return false
	}
	for block := s.block(from / c.rowSize); block <= s.block((from+n-1)/c.rowSize); block++ {
		if s.savedBlocks[block] != nil {
			return true
		}
	}
	return false
}

// copyOriginal copies the original bytes of a column. It releases saved blocks that will not be read again.
func (s *Snapshot) copyOriginal(dst []byte, c *columnBytes, from int) {
	for len(dst) > 0 {
		block := s.block(from / c.rowSize)
		first, rows := s.blockRows(block)
		skip := from - first*c.rowSize
		n := min(rows*c.rowSize-skip, len(dst))
		if kept := s.savedBlocks[block]; kept != nil {
			copy(dst[:n], kept[rows*c.offset+skip:])
		} else {
			copy(dst[:n], c.memory(first, rows)[skip:])
		}
		if s.at == len(s.columns)-1 && skip+n == rows*c.rowSize {
			delete(s.savedBlocks, block)
		}
		dst, from = dst[n:], from+n
	}
}

// saveRows saves rows that are about to change.
func (s *Snapshot) saveRows(at, n int) {
	for block := s.block(at); block <= s.block(at+n-1) && block<<s.shift < s.rows; block++ {
		word, bit := &s.doneBlocks[block/64], uint64(1)<<(block%64)
		if *word&bit == 0 {
			*word |= bit
			s.saveBlock(block)
		}
	}
}

func (s *Snapshot) saveBlock(block int) {
	first, rows := s.blockRows(block)
	if s.at == len(s.columns) || s.at == len(s.columns)-1 && s.from >= (first+rows)*s.columns[s.at].rowSize {
		return // it has been read completely
	}
	size := rows * s.rowSize
	if cap(s.arena)-len(s.arena) < size {
		s.arena = newArena(size)
		s.arenas = append(s.arenas, s.arena)
	}
	start := len(s.arena)
	for i := range s.columns {
		s.arena = append(s.arena, s.columns[i].memory(first, rows)...)
	}
	s.savedBlocks[block] = s.arena[start:]
}

// beforeChange must be called before rows in one piece are changed.
func (p *Part) beforeChange(at, n int) {
	p.changed.mark(at, n)
	for _, s := range p.snapshots {
		s.saveRows(at, n)
	}
	for _, w := range p.watchers {
		w.Before(at, n)
	}
}

// A Watcher is notified before n rows of a part from a position on change. It may read the part.
type Watcher interface{ Before(at, n int) }

// Watch notifies a watcher of all changes until Unwatch.
func (p *Part) Watch(w Watcher) { p.watchers = append(p.watchers, w) }

// Unwatch stops the notifications.
func (p *Part) Unwatch(w Watcher) {
	p.watchers = slices.DeleteFunc(p.watchers, func(other Watcher) bool { return other == w })
}

// Memory returns the image's memory in the order in which a Snapshot is read. To restore a snapshot, fill the memory
// with its bytes and then call ConvertByteOrder.
func (m Image) Memory() (pieces [][]byte) {
	for _, p := range m.IDs {
		pieces = append(pieces, memoryOf(p))
	}
	for _, p := range m.Touched {
		pieces = append(pieces, memoryOf(p))
	}
	for _, plane := range m.Planes {
		for _, p := range plane {
			pieces = append(pieces, memoryOf(p))
		}
	}
	return pieces
}

// ConvertByteOrder converts the little-endian numbers in the memory to this machine's byte order.
func (m Image) ConvertByteOrder() {
	if littleEndian {
		return
	}
	ids := 0
	for _, b := range m.Memory() {
		word := 4
		if ids < len(m.IDs) {
			ids, word = ids+1, 8
		}
		swapBytes(b, word)
	}
}

// littleEndian is a variable so that tests also cover the other case.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// swapBytes converts between little-endian and big-endian numbers.
func swapBytes(b []byte, word int) {
	for ; len(b) > 0; b = b[word:] {
		slices.Reverse(b[:word])
	}
}

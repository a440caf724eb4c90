package table

import (
	"encoding/binary"
	"slices"
	"unsafe"
)

// Snapshot is what a part held at one moment, read in pieces while the part goes on
// changing: before rows are changed that are still to be read, what they were is put
// aside, a block of a few rows at a time. To begin one takes no time that depends on the
// part's size, and a change of rows waits for a copy of their blocks at most. A part may
// have any number of snapshots at a time; each puts aside for itself.
//
// What is read is the rows' bytes, little-endian, one column after the other: of a sparse
// table the ids; with eviction the clocks; then the planes, as an Image lists them.
//
// It is the part's owner who guards it, too: Next and Close count as changes of the part.
type Snapshot struct {
	part    *Part
	rows    int   // that the part had
	runs    []Run // those that are read, in order and apart
	count   int   // of them
	shift   uint8 // a block is of 1<<shift rows
	columns []source
	rowSize int // bytes of a row in all columns

	at, from int            // the next byte to be read is columns[at]'s byte from
	run      int            // of which run it is
	passed   []uint64       // a bit for each block: it is put aside, or nobody asks for it any more
	aside    map[int][]byte // by block: its columns, one after the other
	room     []byte         // for what is put aside next
	rooms    [][]byte       // all that there were
}

// source is a column as bytes.
type source struct {
	word    int  // bytes of a number
	rowSize int  // bytes of a row
	shift   uint // 1<<shift rows lie in one piece
	before  int  // bytes of a row in the columns before this one
	// memory returns that of n rows, which lie in one piece.
	memory func(at, n int) []byte
}

func sourceOf[T ~float32 | ~uint32 | ~uint64](c *column[T]) source {
	var word T
	size := int(unsafe.Sizeof(word))
	return source{
		word: size, rowSize: size * c.width, shift: uint(c.shift),
		memory: func(at, n int) []byte { return memoryOf(c.rows(at, n)) },
	}
}

func memoryOf[T ~float32 | ~uint32 | ~uint64](v []T) []byte {
	var word T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), int(unsafe.Sizeof(word))*len(v))
}

// asideBytes is about how much is put aside at once: so little that updates of rows here
// and there copy little else, and so much that it costs little more than the copy.
const asideBytes = 2 << 10

const (
	// asideRoom is how much memory is got at once for it.
	asideRoom = 256 << 10
	// roomsKept is how many of them a process keeps for its next snapshots.
	roomsKept = 16
)

// rooms is memory for what is put aside that nobody uses: to get memory that is new, which
// updates would have to wait for, may take many times as long as to copy rows to it.
var rooms = make(chan []byte, roomsKept)

func newRoom(size int) []byte {
	if size <= asideRoom {
		select {
		case room := <-rooms:
			return room
		default:
		}
	}
	return make([]byte, 0, max(size, asideRoom))
}

func keepRoom(room []byte) {
	if cap(room) != asideRoom {
		return
	}
	select {
	case rooms <- room[:0]:
	default:
	}
}

// Run is rows at consecutive positions.
type Run struct{ First, Rows int }

// Snapshot begins a snapshot of the part as it is. Close ends it.
func (p *Part) Snapshot() *Snapshot { return p.snapshot(asideBytes) }

func (p *Part) snapshot(asideBytes int) *Snapshot {
	s := p.newSnapshot(asideBytes)
	if s.rows > 0 {
		s.runs = []Run{{0, s.rows}}
	}
	return s.begin()
}

// newSnapshot makes a snapshot that reads no rows.
func (p *Part) newSnapshot(asideBytes int) *Snapshot {
	s := &Snapshot{part: p, rows: p.Stored(), aside: map[int][]byte{}}
	s.columns, s.rowSize, s.shift = p.sources(asideBytes)
	s.passed = make([]uint64, s.block(s.rows-1)/64+1)
	return s
}

func (s *Snapshot) begin() *Snapshot {
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

// sources returns the part's columns, what a row takes in all of them, and the shift of
// blocks of about blockBytes of which none lies in two pieces.
func (p *Part) sources(blockBytes int) (columns []source, rowSize int, shift uint8) {
	if p.Spec.Sparse {
		columns = append(columns, sourceOf(&p.index.ids))
	}
	if p.Spec.Evict > 0 {
		columns = append(columns, sourceOf(&p.touched))
	}
	for i := range p.planes {
		columns = append(columns, sourceOf(&p.planes[i]))
	}
	most := uint(whole)
	for i := range columns {
		c := &columns[i]
		c.before = rowSize
		rowSize += c.rowSize
		most = min(most, c.shift)
	}
	return columns, rowSize, min(pieceShift(rowSize, blockBytes), uint8(most))
}

// Close ends the snapshot, wherever it is. It may be called again.
func (s *Snapshot) Close() {
	s.part.snapshots = slices.DeleteFunc(s.part.snapshots, func(other *Snapshot) bool { return other == s })
	for _, room := range s.rooms {
		keepRoom(room)
	}
	s.at, s.aside, s.room, s.rooms = len(s.columns), nil, nil, nil
}

// Rows returns how many rows the part had.
func (s *Snapshot) Rows() int { return s.rows }

// Runs returns the positions of the rows that are read.
func (s *Snapshot) Runs() []Run { return s.runs }

// Bytes returns how many bytes there are to read, in all.
func (s *Snapshot) Bytes() int64 { return int64(s.count) * int64(s.rowSize) }

func (s *Snapshot) block(row int) int { return row >> s.shift }

// span returns a block's first row, and how many it has.
func (s *Snapshot) span(block int) (first, n int) {
	first = block << s.shift
	return first, min(1<<s.shift, s.rows-first)
}

// Next returns the next bytes, at most most of them, and none after the last. They are
// numbers of one column. Those that lie together as they were are the part's own memory
// (live), good until the part changes; others are put together in room that is asked for.
func (s *Snapshot) Next(most int, room func(n int) []byte) (b []byte, live bool) {
	if s.at == len(s.columns) {
		return nil, false
	}
	c := &s.columns[s.at]
	row := s.from / c.rowSize
	end := s.end()
	if last := (row>>c.shift + 1) << c.shift; last > row {
		end = min(end, last)
	}
	most = max(most/c.word, 1) * c.word
	n := min(end*c.rowSize-s.from, most)
	if n < shortBytes {
		if all := s.upTo(min(most, max(n, collectBytes))); all > n {
			return s.collect(c, room(all)[:all]), false
		}
	}
	from := s.from
	s.from += n
	defer s.seek()
	if littleEndian && !s.changed(c, from, n) {
		skip := from - row*c.rowSize
		b := c.memory(row, (skip+n+c.rowSize-1)/c.rowSize)
		return b[skip : skip+n : skip+n], true
	}
	b = room(n)[:n]
	s.gather(b, c, from)
	if !littleEndian {
		turn(b, c.word)
	}
	return b, false
}

const (
	// shortBytes is how much is handed over at once at least, while there is more of a column: rows
	// that are chosen here and there cost a call each else.
	shortBytes = 4 << 10
	// collectBytes is how much of such is, at most: each row has to come from memory, some 0.1 µs,
	// and updates wait so long.
	collectBytes = 64 << 10
)

// upTo returns how many bytes of the column are left to be read: at most most.
func (s *Snapshot) upTo(most int) int {
	size := s.columns[s.at].rowSize
	n := s.end()*size - s.from
	for run := s.run + 1; run < len(s.runs) && n < most; run++ {
		n += s.runs[run].Rows * size
	}
	return min(n, most)
}

// collect copies the next bytes of a column, of several runs.
func (s *Snapshot) collect(c *source, b []byte) []byte {
	for left := b; len(left) > 0; {
		n := min(s.end()*c.rowSize-s.from, len(left))
		from := s.from
		s.from += n
		s.gather(left[:n], c, from)
		s.seek()
		left = left[n:]
	}
	if !littleEndian {
		turn(b, c.word)
	}
	return b
}

// end returns the row that the run ends before.
func (s *Snapshot) end() int { return s.runs[s.run].First + s.runs[s.run].Rows }

// seek goes on to the next run, or column, once one is read.
func (s *Snapshot) seek() {
	end := s.end()
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
		delete(s.aside, block) // also where the run ends before the block does
	}
}

// changed reports whether any of n bytes of a column are put aside.
func (s *Snapshot) changed(c *source, from, n int) bool {
	if len(s.aside) == 0 {
		return false
	}
	for block := s.block(from / c.rowSize); block <= s.block((from+n-1)/c.rowSize); block++ {
		if s.aside[block] != nil {
			return true
		}
	}
	return false
}

// gather copies bytes of a column as they were. What is put aside is let go once nobody
// will ask for it any more.
func (s *Snapshot) gather(dst []byte, c *source, from int) {
	for len(dst) > 0 {
		block := s.block(from / c.rowSize)
		first, rows := s.span(block)
		skip := from - first*c.rowSize
		n := min(rows*c.rowSize-skip, len(dst))
		if kept := s.aside[block]; kept != nil {
			copy(dst[:n], kept[rows*c.before+skip:])
		} else {
			copy(dst[:n], c.memory(first, rows)[skip:])
		}
		if s.at == len(s.columns)-1 && skip+n == rows*c.rowSize {
			delete(s.aside, block)
		}
		dst, from = dst[n:], from+n
	}
}

// put puts rows aside that are about to be changed.
func (s *Snapshot) put(at, n int) {
	for block := s.block(at); block <= s.block(at+n-1) && block<<s.shift < s.rows; block++ {
		word, bit := &s.passed[block/64], uint64(1)<<(block%64)
		if *word&bit == 0 {
			*word |= bit
			s.putBlock(block)
		}
	}
}

func (s *Snapshot) putBlock(block int) {
	first, rows := s.span(block)
	if s.at == len(s.columns) || s.at == len(s.columns)-1 && s.from >= (first+rows)*s.columns[s.at].rowSize {
		return // all of it is read
	}
	size := rows * s.rowSize
	if cap(s.room)-len(s.room) < size {
		s.room = newRoom(size)
		s.rooms = append(s.rooms, s.room)
	}
	begin := len(s.room)
	for i := range s.columns {
		s.room = append(s.room, s.columns[i].memory(first, rows)...)
	}
	s.aside[block] = s.room[begin:]
}

// putAside is to be called before rows are changed that lie in one piece.
func (p *Part) putAside(at, n int) {
	p.changes.note(at, n)
	for _, s := range p.snapshots {
		s.put(at, n)
	}
	for _, w := range p.watchers {
		w.Before(at, n)
	}
}

// A Watcher hears which rows of a part are about to change, n from a position on. It may read
// the part.
type Watcher interface{ Before(at, n int) }

// Watch has a watcher hear of all changes from now on, until Unwatch.
func (p *Part) Watch(w Watcher) { p.watchers = append(p.watchers, w) }

// Unwatch ends that.
func (p *Part) Unwatch(w Watcher) {
	p.watchers = slices.DeleteFunc(p.watchers, func(other Watcher) bool { return other == w })
}

// Memory returns the image's memory in the order in which a Snapshot is read: who fills
// it with a snapshot's bytes, and then calls Settle, has the image of the part as it was.
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

// Settle makes this machine's numbers of the little-endian ones that Memory was filled
// with.
func (m Image) Settle() {
	if littleEndian {
		return
	}
	ids := 0
	for _, b := range m.Memory() {
		word := 4
		if ids < len(m.IDs) {
			ids, word = ids+1, 8
		}
		turn(b, word)
	}
}

// littleEndian is a variable so that tests take the other way too.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// turn makes little-endian numbers of big-endian ones, and the other way round.
func turn(b []byte, word int) {
	for ; len(b) > 0; b = b[word:] {
		slices.Reverse(b[:word])
	}
}

package table

import (
	"math/bits"
	"unsafe"

	"github.com/perdure/perdure"
)

// Index gives the ids of rows positions: 0, 1, 2 and so on, in the order in
// which they are added. Where positions come to lie is a function of the calls
// alone.
//
// Ids stand once, in pieces of 1 MiB that are never copied. Positions are found
// through 256 hash tables, which share the ids out by their hash and grow each
// alone: none is large, so that no call stalls for long. Their sizes are
// staggered, so that they take turns in growing: at any time the tables of n
// ids have memory for at most 1.5 times what n ids need when all are full. That
// is 9.6 bytes for each id, and 9 for the id itself: at most 18.6 bytes, beside
// 25 KiB for an empty index and 1 MiB for the piece that is being filled. After
// removals, the tables have at most 3 times what the ids need.
//
// Find, FindAll, ID, IDs and Len change nothing: any number may run at once.
type Index struct {
	ids    column[perdure.RowID]
	n      int
	tables [hashTables]hashTable
}

const (
	hashTables = 256
	idShift    = 17 // of a piece of ids: 1 MiB

	slots   = 12 // of a bucket
	mostFor = 10 // ids for each bucket of a hash table before it grows
)

// hashTable has the positions of those ids whose hash begins with its number.
type hashTable struct {
	buckets []bucket
	n       int32
	level   int8 // of the size
}

// bucket is one line of the processor's cache: 12 positions with a byte of each
// id's hash, so that nearly always one line tells where an id is, or that it is
// nowhere. An id that finds its bucket full goes to the next one with room.
type bucket struct {
	tags  uint64 // of positions 0 to 7, the lowest byte first; 0: no position
	tags2 uint32 // of positions 8 to 11
	over  uint32 // ids that found this bucket full and lie further on
	at    [slots]uint32
}

// NewIndex returns an index without ids.
func NewIndex() *Index {
	return &Index{ids: column[perdure.RowID]{width: 1, shift: idShift}}
}

// Len returns the number of ids.
func (x *Index) Len() int { return x.n }

// ID returns the id at a position, which must be one of 0 … Len()-1.
func (x *Index) ID(at int) perdure.RowID {
	return x.ids.pieces[at>>idShift][at&(1<<idShift-1)]
}

// IDs returns ids from a position on, at least one unless the position is Len(),
// and at most n. They alias the index.
func (x *Index) IDs(from, n int) []perdure.RowID {
	n = min(n, x.n-from, 1<<idShift-from&(1<<idShift-1))
	if n <= 0 {
		return nil
	}
	return x.ids.rows(from, n)
}

// Find returns an id's position.
func (x *Index) Find(id perdure.RowID) (at int, ok bool) {
	at = x.find(hash(id), id)
	return at, at >= 0
}

// FindAll sets at[i] to the position of ids[i], or to -1. It is faster than
// Find for each: what it waits for from memory, it waits for together. The two
// have the same length.
func (x *Index) FindAll(ids []perdure.RowID, at []int) {
	var of [batch]*Index
	for i := range min(batch, len(ids)) {
		of[i] = x
	}
	for at = at[:len(ids)]; len(ids) > batch; ids, at = ids[batch:], at[batch:] {
		findBatch(&of, ids[:batch], at)
	}
	findBatch(&of, ids, at)
}

// FindEach sets at[i] to the position of ids[i] in the index of[i], or to -1: FindAll for ids of several indexes. A nil
// index has no ids. The three have the same length.
func FindEach(of []*Index, ids []perdure.RowID, at []int) {
	for from := 0; from < len(ids); from += batch {
		var some [batch]*Index
		n := copy(some[:], of[from:])
		findBatch(&some, ids[from:from+n], at[from:from+n])
	}
}

// findBatch is FindEach for at most batch ids.
func findBatch(of *[batch]*Index, ids []perdure.RowID, at []int) {
	var wanted [batch]unsafe.Pointer
	var hashes [batch]uint64
	for i, id := range ids {
		h := hash(id)
		hashes[i] = h
		if of[i] == nil {
			continue
		}
		if t := &of[i].tables[h>>56]; len(t.buckets) > 0 {
			wanted[i] = unsafe.Pointer(&t.buckets[t.home(h)])
		}
	}
	prefetch(&wanted[0], len(ids), 1)
	for i := range ids { // the first position that has the id's tag is most likely the id's
		if wanted[i] == nil {
			at[i] = nowhere
			continue
		}
		b := (*bucket)(wanted[i])
		m := b.match(tag(hashes[i]))
		switch {
		case m != 0:
			at[i] = int(b.at[bits.TrailingZeros32(m)%slots])
			wanted[i] = unsafe.Pointer(&of[i].ids.pieces[at[i]>>idShift][at[i]&(1<<idShift-1)])
		case b.over == 0:
			at[i], wanted[i] = nowhere, nil
		default:
			at[i], wanted[i] = elsewhere, nil
		}
	}
	prefetch(&wanted[0], len(ids), 1)
	for i, id := range ids {
		if at[i] == elsewhere || at[i] >= 0 && *(*perdure.RowID)(wanted[i]) != id {
			at[i] = of[i].find(hashes[i], id)
		}
	}
}

// What is known after a look at an id's own bucket, if not a position.
const (
	nowhere   = -1
	elsewhere = -2
)

// Add gives an id a position if it has none: the next one.
func (x *Index) Add(id perdure.RowID) (at int, added bool) {
	h := hash(id)
	if at := x.find(h, id); at >= 0 {
		return at, false
	}
	x.ids.reserve(x.n + 1)
	x.ids.pieces[x.n>>idShift][x.n&(1<<idShift-1)] = id
	x.n++
	x.insert(h, x.n-1)
	return x.n - 1, true
}

// Remove takes an id out. So that positions stay 0 … Len()-1, the id at the last
// position, Len() after the call, takes its place: hole. What is kept by
// position must move likewise.
func (x *Index) Remove(id perdure.RowID) (hole int, ok bool) {
	h := hash(id)
	hole = x.find(h, id)
	if hole < 0 {
		return 0, false
	}
	x.clear(h, hole)
	x.n--
	if last := x.ID(x.n); hole != x.n {
		b, s := x.slot(hash(last), x.n)
		b.at[s] = uint32(hole)
		x.ids.rows(hole, 1)[0] = last
	}
	x.ids.trim(x.n)
	return hole, true
}

// restore makes the hash tables for n ids that the column of ids holds already.
// If an id stands there twice, it returns that, and false.
func (x *Index) restore(n int) (twice perdure.RowID, ok bool) {
	for i := range x.tables {
		x.tables[i] = hashTable{}
		for level := int8(0); mostFor*hashTables*tableSize(i, level) < n; level++ {
			x.tables[i].level = level + 1
		}
	}
	x.n = n
	for i := range x.tables {
		x.resize(i, x.tables[i].level)
	}
	var at [batch]int
	for from := 0; from < n; {
		ids := x.IDs(from, batch)
		x.FindAll(ids, at[:len(ids)]) // brings their buckets
		for i, id := range ids {
			h := hash(id)
			if x.find(h, id) >= 0 {
				return id, false
			}
			x.insert(h, from+i)
		}
		from += len(ids)
	}
	return 0, true
}

// Reset takes all ids out. Memory that was put to use is kept for the next ones.
func (x *Index) Reset() {
	for i := range x.tables {
		t := &x.tables[i]
		if t.level > 0 && int(t.n)*8 < mostFor*len(t.buckets) {
			*t = hashTable{}
			continue
		}
		clear(t.buckets)
		t.n = 0
	}
	x.n = 0
	x.ids.trim(0)
}

// find returns the position of an id with its hash, or -1.
func (x *Index) find(h uint64, id perdure.RowID) int {
	t := &x.tables[h>>56]
	if len(t.buckets) == 0 {
		return -1
	}
	i := t.home(h)
	for range t.buckets {
		b := &t.buckets[i]
		for m := b.match(tag(h)); m != 0; m &= m - 1 {
			if at := int(b.at[bits.TrailingZeros32(m)%slots]); x.ID(at) == id {
				return at
			}
		}
		if b.over == 0 {
			return -1
		}
		i = t.next(i)
	}
	return -1
}

// insert enters a position that is not there yet.
func (x *Index) insert(h uint64, at int) {
	i := int(h >> 56)
	t := &x.tables[i]
	if len(t.buckets) == 0 {
		x.resize(i, 0)
	} else if int(t.n) >= mostFor*len(t.buckets) {
		x.resize(i, t.level+1)
	}
	t.insert(h, at)
}

func (t *hashTable) insert(h uint64, at int) {
	t.n++
	i := t.home(h)
	for {
		b := &t.buckets[i]
		if m := b.match(0); m != 0 {
			s := bits.TrailingZeros32(m)
			b.setTag(s, tag(h))
			b.at[s%slots] = uint32(at)
			return
		}
		b.over++
		i = t.next(i)
	}
}

// clear takes a position out, which must be there.
func (x *Index) clear(h uint64, at int) {
	t := &x.tables[h>>56]
	here, s := x.slot(h, at)
	for i := t.home(h); &t.buckets[i] != here; i = t.next(i) {
		t.buckets[i].over--
	}
	here.setTag(s, 0)
	t.n--
	if t.level > 0 && int(t.n) < mostFor*len(t.buckets)/3 {
		x.resize(int(h>>56), t.level-1)
	}
}

// slot returns where a position stands, which must be there.
func (x *Index) slot(h uint64, at int) (b *bucket, s int) {
	t := &x.tables[h>>56]
	for i := t.home(h); ; i = t.next(i) {
		b = &t.buckets[i]
		for m := b.match(tag(h)); m != 0; m &= m - 1 {
			s = bits.TrailingZeros32(m)
			if b.at[s%slots] == uint32(at) {
				return b, s
			}
		}
	}
}

// resize gives a hash table the size of a level.
func (x *Index) resize(i int, level int8) {
	t := &x.tables[i]
	old := t.buckets
	*t = hashTable{buckets: make([]bucket, tableSize(i, level)), level: level}
	var at [batch]int
	n := 0
	for j := range old {
		b := &old[j]
		for m := ^b.match(0) & (1<<slots - 1); m != 0; m &= m - 1 {
			at[n] = int(b.at[bits.TrailingZeros32(m)%slots])
			n++
		}
		if n > batch-slots || j == len(old)-1 {
			x.enter(t, at[:n])
			n = 0
		}
	}
}

// enter inserts positions, at most batch, into their hash table.
func (x *Index) enter(t *hashTable, at []int) {
	var wanted [batch]unsafe.Pointer
	for i, at := range at {
		wanted[i] = unsafe.Pointer(&x.ids.pieces[at>>idShift][at&(1<<idShift-1)])
	}
	prefetch(&wanted[0], len(at), 1)
	for i, at := range at {
		t.insert(hash(*(*perdure.RowID)(wanted[i])), at)
	}
}

// tableSize returns the buckets of hash table i at a level: double those of the
// level below, and the more the higher its number, from 1 to 2 times 2^level.
func tableSize(i int, level int8) int { return (hashTables + i) << level / hashTables }

// hash spreads ids that are sequential, strided or differ in few bits. It must
// have nothing in common with what shares rows out among shards, nor be what
// initial values are made of.
func hash(id perdure.RowID) uint64 { return mix(uint64(id) ^ 0xd6e8feb86659fd93) }

// A hash's 8 highest bits choose the hash table, the next 32 the bucket, and the
// last 16 make the tag.

func (t *hashTable) home(h uint64) int {
	return int(uint64(uint32(h>>24)) * uint64(len(t.buckets)) >> 32)
}

func (t *hashTable) next(i int) int {
	if i++; i == len(t.buckets) {
		return 0
	}
	return i
}

// tag returns 1 to 255.
func tag(h uint64) uint8 { return uint8(h&0xffff*255>>16) + 1 }

const (
	ones  = 0x0101010101010101 // the lowest bit of each byte
	lows  = 0x7f7f7f7f7f7f7f7f // all but the highest
	mover = 0x0102040810204080 // a product with it brings the lowest bits of 8 bytes into the highest byte
	half  = 1<<32 - 1
)

// match returns a bit for each slot that has a tag.
func (b *bucket) match(tag uint8) uint32 {
	v := b.tags ^ uint64(tag)*ones
	w := b.tags2 ^ uint32(tag)*(ones&half)
	v = ^(v&lows + lows | v | lows) // 0x80 for each byte that was 0
	w = ^(w&(lows&half) + lows&half | w | lows&half)
	return uint32(v>>7*mover>>56) | uint32(uint64(w>>7)*mover>>56)<<8
}

func (b *bucket) setTag(s int, tag uint8) {
	if s < 8 {
		b.tags = b.tags&^(0xff<<(s*8)) | uint64(tag)<<(s*8)
		return
	}
	b.tags2 = b.tags2&^(0xff<<((s-8)*8)) | uint32(tag)<<((s-8)*8)
}

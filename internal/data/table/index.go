package table

import (
	"math/bits"
	"unsafe"

	"github.com/perdure/perdure"
)

// Index assigns positions 0, 1, 2, … to row ids in the order in which they are added. The positions depend only on the
// calls.
//
// Each id is stored once, in pieces of 1 MiB that are never copied. Positions are found through 256 hash tables. Each
// holds the ids of one range of hashes and grows on its own, so none is large and no call stalls for long. Their sizes
// are staggered, so that they grow in turn: at any time the tables of n ids have memory for at most 1.5 times what n
// ids need when all are full. That is 9.6 bytes per id, and 9 for the id itself: at most 18.6 bytes, plus 25 KiB for an
// empty index and 1 MiB for the piece that is being filled. After removals, the tables have at most 3 times the memory
// that the ids need.
//
// Find, FindAll, ID, IDs and Len do not modify the index and may run concurrently.
type Index struct {
	ids    column[perdure.RowID]
	n      int
	tables [hashTables]hashTable
}

const (
	hashTables = 256
	idShift    = 17 // piece of ids: 1 MiB

	slots  = 12 // per bucket
	maxIDs = 10 // ids per bucket of a hash table before it grows
)

// hashTable holds the positions of the ids whose hash starts with its number.
type hashTable struct {
	buckets []bucket
	n       int32
	level   int8 // size level
}

// bucket is one cache line: 12 positions with a byte of each id's hash, so that a single line nearly always determines
// where an id is, or that it is absent. An id whose bucket is full goes to the next one with space.
type bucket struct {
	tags     uint64 // of positions 0 to 7, lowest byte first; 0: empty
	tags2    uint32 // of positions 8 to 11
	overflow uint32 // number of ids that found this bucket full and are stored further on
	at       [slots]uint32
}

// NewIndex returns an index without ids.
func NewIndex() *Index {
	return &Index{ids: column[perdure.RowID]{width: 1, shift: idShift}}
}

// Len returns the number of ids.
func (x *Index) Len() int { return x.n }

// ID returns the id at a position in 0 … Len()-1.
func (x *Index) ID(at int) perdure.RowID {
	return x.ids.pieces[at>>idShift][at&(1<<idShift-1)]
}

// IDs returns at most n ids from a position on, and at least one unless the position is Len(). They alias the index.
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

// FindAll sets at[i] to the position of ids[i], or to -1. It is faster than a Find for each id because it overlaps the
// memory accesses. Both slices must have the same length.
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

// FindEach sets at[i] to the position of ids[i] in the index of[i], or to -1. It is FindAll for ids of several indexes.
// A nil index has no ids. The slices must have the same length.
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
			wanted[i] = unsafe.Pointer(&t.buckets[t.homeBucket(h)])
		}
	}
	prefetch(&wanted[0], len(ids), 1)
	for i := range ids { // the first position with the id's tag most likely belongs to the id
		if wanted[i] == nil {
			at[i] = absent
			continue
		}
		b := (*bucket)(wanted[i])
		m := b.match(tag(hashes[i]))
		switch {
		case m != 0:
			at[i] = int(b.at[bits.TrailingZeros32(m)%slots])
			wanted[i] = unsafe.Pointer(&of[i].ids.pieces[at[i]>>idShift][at[i]&(1<<idShift-1)])
		case b.overflow == 0:
			at[i], wanted[i] = absent, nil
		default:
			at[i], wanted[i] = inOtherBucket, nil
		}
	}
	prefetch(&wanted[0], len(ids), 1)
	for i, id := range ids {
		if at[i] == inOtherBucket || at[i] >= 0 && *(*perdure.RowID)(wanted[i]) != id {
			at[i] = of[i].find(hashes[i], id)
		}
	}
}

// Results of a lookup in an id's own bucket, if not a position.
const (
	absent        = -1
	inOtherBucket = -2
)

// Add assigns the next position to an id, unless it has one.
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

// Remove removes an id. To keep the positions 0 … Len()-1, the id at the last position, Len() after the call, moves to
// the freed position, hole. The caller must move data stored by position in the same way.
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

// restore builds the hash tables for n ids that the id column holds already. If an id occurs twice, it returns that id
// and false.
func (x *Index) restore(n int) (twice perdure.RowID, ok bool) {
	for i := range x.tables {
		x.tables[i] = hashTable{}
		for level := int8(0); maxIDs*hashTables*tableSize(i, level) < n; level++ {
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
		x.FindAll(ids, at[:len(ids)]) // prefetches their buckets
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

// Reset removes all ids. Memory in use is kept for later ids.
func (x *Index) Reset() {
	for i := range x.tables {
		t := &x.tables[i]
		if t.level > 0 && int(t.n)*8 < maxIDs*len(t.buckets) {
			*t = hashTable{}
			continue
		}
		clear(t.buckets)
		t.n = 0
	}
	x.n = 0
	x.ids.trim(0)
}

// find returns the position of an id with the given hash, or -1.
func (x *Index) find(h uint64, id perdure.RowID) int {
	t := &x.tables[h>>56]
	if len(t.buckets) == 0 {
		return -1
	}
	i := t.homeBucket(h)
	for range t.buckets {
		b := &t.buckets[i]
		for m := b.match(tag(h)); m != 0; m &= m - 1 {
			if at := int(b.at[bits.TrailingZeros32(m)%slots]); x.ID(at) == id {
				return at
			}
		}
		if b.overflow == 0 {
			return -1
		}
		i = t.next(i)
	}
	return -1
}

// insert inserts a new position.
func (x *Index) insert(h uint64, at int) {
	i := int(h >> 56)
	t := &x.tables[i]
	if len(t.buckets) == 0 {
		x.resize(i, 0)
	} else if int(t.n) >= maxIDs*len(t.buckets) {
		x.resize(i, t.level+1)
	}
	t.insert(h, at)
}

func (t *hashTable) insert(h uint64, at int) {
	t.n++
	i := t.homeBucket(h)
	for {
		b := &t.buckets[i]
		if m := b.match(0); m != 0 {
			s := bits.TrailingZeros32(m)
			b.setTag(s, tag(h))
			b.at[s%slots] = uint32(at)
			return
		}
		b.overflow++
		i = t.next(i)
	}
}

// clear removes a position, which must exist.
func (x *Index) clear(h uint64, at int) {
	t := &x.tables[h>>56]
	here, s := x.slot(h, at)
	for i := t.homeBucket(h); &t.buckets[i] != here; i = t.next(i) {
		t.buckets[i].overflow--
	}
	here.setTag(s, 0)
	t.n--
	if t.level > 0 && int(t.n) < maxIDs*len(t.buckets)/3 {
		x.resize(int(h>>56), t.level-1)
	}
}

// slot returns the bucket and the slot of a position, which must exist.
func (x *Index) slot(h uint64, at int) (b *bucket, s int) {
	t := &x.tables[h>>56]
	for i := t.homeBucket(h); ; i = t.next(i) {
		b = &t.buckets[i]
		for m := b.match(tag(h)); m != 0; m &= m - 1 {
			s = bits.TrailingZeros32(m)
			if b.at[s%slots] == uint32(at) {
				return b, s
			}
		}
	}
}

// resize changes a hash table to the size of the given level.
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
			x.insertBatch(t, at[:n])
			n = 0
		}
	}
}

// insertBatch inserts at most batch positions into their hash table.
func (x *Index) insertBatch(t *hashTable, at []int) {
	var wanted [batch]unsafe.Pointer
	for i, at := range at {
		wanted[i] = unsafe.Pointer(&x.ids.pieces[at>>idShift][at&(1<<idShift-1)])
	}
	prefetch(&wanted[0], len(at), 1)
	for i, at := range at {
		t.insert(hash(*(*perdure.RowID)(wanted[i])), at)
	}
}

// tableSize returns the number of buckets of hash table i at a level. It doubles with each level and increases with i,
// from 1 to 2 times 2^level.
func tableSize(i int, level int8) int { return (hashTables + i) << level / hashTables }

// hash distributes ids that are sequential, strided or differ in few bits. It must be independent of the function that
// assigns rows to shards and of the one that generates initial values.
func hash(id perdure.RowID) uint64 { return mix(uint64(id) ^ 0xd6e8feb86659fd93) }

// The 8 highest bits of a hash select the hash table, the next 32 the bucket, and the last 16 form the tag.

func (t *hashTable) homeBucket(h uint64) int {
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
	lows  = 0x7f7f7f7f7f7f7f7f // all bits except the highest of each byte
	mover = 0x0102040810204080 // multiplying by it moves the lowest bits of 8 bytes into the highest byte
	half  = 1<<32 - 1
)

// match returns a bit mask of the slots with the given tag.
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

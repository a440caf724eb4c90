package reads

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/table"
)

// cache holds rows of a part as they were read, with own updates applied. Each row has a position. If all rows of a
// dense part fit into the cache limit, the position is the row's number in the part. Otherwise, and for sparse tables,
// the index assigns positions, and rows that have not been read for long are evicted.
type cache struct {
	dim     int
	first   perdure.RowID // dense: first row of the part
	rows    int           // dense: number of rows of the part
	index   *table.Index  // nil: every row has a position
	values  []float32     // by position
	read    []*contents   // by position; nil: never read
	uniform bool          // all rows have the same contents, not nil; never set with an index
	floor   contents      // of the newest answer that did not go into the cache

	readAt       []perdure.Clock // by position: the clock of the last read; nil: not tracked
	pushed       []bool          // by position: the shard sends the row when it changes; nil: never
	unreadPushes []uint8         // by position, with pushed: number of pushes since the last read

	left       *int          // bytes that the client may still cache
	hand       int           // position at which the search for a row to evict resumes
	numScanned int           // how many rows were passed since one was found
	full       perdure.Clock // 1 + the clock in which all were passed; 0: none
}

// contents describes a row that was read. Rows of one answer share it.
type contents struct {
	epoch          perdure.Epoch
	seq            uint64
	minClock       perdure.Clock
	applied        []perdure.Clock // nil: nothing is known yet, but the row was requested
	fetchedAt      perdure.Clock   // the reader's clock at that time
	pendingRequest uint64          // the request that will replace it; 0: none
	// 1 + the first own clock whose update does not show in the row, because its shard was unavailable; 0: all show, as
	// they must in rows that are read while the shard is available.
	ownMissingFrom perdure.Clock

	// If not nil, the row was prefetched and not read yet, and own updates are not applied. On the first read they are
	// applied, and topped becomes the row's contents.
	withOwn *contents
	// If not nil, this stands for the rows that are pushed. latest describes them as of the last push, which replaces
	// it.
	latest *contents
}

// rowCost is the overhead of a cached row, in bytes.
const rowCost = 40

func (c *cache) rowBytes() int { return 4*c.dim + rowCost }

func (c *cache) init(spec *perdure.TableSpec, first perdure.RowID, rows int, left *int) {
	c.dim, c.first, c.rows, c.left = spec.Dim, first, rows, left
	if need := rows * c.rowBytes(); !spec.Sparse && need <= *left {
		*left -= need
	} else {
		c.index = table.NewIndex()
	}
}

func (r *contents) known() bool { return r != nil && r.applied != nil }

// newer reports whether r is newer than other in the shard's own order.
func (r *contents) newer(other *contents) bool {
	return r.epoch > other.epoch || r.epoch == other.epoch && r.seq > other.seq
}

// find returns a row's position, or -1.
func (c *cache) find(row perdure.RowID) int {
	if c.index == nil {
		return int(row - c.first)
	}
	if c.index.Len() == 0 {
		return -1
	}
	if at, ok := c.index.Find(row); ok {
		return at
	}
	return -1
}

// still returns a row's position, or -1. at is its position at an earlier lookup, which is checked first because it has
// rarely changed.
func (c *cache) still(at int, row perdure.RowID) int {
	if c.index != nil && at >= 0 && at < c.index.Len() && c.index.ID(at) == row {
		return at
	}
	return c.find(row)
}

// lookups is how many rows are looked up together, so that their memory latencies overlap.
const lookups = 128

// findAll sets at[i] to the position of rows[i], or to -1, for at most lookups rows.
func (c *cache) findAll(rows []perdure.RowID, at []int) {
	if c.index != nil {
		c.index.FindAll(rows, at)
		return
	}
	for i, row := range rows {
		at[i] = int(row - c.first)
	}
}

// rowAt returns the row at a position.
func (c *cache) rowAt(at int) perdure.RowID {
	if c.index != nil {
		return c.index.ID(at)
	}
	return c.first + perdure.RowID(at)
}

// open allocates memory for a part whose rows all have a position.
func (c *cache) open(subscribes bool) {
	if c.read != nil || c.index != nil {
		return
	}
	c.values, c.read = make([]float32, c.rows*c.dim), make([]*contents, c.rows)
	if subscribes {
		c.pushed, c.unreadPushes, c.readAt = make([]bool, c.rows), make([]uint8, c.rows), make([]perdure.Clock, c.rows)
	}
}

// add gives a row a position in the index, at a clock.
func (c *cache) add(row perdure.RowID, clock perdure.Clock, subscribes bool) int {
	*c.left -= c.rowBytes()
	at, _ := c.index.Add(row)
	c.read, c.readAt = append(c.read, nil), append(c.readAt, clock)
	c.values = append(c.values, make([]float32, c.dim)...)
	if subscribes {
		c.pushed, c.unreadPushes = append(c.pushed, false), append(c.unreadPushes, 0)
	}
	return at
}

// maxScanned limits the search for a row to evict.
const maxScanned = 1024

// oldest returns the position of a row that was read neither in this clock nor in the previous one, or -1 if it finds
// none.
func (c *cache) oldest(clock perdure.Clock) int {
	if c.full == clock+1 {
		return -1 // no row becomes evictable within a clock
	}
	for range min(maxScanned, len(c.read)) {
		if c.hand++; c.hand >= len(c.read) {
			c.hand = 0
		}
		if c.readAt[c.hand] < clock-1 {
			c.numScanned = 0
			return c.hand
		}
		c.numScanned++
	}
	if c.numScanned >= len(c.read) {
		c.numScanned, c.full = 0, clock+1
	}
	return -1
}

// remove removes the row at a position from an index. The last row takes its position.
func (c *cache) remove(at int) {
	c.index.Remove(c.index.ID(at))
	last := len(c.read) - 1
	c.read[at], c.readAt[at] = c.read[last], c.readAt[last]
	copy(c.row(at), c.row(last))
	c.read, c.readAt = slices.Delete(c.read, last, last+1), c.readAt[:last]
	c.values = c.values[:last*c.dim]
	if c.pushed != nil {
		c.pushed[at], c.unreadPushes[at] = c.pushed[last], c.unreadPushes[last]
		c.pushed, c.unreadPushes = c.pushed[:last], c.unreadPushes[:last]
	}
	*c.left += c.rowBytes()
}

// row returns the values at a position.
func (c *cache) row(at int) []float32 { return c.values[at*c.dim : (at+1)*c.dim] }

// contents returns the contents of the row at a position, or nil if it was never read.
func (c *cache) contents(at int) *contents {
	if at < 0 || c.read == nil {
		return nil
	}
	r := c.read[at]
	if r != nil && r.latest != nil {
		return r.latest
	}
	return r
}

// isPushed reports whether the shard sends the row at a position when it changes.
func (c *cache) isPushed(at int) bool { return at >= 0 && c.pushed != nil && c.pushed[at] }

// touch records that the rows at positions from ≤ at < end are read at a clock.
func (c *cache) touch(from, end int, clock perdure.Clock) {
	if c.readAt == nil {
		return
	}
	for i := range c.readAt[from:end] {
		c.readAt[from+i] = clock
	}
	if c.unreadPushes != nil {
		clear(c.unreadPushes[from:end])
	}
}

// pushedAgain records that the rows at positions from ≤ at < end were pushed.
func (c *cache) pushedAgain(from, end int) {
	for i, n := range c.unreadPushes[from:end] {
		c.unreadPushes[from+i] = max(n, n+1) // saturates
	}
}

// same returns the end of the run of rows with equal contents that starts at first, at most end.
func (c *cache) same(first, end int) int {
	if c.uniform || c.read == nil {
		return end
	}
	k := first + 1
	for k < end && c.read[k] == c.read[first] {
		k++
	}
	return k
}

// forget empties the cache.
func (c *cache) forget() {
	c.uniform = false
	if c.index == nil {
		clear(c.read)
		clear(c.pushed)
		return
	}
	*c.left += len(c.read) * c.rowBytes()
	c.index.Reset()
	clear(c.read)
	c.values, c.read, c.readAt, c.pushed = c.values[:0], c.read[:0], c.readAt[:0], c.pushed[:0]
	c.unreadPushes = c.unreadPushes[:0]
}

// retire records that own updates of a clock and later ones do not show in rows that lack none yet. These rows are not
// read again before they are refreshed, unless their shard becomes unavailable again first. None of them counts as
// pushed.
func (c *cache) retire(since perdure.Clock) {
	var had, has *contents
	for at, r := range c.read {
		if r == nil || r.latest == nil && (r.applied == nil || r.ownMissingFrom > 0) {
			continue
		}
		if r != had {
			had, has = r, new(contents)
			if *has = *r; r.latest != nil {
				*has = *r.latest
			}
			has.ownMissingFrom = since + 1
		}
		c.read[at] = has
	}
	clear(c.pushed)
}

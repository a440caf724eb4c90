package reads

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/table"
)

// cache holds rows of a part as they were read, own updates applied on top. A row has a
// position. If all rows of a dense part fit in what the client may cache, it is the row's
// number within the part; else, and in a sparse table, it is where the index has it, and
// rows that were not read for long make room for others.
type cache struct {
	dim     int
	first   perdure.RowID // dense: the part's
	rows    int           // dense: of the part
	index   *table.Index  // nil: every row has a position
	values  []float32     // by position
	read    []*contents   // by position; nil: never read
	uniform bool          // all rows have the same contents, not nil; never with an index
	floor   contents      // of the newest answer that did not go into the cache

	readAt []perdure.Clock // by position: the clock at which it was read last; nil: nobody asks
	pushed []bool          // by position: the shard sends the row when it changes; nil: it never does
	vain   []uint8         // by position, with pushed: how often it came since it was read

	left   *int          // bytes that the client may still cache
	hand   int           // where the search for a row to evict goes on
	looked int           // how many it has passed since it found one
	full   perdure.Clock // 1 + the clock in which all were passed; 0: none
}

// contents say what a row that was read contains. Rows of one answer share them.
type contents struct {
	epoch     perdure.Epoch
	seq       uint64
	minClock  perdure.Clock
	applied   []perdure.Clock // nil: nothing is known yet, but it was asked for
	fetchedAt perdure.Clock   // the reader's clock then
	renewal   uint64          // the request that will replace it; 0: none
	// 1 + the first own clock whose update does not show in the row, since its shard was
	// out; 0: all show, as they must in what is read while the shard is there.
	lacks perdure.Clock

	// Not nil: the row was fetched ahead and not read yet, and own updates are not on
	// top. Once it is read they are, and this is what it contains.
	topped *contents
	// Not nil: this stands for the rows that are pushed. It says what they contain as of
	// the last push, which gives it another.
	latest *contents
}

// rowCost is what a cached row takes beside its values, in bytes.
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

// newer reports whether r was read after other, by the shard's own order.
func (r *contents) newer(other *contents) bool {
	return r.epoch > other.epoch || r.epoch == other.epoch && r.seq > other.seq
}

// find returns a row's position, -1 if it has none.
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

// still returns a row's position, -1 if it has none: at if that was its position a moment ago, and nothing has moved it
// meanwhile.
func (c *cache) still(at int, row perdure.RowID) int {
	if c.index != nil && at >= 0 && at < c.index.Len() && c.index.ID(at) == row {
		return at
	}
	return c.find(row)
}

// lookups is how many rows are looked up at once: what that waits for from memory, it waits for together.
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

// rowAt returns which row is at a position.
func (c *cache) rowAt(at int) perdure.RowID {
	if c.index != nil {
		return c.index.ID(at)
	}
	return c.first + perdure.RowID(at)
}

// open makes room for the rows of a part that all have a position.
func (c *cache) open(subscribes bool) {
	if c.read != nil || c.index != nil {
		return
	}
	c.values, c.read = make([]float32, c.rows*c.dim), make([]*contents, c.rows)
	if subscribes {
		c.pushed, c.vain, c.readAt = make([]bool, c.rows), make([]uint8, c.rows), make([]perdure.Clock, c.rows)
	}
}

// add gives a row a position in the index, at a clock.
func (c *cache) add(row perdure.RowID, clock perdure.Clock, subscribes bool) int {
	*c.left -= c.rowBytes()
	at, _ := c.index.Add(row)
	c.read, c.readAt = append(c.read, nil), append(c.readAt, clock)
	c.values = append(c.values, make([]float32, c.dim)...)
	if subscribes {
		c.pushed, c.vain = append(c.pushed, false), append(c.vain, 0)
	}
	return at
}

// mostLooked bounds the search for a row to evict.
const mostLooked = 1024

// oldest returns the position of a row that was not read in this clock nor in the one
// before, the first that it finds; -1: it finds none.
func (c *cache) oldest(clock perdure.Clock) int {
	if c.full == clock+1 {
		return -1 // nothing grows old within a clock
	}
	for range min(mostLooked, len(c.read)) {
		if c.hand++; c.hand >= len(c.read) {
			c.hand = 0
		}
		if c.readAt[c.hand] < clock-1 {
			c.looked = 0
			return c.hand
		}
		c.looked++
	}
	if c.looked >= len(c.read) {
		c.looked, c.full = 0, clock+1
	}
	return -1
}

// remove takes the row at a position out of an index. The last takes its position.
func (c *cache) remove(at int) {
	c.index.Remove(c.index.ID(at))
	last := len(c.read) - 1
	c.read[at], c.readAt[at] = c.read[last], c.readAt[last]
	copy(c.row(at), c.row(last))
	c.read, c.readAt = slices.Delete(c.read, last, last+1), c.readAt[:last]
	c.values = c.values[:last*c.dim]
	if c.pushed != nil {
		c.pushed[at], c.vain[at] = c.pushed[last], c.vain[last]
		c.pushed, c.vain = c.pushed[:last], c.vain[:last]
	}
	*c.left += c.rowBytes()
}

// row returns the values at a position.
func (c *cache) row(at int) []float32 { return c.values[at*c.dim : (at+1)*c.dim] }

// contents returns what is known of the row at a position; nil if it was never read.
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

// touch notes that the rows from ≤ at < end are read at a clock.
func (c *cache) touch(from, end int, clock perdure.Clock) {
	if c.readAt == nil {
		return
	}
	for i := range c.readAt[from:end] {
		c.readAt[from+i] = clock
	}
	if c.vain != nil {
		clear(c.vain[from:end])
	}
}

// pushedAgain notes that the rows from ≤ at < end were pushed.
func (c *cache) pushedAgain(from, end int) {
	for i, n := range c.vain[from:end] {
		c.vain[from+i] = max(n, n+1) // as far as it can count
	}
}

// same returns the end of the rows from the first on, before end, that have the same
// contents as it.
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
	c.vain = c.vain[:0]
}

// retire notes that own updates of a clock and later ones do not show in rows that lack
// none yet: they are not read any more, unless their shard is out again before they were
// read anew. None of them is taken for pushed.
func (c *cache) retire(since perdure.Clock) {
	var had, has *contents
	for at, r := range c.read {
		if r == nil || r.latest == nil && (r.applied == nil || r.lacks > 0) {
			continue
		}
		if r != had {
			had, has = r, new(contents)
			if *has = *r; r.latest != nil {
				*has = *r.latest
			}
			has.lacks = since + 1
		}
		c.read[at] = has
	}
	clear(c.pushed)
}

package worker

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/table"
)

// cache holds rows of a part as they were read, own updates applied on top. A row
// has a place. If all rows of a dense part fit in what the client may cache, it is
// the row's number within the part; else, and in a sparse table, it is where the
// index has it, and rows that were not read for long make room for others.
type cache struct {
	dim     int
	rows    int          // dense
	index   *table.Index // nil: every row has a place
	values  []float32    // by place
	read    []*reading   // by place; nil: never read
	uniform bool         // all rows have the same reading, not nil; never with an index
	floor   reading      // the newest answer that did not go into the cache

	readAt []perdure.Clock // by place: the clock at which it was read last; nil: nobody asks
	pushed []bool          // by place: the shard sends the row when it changes; nil: it never does
	vain   []uint8         // by place, with pushed: how often it came since it was read

	left   *int          // bytes that the client may still cache
	hand   int           // where the search for a row to evict goes on
	looked int           // how many it has passed since it found one
	full   perdure.Clock // 1 + the clock in which all were passed; 0: none
}

// reading says what a cached row contains.
type reading struct {
	epoch     perdure.Epoch
	seq       uint64
	minClock  perdure.Clock
	applied   []perdure.Clock // nil: nothing is known yet, but it was asked for
	fetchedAt perdure.Clock
	renewal   uint64 // the request that will replace it; 0: none
	// 1 + the first own clock whose update does not show in the row, since its shard was
	// out; 0: all show, as they must in what is read while the shard is there.
	lacks perdure.Clock

	// Not nil: the row was fetched ahead and not read yet, and own updates are not on
	// top. Once it is read they are, and this is its reading.
	cooked *reading
	// Not nil: this stands for the rows that are pushed. It says what they contain as
	// of the last push, which gives it another.
	now *reading
}

// rowCost is what a cached row takes beside its values, in bytes.
const rowCost = 40

func (c *cache) rowBytes() int { return 4*c.dim + rowCost }

func (c *cache) init(spec perdure.TableSpec, rows int, left *int) {
	c.dim, c.rows, c.left = spec.Dim, rows, left
	if need := rows * c.rowBytes(); !spec.Sparse && need <= *left {
		*left -= need
	} else {
		c.index = table.NewIndex()
	}
}

func (r *reading) known() bool { return r != nil && r.applied != nil }

// newer reports whether r was read after other, by the shard's own order.
func (r *reading) newer(other *reading) bool {
	return r.epoch > other.epoch || r.epoch == other.epoch && r.seq > other.seq
}

// find returns a row's place, -1 if it has none.
func (c *cache) find(p *part, row perdure.RowID) int {
	if c.index == nil {
		return int(row - p.first)
	}
	if c.index.Len() == 0 {
		return -1
	}
	if at, ok := c.index.Find(row); ok {
		return at
	}
	return -1
}

// open makes room for the rows of a part that all have a place.
func (c *cache) open(t *Table) {
	if c.read != nil || c.index != nil {
		return
	}
	c.values, c.read = make([]float32, c.rows*c.dim), make([]*reading, c.rows)
	if t.subscribes() {
		c.pushed, c.vain, c.readAt = make([]bool, c.rows), make([]uint8, c.rows), make([]perdure.Clock, c.rows)
	}
}

// place returns a row's place, which it makes if need be; -1: there is no room.
func (c *cache) place(t *Table, p *part, row perdure.RowID) int {
	if c.index == nil {
		c.open(t)
		return int(row - p.first)
	}
	if at := c.find(p, row); at >= 0 {
		return at
	}
	for *c.left < c.rowBytes() {
		if !t.evict(p) && !t.c.evictElsewhere() {
			return -1
		}
	}
	*c.left -= c.rowBytes()
	at, _ := c.index.Add(row)
	c.read, c.readAt = append(c.read, nil), append(c.readAt, t.c.clock)
	c.values = append(c.values, make([]float32, c.dim)...)
	if t.subscribes() {
		c.pushed, c.vain = append(c.pushed, false), append(c.vain, 0)
	}
	return at
}

// mostLooked bounds the search for a row to evict.
const mostLooked = 1024

// evict takes a row out of a part's cache that was not read in this clock nor in
// the one before, the first that it finds, and reports whether it has.
func (t *Table) evict(p *part) bool {
	c := &p.cache
	if c.full == t.c.clock+1 {
		return false // nothing grows old within a clock
	}
	for range min(mostLooked, len(c.read)) {
		if c.hand++; c.hand >= len(c.read) {
			c.hand = 0
		}
		if at := c.hand; c.readAt[at] < t.c.clock-1 {
			t.remove(p, at)
			c.looked = 0
			return true
		}
		c.looked++
	}
	if c.looked >= len(c.read) {
		c.looked, c.full = 0, t.c.clock+1
	}
	return false
}

// evictElsewhere takes a row out of the cache of another part, of whatever table,
// and reports whether it has: what one table has filled and does not read any more
// must not keep others out. It needs c.mu.
func (c *Client) evictElsewhere() bool {
	for _, t := range c.tables {
		if t == nil {
			continue
		}
		for _, p := range t.parts {
			if p.cache.index != nil && t.evict(p) {
				return true
			}
		}
	}
	return false
}

// remove takes a row out of an indexed cache. The last takes its place.
func (t *Table) remove(p *part, at int) {
	c := &p.cache
	if row := c.index.ID(at); c.pushed != nil && c.pushed[at] {
		p.unwant(row)
	}
	c.index.Remove(c.index.ID(at))
	last := len(c.read) - 1
	c.read[at], c.readAt[at] = c.read[last], c.readAt[last]
	copy(c.row(at), c.row(last))
	c.read, c.readAt, c.values = slices.Delete(c.read, last, last+1), c.readAt[:last], c.values[:last*c.dim]
	if c.pushed != nil {
		c.pushed[at], c.vain[at] = c.pushed[last], c.vain[last]
		c.pushed, c.vain = c.pushed[:last], c.vain[:last]
	}
	*c.left += c.rowBytes()
}

// row returns the values at a place.
func (c *cache) row(at int) []float32 { return c.values[at*c.dim : (at+1)*c.dim] }

// reading returns what is known of the row at a place; nil if it was never read.
func (c *cache) reading(at int) *reading {
	if at < 0 || c.read == nil {
		return nil
	}
	r := c.read[at]
	if r != nil && r.now != nil {
		return r.now
	}
	return r
}

// isPushed reports whether the shard sends the row at a place when it changes.
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

// same returns the end of the rows from the first on, before end, that have the
// same reading as it.
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
	var had, has *reading
	for at, r := range c.read {
		if r == nil || r.now == nil && (r.applied == nil || r.lacks > 0) {
			continue
		}
		if r != had {
			had, has = r, new(reading)
			if *has = *r; r.now != nil {
				*has = *r.now
			}
			has.lacks = since + 1
		}
		c.read[at] = has
	}
	clear(c.pushed)
}

// Forget empties the table's cache: what is read next comes from the servers, as
// new as they have it, even where the consistency model would be content with
// less.
func (t *Table) Forget() {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	for _, p := range t.parts {
		p.cache.forget()
	}
}

// forget empties the table's cache, and what is read next may be older.
func (t *Table) forget() {
	for _, p := range t.parts {
		p.cache.forget()
		p.cache.floor = reading{}
	}
	t.expiring, t.expiringBytes = t.expiring[:0], 0
}

// mayAnswer reports whether the cached row at a place of a part may be read at a
// clock.
func (t *Table) mayAnswer(p *part, at int, clock perdure.Clock) bool {
	r := p.cache.reading(at)
	if !r.known() || r.lacks > 0 {
		return false
	}
	if t.c.exact {
		return r.minClock >= clock
	}
	if c := t.c; c.slot >= 0 && r.minClock < c.view.Slots[c.slot].Start && c.twoStep() {
		return false // as in need
	}
	return consistency.MayReuse(t.spec.Consistency, consistency.Cached{
		MinClock: r.minClock, FetchedAt: r.fetchedAt, Current: p.cache.isPushed(at) && t.c.shards[p.shard].open,
	}, clock)
}

// reuses reports whether a cached row may answer reads of later clocks: if the model
// lets it, or while its shard is out.
func (t *Table) reuses() bool {
	m := t.spec.Consistency
	return t.subscribes() || t.c.continues() || m.Kind == perdure.SSP && m.Staleness > 0 && !t.c.exact
}

package worker

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/consistency"
	"github.com/perdure/perdure/table"
)

// cache holds rows of a part as they were read, own updates applied on top. A row
// has a place: in a dense table its number within the part, in a sparse one where
// the index has it.
type cache struct {
	dim     int
	rows    int          // dense
	index   *table.Index // sparse; nil for a dense table
	values  []float32    // by place
	read    []*reading   // by place; nil: never read
	uniform bool         // dense: all rows have the same reading, not nil
	floor   reading      // the newest answer that did not go into the cache
}

// reading says what a cached row contains.
type reading struct {
	epoch     perdure.Epoch
	seq       uint64
	minClock  perdure.Clock
	applied   []perdure.Clock // nil: nothing is known yet, but it was asked for
	fetchedAt perdure.Clock
	renewal   uint64 // the request that will replace it; 0: none

	// Not nil: the row was fetched ahead and not read yet, and own updates are not on
	// top. Once it is read they are, and this is its reading.
	cooked *reading
}

func (c *cache) init(spec perdure.TableSpec, rows int) {
	c.dim, c.rows = spec.Dim, rows
	if spec.Sparse {
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

// open makes room for a dense part's rows.
func (c *cache) open() {
	if c.read == nil && c.index == nil {
		c.values, c.read = make([]float32, c.rows*c.dim), make([]*reading, c.rows)
	}
}

// place returns a row's place, which it makes if need be.
func (c *cache) place(p *part, row perdure.RowID) int {
	if c.index == nil {
		c.open()
		return int(row - p.first)
	}
	at, added := c.index.Add(row)
	if added {
		c.read = append(c.read, nil)
		c.values = append(c.values, make([]float32, c.dim)...)
	}
	return at
}

// row returns the values at a place.
func (c *cache) row(at int) []float32 { return c.values[at*c.dim : (at+1)*c.dim] }

// reading returns what is known of the row at a place; nil if it was never read.
func (c *cache) reading(at int) *reading {
	if at < 0 || c.read == nil {
		return nil
	}
	return c.read[at]
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
		return
	}
	c.index.Reset()
	c.values, c.read = c.values[:0], c.read[:0]
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

// bytes returns what the rows of a sparse table take.
func (c *cache) bytes() int {
	if c.index == nil {
		return 0
	}
	return len(c.read) * (4*c.dim + 24)
}

// mayAnswer reports whether the cached row may be read at a clock.
func (t *Table) mayAnswer(r *reading, clock perdure.Clock) bool {
	if !r.known() {
		return false
	}
	if t.c.exact {
		return r.minClock >= clock
	}
	return consistency.MayReuse(t.spec.Consistency, r.minClock, r.fetchedAt, clock)
}

package reads

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// Table is a client's state of one table.
type Table struct {
	r     *Reader
	id    perdure.TableID
	spec  perdure.TableSpec
	parts []*part // by shard
	most  int     // max rows in one answer

	// Rows that this client has read are pushed to it.
	subscribes bool
	// A cached row may answer reads of later clocks, because the model allows it or its shard is unavailable.
	reuses bool

	expiring      []span // read in the current clock, to be prefetched
	expiringBytes int
}

// part is one shard's part of a table.
type part struct {
	shard *Shard
	first perdure.RowID // dense
	rows  int           // dense
	cache cache

	push     *request        // represents the next push; nil: not awaited
	unwanted []perdure.RowID // rows that no longer need to be pushed
}

// span is a run of rows in a dense table's part.
type span struct {
	p     *part
	at, n int
}

// Own provides the slot's own updates that rows may lack: its outbox. It is used only during the call that it is passed
// to.
type Own interface {
	// Lacks reports whether there are updates to a shard's part of a table, of clocks from the given one on. A row with
	// only the clocks below lacks them.
	Lacks(s perdure.ShardID, t perdure.TableID, from perdure.Clock) bool
	// AddTo applies these updates to n rows, starting at first, whose values are given.
	AddTo(values []float32, s perdure.ShardID, t perdure.TableID, first perdure.RowID, n int, from perdure.Clock)
}

// Table returns a table of the job, and adds it on first use.
func (r *Reader) Table(id perdure.TableID, spec perdure.TableSpec) *Table {
	for len(r.tables) <= int(id) {
		r.tables = append(r.tables, nil)
	}
	if r.tables[id] != nil {
		return r.tables[id]
	}
	t := &Table{r: r, id: id, spec: spec, most: max(1, wire.PartBytes/(4*spec.Dim))}
	m := spec.Consistency
	t.subscribes = m.Pushed() && r.cfg.Slot >= 0 && !r.cfg.Exact
	t.reuses = t.subscribes || r.cfg.continues() || m.Kind == perdure.SSP && m.Staleness > 0 && !r.cfg.Exact
	for _, s := range r.shards {
		p := &part{shard: s}
		p.first, p.rows = placement.Range(&spec, len(r.shards), s.id)
		p.cache.init(&t.spec, p.first, p.rows, &r.left)
		t.parts = append(t.parts, p)
	}
	r.tables[id] = t
	r.bounds = r.bounds || m.Kind == perdure.VAP
	return t
}

// part returns the part that contains a row.
func (t *Table) part(row perdure.RowID) *part {
	return t.parts[placement.ShardOf(&t.spec, len(t.parts), row)]
}

// Forget empties the table's cache. The next reads return rows from the servers, as new as the servers have them.
func (t *Table) Forget() {
	for _, p := range t.parts {
		p.cache.forget()
	}
}

// forgetAll empties the table's cache. The next reads may return older rows.
func (t *Table) forgetAll() {
	for _, p := range t.parts {
		p.cache.forget()
		p.cache.floor = contents{}
	}
	t.expiring, t.expiringBytes = t.expiring[:0], 0
}

// place returns a row's position, and adds one if necessary; -1 means that the cache is full.
func (t *Table) place(p *part, row perdure.RowID) int {
	c := &p.cache
	if c.index == nil {
		c.open(t.subscribes)
		return int(row - p.first)
	}
	if at := c.find(row); at >= 0 {
		return at
	}
	for *c.left < c.rowBytes() {
		if !p.evict(t.r.now.Clock) && !t.r.evictElsewhere() {
			return -1
		}
	}
	return c.add(row, t.r.now.Clock, t.subscribes)
}

// evict removes a row from a part's cache that was read neither in this clock nor in the previous one. It reports
// whether it found one.
func (p *part) evict(clock perdure.Clock) bool {
	at := p.cache.oldest(clock)
	if at < 0 {
		return false
	}
	if p.cache.isPushed(at) {
		p.unwant(p.cache.rowAt(at))
	}
	p.cache.remove(at)
	return true
}

// evictElsewhere removes a row from the cache of any part of any table, and reports whether it found one. A table that
// is no longer read must not keep the rows of others out of the cache.
func (r *Reader) evictElsewhere() bool {
	for _, t := range r.tables {
		if t == nil {
			continue
		}
		for _, p := range t.parts {
			if p.cache.index != nil && p.evict(r.now.Clock) {
				return true
			}
		}
	}
	return false
}

// lacks reports whether there are own updates that rows read from a part lack and that can be applied here.
func (t *Table) lacks(p *part, r *contents, own Own) bool {
	slot := t.r.cfg.Slot
	return slot >= 0 && t.spec.Foretold() && own.Lacks(p.shard.id, t.id, r.applied[slot])
}

// top applies own updates to n rows, starting at first.
func (t *Table) top(values []float32, p *part, first perdure.RowID, n int, r *contents, own Own) {
	own.AddTo(values, p.shard.id, t.id, first, n, r.applied[t.r.cfg.Slot])
}

// Show applies new deltas of the current clock to run cached rows of a dense part, starting at its row number at, so
// that the program reads its own writes.
func (t *Table) Show(s perdure.ShardID, at, run int, delta []float32) {
	p := t.parts[s]
	if p.cache.index == nil {
		t.show(p, at, run, delta)
		return
	}
	for i := range run {
		if at := p.cache.find(p.first + perdure.RowID(at+i)); at >= 0 {
			t.show(p, at, 1, delta[i*t.spec.Dim:(i+1)*t.spec.Dim])
		}
	}
}

// ShowRows is Show for rows of a sparse table. The deltas of rows[i] have index picked[i] in delta.
func (t *Table) ShowRows(s perdure.ShardID, rows []perdure.RowID, picked []int32, delta []float32) {
	p, dim := t.parts[s], t.spec.Dim
	if p.cache.read == nil || !t.spec.Foretold() {
		return // before looking up any row
	}
	var found [lookups]int
	for i := range rows {
		if i%lookups == 0 {
			p.cache.findAll(rows[i:min(i+lookups, len(rows))], found[:min(lookups, len(rows)-i)])
		}
		if at := found[i%lookups]; at >= 0 {
			t.show(p, at, 1, delta[int(picked[i])*dim:(int(picked[i])+1)*dim])
		}
	}
}

// show applies deltas of the current clock to cached rows at consecutive positions. Rows that were never read are
// overwritten when they arrive. If a row already contains this clock, made by an earlier process of the slot, the
// server will ignore these deltas, and so does the cache.
func (t *Table) show(p *part, at, run int, delta []float32) {
	if p.cache.read == nil || !t.spec.Foretold() || !t.r.shows(p.shard) {
		return
	}
	dim, clock := t.spec.Dim, t.r.now.Clock
	for j := 0; j < run; {
		r, k := p.cache.contents(at+j), p.cache.same(at+j, at+run)-at
		if r.known() && r.topped == nil && r.lacks == 0 && r.applied[t.r.cfg.Slot] <= clock {
			table.Apply(t.spec.Rule, dim, p.cache.values[(at+j)*dim:(at+k)*dim], delta[j*dim:k*dim], clock)
		}
		j = k
	}
}

// shows reports whether own updates show in a shard's cached rows. If they do not, it records since when.
func (r *Reader) shows(s *Shard) bool {
	if s.out && r.cfg.OutageRows != perdure.RowsApply && !s.hidden {
		s.hidden, s.since = true, r.now.Clock
	}
	return !s.hidden
}

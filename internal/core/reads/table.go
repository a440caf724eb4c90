package reads

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// Table is what was read of one table.
type Table struct {
	r     *Reader
	id    perdure.TableID
	spec  perdure.TableSpec
	parts []*part // by shard
	most  int     // rows in one answer

	// Rows that this client has read are pushed to it.
	subscribes bool
	// A cached row may answer reads of later clocks: the model lets it, or its shard is out.
	reuses bool

	expiring      []span // read in the present clock, to be asked for ahead
	expiringBytes int
}

// part is one shard's part of a table.
type part struct {
	shard *Shard
	first perdure.RowID // dense
	rows  int           // dense
	cache cache

	push     *request        // stands for the next push; nil: nobody waits for it
	unwanted []perdure.RowID // that need not be pushed any more
}

// span is a run of rows of a dense table's part.
type span struct {
	p     *part
	at, n int
}

// Own is what the slot itself has made, and what was read may lack: its outbox. It is
// asked during one call, and not kept.
type Own interface {
	// Lacks reports whether it has updates to a shard's part of a table, of clocks from the
	// given one on: those that what was read does not contain.
	Lacks(s perdure.ShardID, t perdure.TableID, from perdure.Clock) bool
	// AddTo applies these to n rows from first on, which have the given values.
	AddTo(values []float32, s perdure.ShardID, t perdure.TableID, first perdure.RowID, n int, from perdure.Clock)
}

// Table begins to read a table of the job, or goes on with it.
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

// part returns the part that holds a row.
func (t *Table) part(row perdure.RowID) *part {
	return t.parts[placement.ShardOf(&t.spec, len(t.parts), row)]
}

// Forget empties the table's cache: what is read next comes from the servers, as new as
// they have it.
func (t *Table) Forget() {
	for _, p := range t.parts {
		p.cache.forget()
	}
}

// forgetAll empties the table's cache, and what is read next may be older.
func (t *Table) forgetAll() {
	for _, p := range t.parts {
		p.cache.forget()
		p.cache.floor = contents{}
	}
	t.expiring, t.expiringBytes = t.expiring[:0], 0
}

// place returns a row's position, which it makes if need be; -1: there is no room.
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

// evict takes a row out of a part's cache that was read neither in this clock nor in the
// one before, and reports whether it has.
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

// evictElsewhere takes a row out of the cache of another part, of whatever table, and
// reports whether it has: what one table has filled and does not read any more must not
// keep others out.
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

// lacks reports whether own updates exist that what was read of a part does not contain,
// and that can be applied to it here.
func (t *Table) lacks(p *part, r *contents, own Own) bool {
	slot := t.r.cfg.Slot
	return slot >= 0 && t.spec.Foretold() && own.Lacks(p.shard.id, t.id, r.applied[slot])
}

// top puts own updates on top of n rows from first on.
func (t *Table) top(values []float32, p *part, first perdure.RowID, n int, r *contents, own Own) {
	own.AddTo(values, p.shard.id, t.id, first, n, r.applied[t.r.cfg.Slot])
}

// Show applies deltas of the present clock, which were just Inc'd, to the cached ones of
// run rows of a dense part, by their numbers within it: the program reads its own writes.
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

// ShowRows is Show for rows of a sparse table. The deltas of rows[i] are the picked[i]-th of delta.
func (t *Table) ShowRows(s perdure.ShardID, rows []perdure.RowID, picked []int32, delta []float32) {
	p, dim := t.parts[s], t.spec.Dim
	if p.cache.read == nil || !t.spec.Foretold() {
		return // before any row is looked up
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

// show applies deltas of the present clock to cached rows at consecutive positions. Rows
// that were never read are overwritten when they come. A row may contain this clock
// already, done by an earlier process of the slot: then the server will ignore these
// deltas, and so does the cache.
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

// shows reports whether own updates show in a shard's cached rows, and notes it if they do
// not.
func (r *Reader) shows(s *Shard) bool {
	if s.out && r.cfg.OutageRows != perdure.RowsApply && !s.hidden {
		s.hidden, s.since = true, r.now.Clock
	}
	return !s.hidden
}

package reads

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// Table is a client's state of one table.
type Table struct {
	r       *Reader
	id      perdure.TableID
	spec    perdure.TableSpec
	shards  []*tableShard // by shard
	maxRows int           // max rows in one answer

	// Rows that this client has read are pushed to it.
	subscribes bool
	// A cached row may answer reads of later clocks, because the model allows it or its shard is unavailable.
	reuses bool

	expiring      []rowRun // read in the current clock, to be prefetched
	expiringBytes int
}

// tableShard is one shard's part of a table.
type tableShard struct {
	shard *Shard
	first perdure.RowID // dense
	rows  int           // dense
	cache cache

	push          *request        // represents the next push; nil: not awaited
	unsubscribing []perdure.RowID // rows that no longer need to be pushed
}

// rowRun is a run of rows in a dense table's part.
type rowRun struct {
	p     *tableShard
	at, n int
}

// OwnUpdates provides the slot's own updates that rows may lack: its outbox. It is used only during the call that it is
// passed to.
type OwnUpdates interface {
	// HasUpdates reports whether there are updates to a shard's part of a table, of clocks from the given one on. A row
	// with only the clocks below lacks them.
	HasUpdates(s perdure.ShardID, t perdure.TableID, from perdure.Clock) bool
	// ApplyTo applies these updates to n rows, starting at first, whose values are given.
	ApplyTo(values []float32, s perdure.ShardID, t perdure.TableID, first perdure.RowID, n int, from perdure.Clock)
}

// Table returns a table of the job, and adds it on first use.
func (r *Reader) Table(id perdure.TableID, spec perdure.TableSpec) *Table {
	for len(r.tables) <= int(id) {
		r.tables = append(r.tables, nil)
	}
	if r.tables[id] != nil {
		return r.tables[id]
	}
	t := &Table{r: r, id: id, spec: spec, maxRows: max(1, wire.PartBytes/(4*spec.Dim))}
	m := spec.Consistency
	t.subscribes = m.Pushed() && r.cfg.Slot >= 0 && !r.cfg.Exact
	t.reuses = t.subscribes || r.cfg.continues() || m.Kind == perdure.SSP && m.Staleness > 0 && !r.cfg.Exact
	for _, s := range r.shards {
		p := &tableShard{shard: s}
		p.first, p.rows = placement.Range(&spec, len(r.shards), s.id)
		p.cache.init(&t.spec, p.first, p.rows, &r.left)
		t.shards = append(t.shards, p)
	}
	r.tables[id] = t
	r.bounds = r.bounds || m.Kind == perdure.VAP
	return t
}

// shardOf returns the part that contains a row.
func (t *Table) shardOf(row perdure.RowID) *tableShard {
	return t.shards[placement.ShardOf(&t.spec, len(t.shards), row)]
}

// Forget empties the table's cache. The next reads return rows from the servers, as new as the servers have them.
func (t *Table) Forget() {
	for _, p := range t.shards {
		p.cache.forget()
	}
}

// forgetAll empties the table's cache. The next reads may return older rows.
func (t *Table) forgetAll() {
	for _, p := range t.shards {
		p.cache.forget()
		p.cache.floor = contents{}
	}
	t.expiring, t.expiringBytes = t.expiring[:0], 0
}

// positionFor returns a row's position, and adds one if necessary; -1 means that the cache is full.
func (t *Table) positionFor(p *tableShard, row perdure.RowID) int {
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
func (p *tableShard) evict(clock perdure.Clock) bool {
	at := p.cache.oldest(clock)
	if at < 0 {
		return false
	}
	if p.cache.isPushed(at) {
		p.queueUnsubscribe(p.cache.rowAt(at))
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
		for _, p := range t.shards {
			if p.cache.index != nil && p.evict(r.now.Clock) {
				return true
			}
		}
	}
	return false
}

// isOwnMissing reports whether there are own updates that rows read from a part lack and that can be applied here.
func (t *Table) isOwnMissing(p *tableShard, r *contents, own OwnUpdates) bool {
	slot := t.r.cfg.Slot
	return slot >= 0 && t.spec.HasPredictableEffect() && own.HasUpdates(p.shard.id, t.id, r.applied[slot])
}

// applyOwn applies own updates to n rows, starting at first.
func (t *Table) applyOwn(values []float32, p *tableShard, first perdure.RowID, n int, r *contents, own OwnUpdates) {
	own.ApplyTo(values, p.shard.id, t.id, first, n, r.applied[t.r.cfg.Slot])
}

// ApplyDeltas applies new deltas of the current clock to run cached rows of a dense part, starting at its row number
// at, so that the program reads its own writes.
func (t *Table) ApplyDeltas(s perdure.ShardID, at, run int, delta []float32) {
	p := t.shards[s]
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

// ApplyRowDeltas is ApplyDeltas for rows of a sparse table. The deltas of rows[i] have index picked[i] in delta.
func (t *Table) ApplyRowDeltas(s perdure.ShardID, rows []perdure.RowID, picked []int32, delta []float32) {
	p, dim := t.shards[s], t.spec.Dim
	if p.cache.read == nil || !t.spec.HasPredictableEffect() {
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
func (t *Table) show(p *tableShard, at, run int, delta []float32) {
	if p.cache.read == nil || !t.spec.HasPredictableEffect() || !t.r.shows(p.shard) {
		return
	}
	dim, clock := t.spec.Dim, t.r.now.Clock
	for j := 0; j < run; {
		r, k := p.cache.contents(at+j), p.cache.same(at+j, at+run)-at
		if r.known() && r.withOwn == nil && r.ownMissingFrom == 0 && r.applied[t.r.cfg.Slot] <= clock {
			table.Apply(t.spec.Rule, dim, p.cache.values[(at+j)*dim:(at+k)*dim], delta[j*dim:k*dim], clock)
		}
		j = k
	}
}

// shows reports whether own updates show in a shard's cached rows. If they do not, it records since when.
func (r *Reader) shows(s *Shard) bool {
	if s.unavailable && r.cfg.OutageRows != perdure.RowsApply && !s.hidden {
		s.hidden, s.since = true, r.now.Clock
	}
	return !s.hidden
}

package reads

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// maxPrefetchBytes limits the bytes of rows recorded for prefetching, and maxPrefetchRuns the number of runs.
const (
	maxPrefetchBytes = 16 << 20
	maxPrefetchRuns  = 1 << 16
)

// expire records which of the rows just read the cache can no longer answer after the next clock, for renew. Without
// staleness, nothing can be requested before other slots have finished. Rows of sparse tables are rarely read again in
// the next clock; programs use Prefetch for those that are.
func (t *Table) expire(rows *wire.Rows) {
	m := t.spec.Consistency
	if m.Kind != perdure.SSP || m.Staleness == 0 || t.r.cfg.Exact || t.spec.Sparse {
		return
	}
	at := t.prefetchClock()
	if rows.IDs == nil {
		t.expireRun(rows.First, rows.Count, at)
	}
	for _, id := range rows.IDs {
		t.expireRun(id, 1, at)
	}
}

func (t *Table) expireRun(first perdure.RowID, n int, clock perdure.Clock) {
	for n > 0 && t.expiringBytes < maxPrefetchBytes && len(t.expiring) < maxPrefetchRuns {
		p := t.shardOf(first)
		at := int(first - p.first)
		k := min(at+n, p.rows)
		if p.cache.index == nil { // otherwise few of the rows are cached, and at other positions
			k = p.cache.same(at, k)
		}
		if p.cache.index == nil && !t.mayAnswer(p, at, clock) {
			t.expiring = append(t.expiring, rowRun{p, at, k - at})
			t.expiringBytes += 4 * t.spec.Dim * (k - at)
		}
		first, n = first+perdure.RowID(k-at), n-(k-at)
	}
}

// prefetchClock returns the clock that rows are prefetched for: the one after the next.
func (t *Table) prefetchClock() perdure.Clock {
	at := t.r.now.Clock + 2
	if t.r.now.End > 0 {
		at = min(at, t.r.now.End)
	}
	return at
}

// PrefetchExpiring requests the expiring rows that were read in this clock and not replaced since. The requests wait
// for SendPrefetches. Rows with a request in transit are left out: its answer is probably fresh enough, and if it is
// not, a read sends another request.
func (r *Reader) PrefetchExpiring() {
	for _, t := range r.tables {
		if t != nil && len(t.expiring) > 0 {
			t.prefetchExpiring()
		}
	}
}

// SendPrefetches sends the requests of PrefetchExpiring to a shard. They are sent with the clock's update, so that the
// answers arrive while the program computes the next one.
func (r *Reader) SendPrefetches(s *Shard) {
	for _, q := range s.renewals {
		if q.asked {
			r.asked.send(q)
		}
	}
	s.renewals = s.renewals[:0]
}

func (t *Table) prefetchExpiring() {
	r, at := t.r, t.prefetchClock()
	c := r.newCall(t, nil)
	for _, sp := range t.expiring {
		for j := sp.at; j < sp.at+sp.n && sp.p.shard.source.asked < maxPendingBytes; {
			k := sp.p.cache.same(j, sp.at+sp.n)
			old := sp.p.cache.contents(j)
			asked := old != nil && r.asked.open[old.pendingRequest] != nil
			if !asked && !t.mayAnswer(sp.p, j, at) {
				t.addPrefetch(c, sp.p, sp.p.first+perdure.RowID(j), k-j, at)
			}
			j = k
		}
	}
	t.expiring, t.expiringBytes = t.expiring[:0], 0
	for s, q := range c.open {
		if q != nil {
			c.open[s] = nil
			t.registerPrefetch(q)
		}
	}
	c.Free()
}

// addPrefetch adds rows to the requests of PrefetchExpiring.
func (t *Table) addPrefetch(c *Call, p *tableShard, first perdure.RowID, n int, clock perdure.Clock) {
	for n > 0 {
		q := c.open[p.shard.id]
		if q == nil {
			q = t.r.asked.make(wire.KindGet, t, p.shard, t.need(clock))
			q.rows.First = first
			c.open[p.shard.id] = q
		}
		k := q.extend(first, n, q.rows.Count, t.maxRows) // the rows go into the cache only
		if q.rows.Count == t.maxRows {
			c.open[p.shard.id] = nil
			t.registerPrefetch(q)
		}
		first, n = first+perdure.RowID(k), n-k
	}
}

// registerPrefetch registers a request that is sent with the clock's update.
func (t *Table) registerPrefetch(q *request) {
	t.r.asked.register(q)
	t.mark(q)
	q.asked = true
	q.count(q.shard.source)
	q.shard.renewals = append(q.shard.renewals, q)
}

// mark records in cached rows which request will replace them.
func (t *Table) mark(q *request) {
	p := t.shards[q.shard.id]
	cc := &p.cache
	cc.open(t.subscribes)
	cc.uniform = cc.uniform && q.rows.IDs == nil && q.rows.Count == p.rows
	var old, marked *contents
	for i := range q.rows.Count {
		at := t.positionFor(p, q.rows.ID(i))
		if at < 0 {
			continue // read like any other row when it arrives
		}
		cc.touch(at, at+1, t.r.now.Clock)
		c := cc.contents(at)
		if marked == nil || c != old {
			old, marked = c, &contents{minClock: never}
			if c != nil {
				*marked = *c
			}
			marked.pendingRequest = q.id
		}
		cc.read[at] = marked
	}
}

// Prefetch requests those rows that the cache cannot answer now and that are not in transit. It stops when the cache is
// full of rows that the current clock reads.
func (t *Table) Prefetch(rows []perdure.RowID) {
	r, clock := t.r, t.r.clock()
	c := r.newCall(t, nil)
	ask := func(q *request) {
		t.mark(q)
		r.asked.enqueue(q)
	}
	for _, row := range rows {
		p := t.shardOf(row)
		at := p.cache.find(row)
		if how, _ := t.serve(p, at, clock); how != ByRequest {
			continue
		}
		if at < 0 && t.positionFor(p, row) < 0 {
			break
		}
		q := c.open[p.shard.id]
		if q == nil {
			q = r.asked.make(wire.KindGet, t, p.shard, t.need(clock))
			q.rows.IDs = q.ids[:0]
			c.open[p.shard.id] = q
		}
		q.add(row, 0)
		if q.rows.Count == t.maxRows {
			c.open[p.shard.id] = nil
			ask(q)
		}
	}
	for s, q := range c.open {
		if q != nil {
			c.open[s] = nil
			ask(q)
		}
	}
	c.Free()
}

package reads

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// mostAhead bounds the bytes that are noted to be asked for ahead, and mostSpans the runs
// of rows.
const (
	mostAhead = 16 << 20
	mostSpans = 1 << 16
)

// expire notes those of the rows just read that the cache will no longer answer after the
// next clock, for renew. With no staleness allowed there is nothing to ask for before
// others have finished. A sparse table's rows are rarely wanted in the next clock again;
// for those that are there is Prefetch.
func (t *Table) expire(rows *wire.Rows) {
	m := t.spec.Consistency
	if m.Kind != perdure.SSP || m.Staleness == 0 || t.r.cfg.Exact || t.spec.Sparse {
		return
	}
	at := t.ahead()
	if rows.IDs == nil {
		t.expireRun(rows.First, rows.Count, at)
	}
	for _, id := range rows.IDs {
		t.expireRun(id, 1, at)
	}
}

func (t *Table) expireRun(first perdure.RowID, n int, clock perdure.Clock) {
	for n > 0 && t.expiringBytes < mostAhead && len(t.expiring) < mostSpans {
		p := t.part(first)
		at := int(first - p.first)
		k := min(at+n, p.rows)
		if p.cache.index == nil { // else few of the rows are there, and not at these positions
			k = p.cache.same(at, k)
		}
		if p.cache.index == nil && !t.mayAnswer(p, at, clock) {
			t.expiring = append(t.expiring, span{p, at, k - at})
			t.expiringBytes += 4 * t.spec.Dim * (k - at)
		}
		first, n = first+perdure.RowID(k-at), n-(k-at)
	}
}

// ahead is the clock that rows are asked for ahead of: the one after the next.
func (t *Table) ahead() perdure.Clock {
	at := t.r.now.Clock + 2
	if t.r.now.End > 0 {
		at = min(at, t.r.now.End)
	}
	return at
}

// Renew asks for the rows that were read in this clock, that expire, and that have not
// been replaced meanwhile. The requests wait for Renewals. One that is on its way will
// most likely bring rows that are fresh enough, whatever it asked for; if not, a read asks
// again.
func (r *Reader) Renew() {
	for _, t := range r.tables {
		if t != nil && len(t.expiring) > 0 {
			t.renew()
		}
	}
}

// Renewals sends the requests of Renew to a shard. They go out with the clock's update, so
// that the answers come while the program computes the next.
func (r *Reader) Renewals(s *Shard) {
	for _, q := range s.renewals {
		if q.asked {
			r.asked.send(q)
		}
	}
	s.renewals = s.renewals[:0]
}

func (t *Table) renew() {
	r, at := t.r, t.ahead()
	c := r.newCall(t, nil)
	for _, sp := range t.expiring {
		for j := sp.at; j < sp.at+sp.n && sp.p.shard.source.asked < mostAsked; {
			k := sp.p.cache.same(j, sp.at+sp.n)
			old := sp.p.cache.contents(j)
			asked := old != nil && r.asked.open[old.renewal] != nil
			if !asked && !t.mayAnswer(sp.p, j, at) {
				t.wantAhead(c, sp.p, sp.p.first+perdure.RowID(j), k-j, at)
			}
			j = k
		}
	}
	t.expiring, t.expiringBytes = t.expiring[:0], 0
	for s, q := range c.open {
		if q != nil {
			c.open[s] = nil
			t.sendAhead(q)
		}
	}
	c.Free()
}

// wantAhead adds rows to what is asked for ahead.
func (t *Table) wantAhead(c *Call, p *part, first perdure.RowID, n int, clock perdure.Clock) {
	for n > 0 {
		q := c.open[p.shard.id]
		if q == nil {
			q = t.r.asked.make(wire.KindGet, t, p.shard, t.need(clock))
			q.rows.First = first
			c.open[p.shard.id] = q
		}
		k := q.extend(first, n, q.rows.Count, t.most) // it goes into the cache only
		if q.rows.Count == t.most {
			c.open[p.shard.id] = nil
			t.sendAhead(q)
		}
		first, n = first+perdure.RowID(k), n-k
	}
}

// sendAhead registers a request that goes out with the clock's update.
func (t *Table) sendAhead(q *request) {
	t.r.asked.register(q)
	t.mark(q)
	q.asked = true
	q.count(q.shard.source)
	q.shard.renewals = append(q.shard.renewals, q)
}

// mark notes at cached rows which request will replace them.
func (t *Table) mark(q *request) {
	p := t.parts[q.shard.id]
	cc := &p.cache
	cc.open(t.subscribes)
	cc.uniform = cc.uniform && q.rows.IDs == nil && q.rows.Count == p.rows
	var old, marked *contents
	for i := range q.rows.Count {
		at := t.place(p, q.rows.ID(i))
		if at < 0 {
			continue // what comes is read, if at all, like any other row
		}
		cc.touch(at, at+1, t.r.now.Clock)
		c := cc.contents(at)
		if marked == nil || c != old {
			old, marked = c, &contents{minClock: never}
			if c != nil {
				*marked = *c
			}
			marked.renewal = q.id
		}
		cc.read[at] = marked
	}
}

// Prefetch asks for those of the rows that the cache may not answer now and that are not
// on their way. It stops where the cache is full of what the present clock reads.
func (t *Table) Prefetch(rows []perdure.RowID) {
	r, clock := t.r, t.r.clock()
	c := r.newCall(t, nil)
	ask := func(q *request) {
		t.mark(q)
		r.asked.enqueue(q)
	}
	for _, row := range rows {
		p := t.part(row)
		at := p.cache.find(row)
		if how, _ := t.serve(p, at, clock); how != ByRequest {
			continue
		}
		if at < 0 && t.place(p, row) < 0 {
			break
		}
		q := c.open[p.shard.id]
		if q == nil {
			q = r.asked.make(wire.KindGet, t, p.shard, t.need(clock))
			q.rows.IDs = q.ids[:0]
			c.open[p.shard.id] = q
		}
		q.add(row, 0)
		if q.rows.Count == t.most {
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

package worker

import (
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// mostAhead bounds the bytes that are noted to be asked for ahead, and mostSpans
// the runs of rows.
const (
	mostAhead = 16 << 20
	mostSpans = 1 << 16
)

// expire notes those of the rows just read that the cache will no longer answer
// after the next clock, for renew. With no staleness allowed there is nothing to
// ask for before others have finished. A sparse table's rows are rarely wanted
// in the next clock again; for those that are there is Prefetch.
func (t *Table) expire(rows *wire.Rows) {
	m := t.spec.Consistency
	if m.Kind != perdure.SSP || m.Staleness == 0 || t.c.exact || t.spec.Sparse {
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
		if p.cache.index == nil { // else few of the rows are there, and not at these places
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
	at := t.c.clock + 2
	if t.c.view.End > 0 {
		at = min(at, t.c.view.End)
	}
	return at
}

// renew asks for the rows that expire and have not been replaced meanwhile. The
// requests go out with the clock's updates, so that the answers come while the
// program computes the next. A request that is on its way will most likely bring
// rows that are fresh enough, whatever it asked for; if not, a read asks again.
func (t *Table) renew() {
	if len(t.expiring) == 0 {
		return
	}
	c, at := t.c, t.ahead()
	b := c.newBatch(t, nil)
	for _, s := range t.expiring {
		for j := s.at; j < s.at+s.n && c.shards[s.p.shard].reader.asked < mostAsked; {
			k := s.p.cache.same(j, s.at+s.n)
			if r := s.p.cache.reading(j); !t.mayAnswer(s.p, j, at) && (r == nil || c.gets[r.renewal] == nil) {
				t.wantAhead(b, s.p, s.p.first+perdure.RowID(j), k-j, at)
			}
			j = k
		}
	}
	t.expiring, t.expiringBytes = t.expiring[:0], 0
	for s, g := range b.open {
		if g != nil {
			b.open[s] = nil
			t.sendAhead(g)
		}
	}
	b.free()
}

// wantAhead adds rows to what is asked for ahead.
func (t *Table) wantAhead(b *batch, p *part, first perdure.RowID, n int, clock perdure.Clock) {
	for n > 0 {
		g := b.open[p.shard]
		if g == nil {
			g = t.c.newGet(wire.KindGet, t, p.shard, t.need(clock))
			g.rows.First = first
			b.open[p.shard] = g
		}
		k := t.extend(g, first, n, g.rows.Count) // it goes into the cache only
		if g.rows.Count == t.most {
			b.open[p.shard] = nil
			t.sendAhead(g)
		}
		first, n = first+perdure.RowID(k), n-k
	}
}

// sendAhead registers a request that goes out with the clock's update.
func (t *Table) sendAhead(g *get) {
	t.c.register(g)
	t.parts[g.shard].mark(t, g)
	sh := t.c.shards[g.shard]
	g.asked = true
	g.count(sh.reader)
	sh.renewals = append(sh.renewals, g)
}

// mark notes at cached rows which request will replace them.
func (p *part) mark(t *Table, g *get) {
	cc := &p.cache
	cc.open(t)
	cc.uniform = cc.uniform && g.rows.IDs == nil && g.rows.Count == p.rows
	var old, marked *reading
	for i := range g.rows.Count {
		at := cc.place(t, p, g.rows.ID(i))
		if at < 0 {
			continue // what comes is read, if at all, like any other row
		}
		cc.touch(at, at+1, t.c.clock)
		r := cc.reading(at)
		if marked == nil || r != old {
			old, marked = r, &reading{minClock: math.MinInt64}
			if r != nil {
				*marked = *r
			}
			marked.renewal = g.id
		}
		cc.read[at] = marked
	}
}

// addRenewals appends the requests to send with the clock's update. It needs
// c.mu.
func (c *Client) addRenewals(sh *shardLink, frames []wire.Frame) []wire.Frame {
	for _, g := range sh.renewals {
		if g.asked {
			frames = append(frames, c.getFrame(sh, g))
		}
	}
	sh.renewals = sh.renewals[:0]
	return frames
}

// askAhead asks for those of the rows that the cache may not answer at the
// present clock and that are not on their way. It needs c.mu.
func (t *Table) askAhead(rows []perdure.RowID) {
	c, clock := t.c, t.c.readClock()
	b := c.newBatch(t, nil)
	ask := func(g *get) {
		t.parts[g.shard].mark(t, g)
		c.enqueue(g)
	}
	for _, row := range rows {
		p := t.part(row)
		at := p.cache.find(p, row)
		if ok, _ := t.serves(p, at, clock); ok || t.coming(p, at, clock) != nil {
			continue
		}
		if at < 0 && p.cache.place(t, p, row) < 0 {
			break // the cache is full of what this clock reads
		}
		g := b.open[p.shard]
		if g == nil {
			g = c.newGet(wire.KindGet, t, p.shard, t.need(clock))
			g.rows.IDs = g.ids[:0]
			b.open[p.shard] = g
		}
		g.push(row, 0)
		if g.rows.Count == t.most {
			b.open[p.shard] = nil
			ask(g)
		}
	}
	for s, g := range b.open {
		if g != nil {
			b.open[s] = nil
			ask(g)
		}
	}
	b.free()
	c.pump()
}

// tidy forgets, at the start of a clock, the cached rows of tables that it will not
// read any more: all that stand in an index, unless later clocks may read them. It
// needs c.mu.
func (c *Client) tidy() {
	for _, t := range c.tables {
		if t == nil || t.reuses() {
			continue
		}
		for _, p := range t.parts {
			if p.cache.index != nil && len(p.cache.read) > 0 {
				p.cache.forget()
			}
		}
	}
	c.dropUnread()
}

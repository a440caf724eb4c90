package reads

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// Serving is how a read of a row is served.
type Serving int

// The ways to serve a read.
const (
	ByRequest   Serving = iota // the shard is asked, because no cached row, answer or push is sufficient
	FromCache                  // the cached row may be read
	BeyondBound                // the cached row may be read beyond the model's bound, because its shard is unavailable
	InFlight                   // an answer or push in transit is awaited
)

// serve decides how a read of the row at a cache position of a part is served at a clock. If the read must wait, serve
// returns the request to wait for.
func (t *Table) serve(p *tableShard, at int, clock perdure.Clock) (Serving, *request) {
	if t.mayAnswer(p, at, clock) {
		return FromCache, nil
	}
	if p.shard.unavailable && t.mayReadDuringOutage(p, at, clock) {
		return BeyondBound, nil
	}
	if q := t.inFlight(p, at, clock); q != nil {
		return InFlight, q
	}
	return ByRequest, nil
}

// mayAnswer reports whether the cached row at a position of a part may be read at a clock.
func (t *Table) mayAnswer(p *tableShard, at int, clock perdure.Clock) bool {
	c := p.cache.contents(at)
	if !c.known() || c.ownMissingFrom > 0 {
		return false
	}
	if t.r.cfg.Exact {
		return c.minClock >= clock
	}
	if c.minClock < t.r.now.MinReadClock {
		return false // as in need
	}
	return consistency.MayReuse(t.spec.Consistency, consistency.CachedRow{
		MinClock: c.minClock, FetchedAt: c.fetchedAt, Subscribed: p.cache.isPushed(at) && p.shard.open,
	}, clock)
}

// mayReadDuringOutage reports whether the cached row at a position of a part may be read at a clock because its shard
// is unavailable.
func (t *Table) mayReadDuringOutage(p *tableShard, at int, clock perdure.Clock) bool {
	c := p.cache.contents(at)
	if !c.known() || c.minClock < t.r.now.MinReadClock {
		return false
	}
	return consistency.MayReadDuringOutage(t.spec.Consistency, consistency.CachedRow{
		MinClock: c.minClock, FetchedAt: c.fetchedAt,
	}, clock, t.r.cfg.OnOutage.Clocks)
}

// inFlight returns the request or push in transit that will replace the cached row at a position and is sufficient for
// a read at a clock, or nil.
func (t *Table) inFlight(p *tableShard, at int, clock perdure.Clock) *request {
	if p.cache.isPushed(at) && p.shard.open {
		return t.awaitPush(p, t.need(clock))
	}
	c := p.cache.contents(at)
	if c == nil || c.pendingRequest == 0 {
		return nil
	}
	if q := t.r.asked.open[c.pendingRequest]; q != nil && q.need >= t.need(clock) {
		return q
	}
	return nil
}

// need returns the MinClock that a read of the table at a clock needs.
func (t *Table) need(clock perdure.Clock) perdure.Clock {
	if t.r.cfg.Exact {
		return clock
	}
	return max(consistency.RequiredMinClock(t.spec.Consistency, clock), t.r.now.MinReadClock)
}

// passBytes is the minimum size of a run of rows that is not cached if only the current clock could read it from the
// cache. Its reader already has it, and another copy would cost nearly as much as fetching it.
const passBytes = 64 << 10

// Read copies the rows that the cache can answer into dst, and requests the rest. dst belongs to the call until the
// call has ended or was abandoned.
func (t *Table) Read(rows *wire.Rows, dst []float32, own OwnUpdates) *Call {
	c := t.r.newCall(t, dst)
	c.pass = rows.IDs == nil && 4*len(dst) >= passBytes && !t.reuses
	if rows.IDs == nil {
		t.collectRun(c, rows, own)
	} else {
		t.collectList(c, rows, own)
	}
	return c.request()
}

// ReadRounded requests a run of rows, which servers round as e says. The table must not push rows. Otherwise it is like
// Read.
func (r *Reader) ReadRounded(t *Table, rows *wire.Rows, dst []float32, e perdure.Encoding) *Call {
	c := r.newCall(t, dst)
	c.pass, c.encoding = true, e
	for i := 0; i < rows.Count; {
		first := rows.First + perdure.RowID(i)
		p := t.shardOf(first)
		n := min(rows.Count-i, p.rows-int(first-p.first))
		t.requestRun(c, p, first, n, i)
		i += n
	}
	return c.request()
}

// request enqueues the requests that were still open for more rows.
func (c *Call) request() *Call {
	for s, q := range c.open {
		if q != nil {
			c.open[s] = nil
			c.add(q)
		}
	}
	return c
}

// End ends a call that is done, for the rows that it has read. It measures the read, and records which rows to
// prefetch. A read that violates its bound fails with perdure.ErrBound. If again is true, some rows have just entered
// the cache: nothing was measured, and the caller must read the rows again.
func (c *Call) End(rows *wire.Rows) (of Clocks, again bool, err error) {
	t := c.t
	if again = c.again; !again {
		of, err = clocksOf(c.seen), t.measure(c.seen, min(c.clock, c.r.clock()))
	}
	if c.Free(); !again && err == nil {
		t.expire(rows)
	}
	return of, again, err
}

// Clocks describes the clocks in rows that were read, not counting the reader's own updates. The rows contain all
// updates of clocks below Oldest, and none of Newest or later clocks. If both are equal, the rows are of a single
// clock.
type Clocks struct{ Oldest, Newest perdure.Clock }

func clocksOf(seen []readRecord) (of Clocks) {
	for i := range seen {
		c := seen[i].c
		if i == 0 {
			of.Oldest = c.minClock
		}
		of.Oldest, of.Newest = min(of.Oldest, c.minClock), max(of.Newest, c.minClock)
		for _, clock := range c.applied {
			of.Newest = max(of.Newest, clock)
		}
	}
	return of
}

// collectRun copies rows from the cache and creates requests for the others.
func (t *Table) collectRun(c *Call, rows *wire.Rows, own OwnUpdates) {
	clock, dim := t.r.clock(), t.spec.Dim
	for i := 0; i < rows.Count; {
		first := rows.First + perdure.RowID(i)
		p := t.shardOf(first)
		at := int(first - p.first)
		end := min(at+rows.Count-i, p.rows)
		if p.cache.index != nil { // the part is too large to be cached completely
			t.requestRun(c, p, first, end-at, i)
			i += end - at
			continue
		}
		for at < end {
			k := p.cache.same(at, end)
			switch how, q := t.serve(p, at, clock); how {
			case FromCache, BeyondBound:
				r := t.withOwnUpdates(p, at, k, own)
				copy(c.dst[i*dim:(i+k-at)*dim], p.cache.values[at*dim:k*dim])
				p.cache.touch(at, k, t.r.now.Clock)
				c.saw(p.shard, r, k-at, how == BeyondBound)
			case InFlight:
				p.cache.touch(at, k, t.r.now.Clock) // it is in use, so it must not be given up while the read waits
				c.await(q)
			default:
				t.requestRun(c, p, p.first+perdure.RowID(at), k-at, i)
			}
			i += k - at
			at = k
		}
	}
}

// collectList is collectRun for a list of rows.
func (t *Table) collectList(c *Call, rows *wire.Rows, own OwnUpdates) {
	clock, dim := t.r.clock(), t.spec.Dim
	var found located
	for i, row := range rows.IDs {
		if i%lookups == 0 {
			found.look(t, rows.IDs[i:min(i+lookups, len(rows.IDs))])
		}
		p := found.parts[i%lookups]
		at := p.cache.still(found.at[i%lookups], row)
		switch how, q := t.serve(p, at, clock); how {
		case FromCache, BeyondBound:
			r := t.withOwnUpdates(p, at, at+1, own)
			copy(c.dst[i*dim:(i+1)*dim], p.cache.row(at))
			p.cache.touch(at, at+1, t.r.now.Clock)
			c.saw(p.shard, r, 1, how == BeyondBound)
		case InFlight:
			p.cache.touch(at, at+1, t.r.now.Clock)
			c.await(q)
		default:
			t.requestRow(c, p, row, i)
		}
	}
}

// located holds the parts of some rows, and their positions in the caches.
type located struct {
	parts [lookups]*tableShard
	at    [lookups]int
}

// look looks up rows, at most lookups.
func (l *located) look(t *Table, rows []perdure.RowID) {
	var of [lookups]*table.Index
	for i, row := range rows {
		l.parts[i] = t.shardOf(row)
		of[i] = l.parts[i].cache.index
	}
	table.FindEach(of[:len(rows)], rows, l.at[:len(rows)])
}

// withOwnUpdates applies own updates to the cached rows at positions from ≤ at < end, which have the same contents,
// unless this was done before. It returns their contents.
func (t *Table) withOwnUpdates(p *tableShard, from, end int, own OwnUpdates) *contents {
	c := &p.cache
	r := c.contents(from)
	if r.withOwn == nil {
		return r
	}
	r = r.withOwn
	if t.isOwnMissing(p, r, own) {
		t.applyOwn(c.values[from*c.dim:end*c.dim], p, c.rowAt(from), end-from, r, own)
	}
	for i := from; i < end; i++ {
		c.read[i] = r
	}
	return r
}

// requestRun adds rows to the call's requests. to is the index of the first one in dst.
func (t *Table) requestRun(c *Call, p *tableShard, first perdure.RowID, n, to int) {
	for n > 0 {
		q := c.open[p.shard.id]
		if q == nil {
			q = c.begin(p, first, to)
		}
		k := q.extend(first, n, to, t.maxRows)
		if q.rows.Count == t.maxRows {
			c.open[p.shard.id] = nil
			c.add(q)
		}
		first, n, to = first+perdure.RowID(k), n-k, to+k
	}
}

// requestRow is requestRun for one row, which may have no fixed position. Rows that are cached individually are
// requested as a list.
func (t *Table) requestRow(c *Call, p *tableShard, row perdure.RowID, to int) {
	if p.cache.index == nil {
		t.requestRun(c, p, row, 1, to)
		return
	}
	q := c.open[p.shard.id]
	if q == nil {
		q = c.begin(p, 0, to)
		q.rows.IDs = q.ids[:0]
	}
	q.add(row, to)
	if q.rows.Count == t.maxRows {
		c.open[p.shard.id] = nil
		c.add(q)
	}
}

// begin starts a request for rows of a part.
func (c *Call) begin(p *tableShard, first perdure.RowID, to int) *request {
	q := c.r.asked.make(wire.KindGet, c.t, p.shard, c.t.need(c.r.clock()))
	q.rows.First, q.dst, q.to, q.pass, q.encoding = first, c.dst, to, c.pass, c.encoding
	c.open[p.shard.id] = q
	return q
}

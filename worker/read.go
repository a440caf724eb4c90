package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/wire"
)

// batch is one call's requests: it waits until all are answered.
type batch struct {
	c     *Client
	t     *Table
	dst   []float32          // what the rows are read into
	pass  bool               // what is fetched does not go into the cache
	left  int                // requests not answered yet
	again bool               // some rows are in the cache only now, or were not fresh enough: read again
	gets  []*get             // the requests of this batch
	open  []*get             // by shard: rows are still being added; nil: none
	state []byte             // what an answer to KindLoad brought
	ids   []perdure.RowID    // what an answer to KindScan brought
	count int                // likewise: rows that the shard stores
	gen   perdure.Generation // that it was begun in: no answer counts in another
	clock perdure.Clock      // likewise: Clock may be called while it waits
	seen  []sight            // what is being read

	waited uint64 // microseconds that a server held an answer back
	pushed bool   // it waited for a push
	late   uint64 // microseconds that the push came after what it waited for
}

// sight is what n rows that are read contain.
type sight struct {
	shard perdure.ShardID
	r     *reading
	n     int
	stale bool // beyond the model's bound, because the shard is out
}

// newBatch needs c.mu.
func (c *Client) newBatch(t *Table, dst []float32) *batch {
	var b *batch
	if n := len(c.freeBatches); n > 0 {
		b, c.freeBatches = c.freeBatches[n-1], c.freeBatches[:n-1]
	} else {
		b = new(batch)
	}
	*b = batch{c: c, t: t, gen: c.generation, clock: c.readClock(), dst: dst, gets: b.gets[:0], open: b.open, seen: b.seen[:0]}
	for len(b.open) < len(c.shards) {
		b.open = append(b.open, nil)
	}
	return b
}

// free takes a batch back whose requests are all answered. It needs c.mu.
func (b *batch) free() {
	clear(b.gets)
	clear(b.open)
	clear(b.seen)
	b.c.freeBatches = append(b.c.freeBatches, b)
}

// add sends a request of the batch, as soon as it is its turn.
func (b *batch) add(g *get) {
	b.gets = append(b.gets, g)
	b.follow(g)
	b.c.enqueue(g)
}

// enqueue registers a request that pump will send when it is its turn.
func (c *Client) enqueue(g *get) {
	c.register(g)
	c.queue = append(c.queue, g)
}

// follow waits for a request, too.
func (b *batch) follow(g *get) {
	b.left++
	g.batches = append(g.batches, b)
}

// passBytes is the least size of a run of rows that is not kept in the cache if
// only the present clock could read it there again: its reader has it, and
// copying it once more would cost nearly as much as fetching it.
const passBytes = 64 << 10

// read copies out what the cache may answer, and fetches the rest.
func (t *Table) read(ctx context.Context, rows *wire.Rows, dst []float32) error {
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stats.began.IsZero() {
		c.stats.began = time.Now()
	}
	for {
		if err := c.usable(); err != nil {
			return err
		}
		b := c.newBatch(t, dst)
		b.pass = rows.IDs == nil && 4*len(dst) >= passBytes && !t.reuses()
		if rows.IDs == nil {
			t.collectRun(b, rows)
		} else {
			t.collectList(b, rows)
		}
		for s, g := range b.open {
			if g != nil {
				b.open[s] = nil
				b.add(g)
			}
		}
		if err := c.await(ctx, b, c.usable); c.readsOn(err) {
			continue
		} else if err != nil {
			return err
		}
		again := b.again
		if again {
			b.free()
			continue
		}
		err := t.measure(b.seen, min(b.clock, c.readClock()))
		b.free()
		if err != nil {
			return err
		}
		break
	}
	t.expire(rows)
	return nil
}

// readsOn reports whether a read that ended with err is simply made again: an
// observer does nothing that a roll-back could undo.
func (c *Client) readsOn(err error) bool {
	return c.cfg.Observer && errors.Is(err, perdure.ErrRolledBack)
}

// collectRun copies rows from the cache and makes up requests for the others.
func (t *Table) collectRun(b *batch, rows *wire.Rows) {
	clock, dim := t.c.readClock(), t.spec.Dim
	for i := 0; i < rows.Count; {
		first := rows.First + perdure.RowID(i)
		p := t.part(first)
		at := int(first - p.first)
		end := min(at+rows.Count-i, p.rows)
		if p.cache.index != nil { // runs of a part that is too large to be cached whole
			t.wantRun(b, p, first, end-at, i)
			i += end - at
			continue
		}
		for at < end {
			k := p.cache.same(at, end)
			if ok, stale := t.serves(p, at, clock); ok {
				r := t.cook(p, p.first+perdure.RowID(at), at, k)
				copy(b.dst[i*dim:(i+k-at)*dim], p.cache.values[at*dim:k*dim])
				p.cache.touch(at, k, t.c.clock)
				b.saw(p.shard, r, k-at, stale)
			} else if g := t.coming(p, at, clock); g != nil {
				p.cache.touch(at, k, t.c.clock) // it is wanted: not to be given up meanwhile
				b.await(g)
			} else {
				t.wantRun(b, p, p.first+perdure.RowID(at), k-at, i)
			}
			i += k - at
			at = k
		}
	}
}

// collectList is collectRun for a list of rows.
func (t *Table) collectList(b *batch, rows *wire.Rows) {
	clock, dim := t.c.readClock(), t.spec.Dim
	for i, row := range rows.IDs {
		p := t.part(row)
		at := p.cache.find(p, row)
		if ok, stale := t.serves(p, at, clock); ok {
			r := t.cook(p, row, at, at+1)
			copy(b.dst[i*dim:(i+1)*dim], p.cache.row(at))
			p.cache.touch(at, at+1, t.c.clock)
			b.saw(p.shard, r, 1, stale)
		} else if g := t.coming(p, at, clock); g != nil {
			p.cache.touch(at, at+1, t.c.clock)
			b.await(g)
		} else {
			t.wantRow(b, p, row, i)
		}
	}
}

// cook puts own updates on top of cached rows with one reading, the first of which
// is the given one, if that has not been done, and returns their reading.
func (t *Table) cook(p *part, first perdure.RowID, at, end int) *reading {
	cc := &p.cache
	r := cc.reading(at)
	if r.cooked == nil {
		return r
	}
	r = r.cooked
	if sh := t.c.shards[p.shard]; t.pending(sh, r) {
		t.overlay(p, sh, r, &wire.Rows{First: first, Count: end - at}, cc.values[at*cc.dim:end*cc.dim])
	}
	for i := at; i < end; i++ {
		cc.read[i] = r
	}
	return r
}

// await waits for a request whose answer goes into the cache only.
func (b *batch) await(g *get) {
	b.again = true
	if len(g.batches) == 0 || g.batches[len(g.batches)-1] != b {
		b.follow(g)
	}
}

// wantRun adds rows to the batch's requests; they go to the to-th row of dst.
func (t *Table) wantRun(b *batch, p *part, first perdure.RowID, n, to int) {
	for n > 0 {
		g := b.open[p.shard]
		if g == nil {
			g = b.begin(p, first, to)
		}
		k := t.extend(g, first, n, to)
		if g.rows.Count == t.most {
			b.open[p.shard] = nil
			b.add(g)
		}
		first, n, to = first+perdure.RowID(k), n-k, to+k
	}
}

// extend adds as many of n rows to a request as fit in, and returns how many.
func (t *Table) extend(g *get, first perdure.RowID, n, to int) int {
	n = min(n, t.most-g.rows.Count)
	if g.rows.IDs == nil && first == g.rows.First+perdure.RowID(g.rows.Count) && to == g.to+g.rows.Count {
		g.rows.Count += n
		return n
	}
	g.list()
	for i := range n {
		g.push(first+perdure.RowID(i), to+i)
	}
	return n
}

// wantRow is wantRun for one row, which may have no place of its own: rows that the
// cache takes one by one are asked for as a list.
func (t *Table) wantRow(b *batch, p *part, row perdure.RowID, to int) {
	if p.cache.index == nil {
		t.wantRun(b, p, row, 1, to)
		return
	}
	g := b.open[p.shard]
	if g == nil {
		g = b.begin(p, 0, to)
		g.rows.IDs = g.ids[:0]
	}
	g.push(row, to)
	if g.rows.Count == t.most {
		b.open[p.shard] = nil
		b.add(g)
	}
}

// begin begins a request of rows of a part.
func (b *batch) begin(p *part, first perdure.RowID, to int) *get {
	g := b.c.newGet(wire.KindGet, b.t, p.shard, b.t.need(b.c.readClock()))
	g.rows.First, g.dst, g.to, g.pass = first, b.dst, to, b.pass
	b.open[p.shard] = g
	return g
}

// list turns a request for a run into one for a list.
func (g *get) list() {
	if g.rows.IDs != nil {
		return
	}
	g.rows.IDs = g.ids[:0]
	n, first := g.rows.Count, g.rows.First
	g.rows.First, g.rows.Count = 0, 0
	for i := range n {
		g.push(first+perdure.RowID(i), g.to+i)
	}
}

// push adds a row to a request for a list.
func (g *get) push(row perdure.RowID, to int) {
	g.rows.IDs = append(g.rows.IDs, row)
	g.at = append(g.at, int32(to))
	g.rows.Count++
}

// readClock is the clock that reads are made at. No update of a clock ≥ the
// job's end is ever applied, so nobody waits for one: a slot that was ahead when
// the job was ended early reads the model as it ends. It needs c.mu.
func (c *Client) readClock() perdure.Clock {
	if c.view.End > 0 {
		return min(c.clock, c.view.End)
	}
	return c.clock
}

// need is the MinClock that a read of the table at a clock must have.
func (t *Table) need(clock perdure.Clock) perdure.Clock {
	if t.c.exact {
		return clock
	}
	need := consistency.Needed(t.spec.Consistency, clock)
	if c := t.c; c.slot >= 0 && c.twoStep() {
		// What the slot's former process had ticked may still wait for other slots.
		need = max(need, c.view.Slots[c.slot].Start)
	}
	return need
}

// coming returns what is on its way to replace the cached row at a place and will
// serve a read at a clock: a push, or a request; nil if there is nothing.
func (t *Table) coming(p *part, at int, clock perdure.Clock) *get {
	if p.cache.isPushed(at) && t.c.shards[p.shard].open {
		return t.awaitPush(p, t.need(clock))
	}
	r := p.cache.reading(at)
	if r == nil || r.renewal == 0 {
		return nil
	}
	if g := t.c.gets[r.renewal]; g != nil && g.need >= t.need(clock) {
		return g
	}
	return nil
}

// saw notes what rows that are read contain.
func (b *batch) saw(s perdure.ShardID, r *reading, n int, stale bool) {
	if last := len(b.seen) - 1; last >= 0 && b.seen[last].r == r && b.seen[last].shard == s && b.seen[last].stale == stale {
		b.seen[last].n += n
		return
	}
	b.seen = append(b.seen, sight{s, r, n, stale})
}

// measure counts what a read at a clock saw: for every other slot the clock differential and
// what is missing, and how far the rows were behind their shard. A read that does
// not keep its bound fails with perdure.ErrBound, whatever servers say. It needs
// c.mu.
func (t *Table) measure(seen []sight, clock perdure.Clock) error {
	c, m := t.c, t.spec.Consistency
	if c.slot < 0 {
		return nil
	}
	for _, s := range seen {
		t.reads(&s)
		missing := int64(0)
		for i := range c.view.Slots {
			slot, span := perdure.Slot(i), &c.view.Slots[i].Span
			if slot != c.slot && span.Has(c.clock) {
				clocks := span.Clamp(consistency.Count(s.r.applied, slot))
				c.stats.differential.add(clocks-1-c.clock, int64(s.n))
				missing += max(0, int64(consistency.Count(c.known, slot)-clocks))
			}
		}
		c.stats.missing.add(perdure.Clock(missing), int64(s.n))
		c.stats.lag.add(max(0, c.shards[s.shard].minClock-s.r.minClock), int64(s.n))
		if s.stale {
			c.stats.staleRows += int64(s.n)
		}
		if !m.Bounded() || s.stale {
			continue
		}
		lacks, most := consistency.Missing(s.r.applied, c.known, c.spans, m.Staleness, clock), consistency.MissingBound(len(c.spans), m.Staleness)
		if lacks > most || !consistency.MayRead(m, s.r.minClock, clock) {
			return fmt.Errorf("%w: table %s, %s, clock %d: a row of shard %d has MinClock %d and lacks %d updates, at most %d may",
				perdure.ErrBound, t.spec.Name, m, clock, s.shard, s.r.minClock, lacks, most)
		}
	}
	return nil
}

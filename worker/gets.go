package worker

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

const (
	// mostAsked bounds the bytes of answers that are on their way on one connection:
	// a server keeps no more for a reader than fits in it.
	mostAsked = 16 << 20
	// mostFree is how many requests a client keeps to be used again.
	mostFree = 256
	// mostFreeIDs is how many rows each of them has room to name.
	mostFreeIDs = 16 << 10
)

// mostWaitUs is the most that a server is believed to have held an answer back.
const mostWaitUs = 1e12

// get is a request to a shard that is not answered yet.
type get struct {
	id      uint64
	kind    wire.Kind // KindGet, KindLoad or KindScan; KindPush stands for what is to come unasked
	shard   perdure.ShardID
	table   *Table // nil: KindLoad
	rows    wire.Rows
	need    perdure.Clock
	bytes   int   // of the answer, about
	asked   bool  // sent, or to be sent as soon as the shard is open
	on      *peer // whose answers' bytes it counts among; nil: not sent
	sent    int   // how often
	batches []*batch

	dst    []float32 // where the rows go; nil: into the cache only
	pass   bool      // they do not go into the cache
	placer *peer     // who is receiving an answer into dst
	to     int       // the row of dst at which they begin
	at     []int32   // or, for a list, the row of dst for each

	ids     []perdure.RowID // room for rows.IDs
	request []byte          // the request's payload
	subs    uint64          // the shard's subs when it was sent
}

// newGet makes a request up. It needs c.mu.
func (c *Client) newGet(kind wire.Kind, t *Table, s perdure.ShardID, need perdure.Clock) *get {
	var g *get
	if n := len(c.freeGets); n > 0 {
		g, c.freeGets = c.freeGets[n-1], c.freeGets[:n-1]
	} else {
		g = new(get)
	}
	c.nextRequest++
	*g = get{
		id: c.nextRequest, kind: kind, shard: s, table: t, need: need,
		batches: g.batches[:0], at: g.at[:0], ids: g.ids, request: g.request[:0],
	}
	if t != nil {
		g.rows.Table = t.id
	}
	return g
}

// freeGet takes back a request that was answered. One that was sent more than once
// may still be queued somewhere, with its payload. It needs c.mu.
func (c *Client) freeGet(g *get) {
	if g.sent > 1 {
		return
	}
	clear(g.batches)
	g.dst, g.table = nil, nil
	if g.rows.IDs != nil {
		g.ids = g.rows.IDs[:0]
	}
	if len(c.freeGets) < mostFree && cap(g.ids) <= mostFreeIDs {
		c.freeGets = append(c.freeGets, g)
	}
}

// pump sends the requests whose turn it is: nobody waits for a server but those who
// ask it. It needs c.mu.
func (c *Client) pump() {
	c.queue = slices.DeleteFunc(c.queue, func(g *get) bool {
		if c.gets[g.id] != g {
			return true // dropped meanwhile
		}
		sh := c.shards[g.shard]
		if !sh.open || sh.reader.asked > 0 && sh.reader.asked+g.bytes > mostAsked {
			return false
		}
		g.asked = true
		g.count(sh.reader)
		sh.reader.batch = append(sh.reader.batch, c.getFrame(sh, g))
		return true
	})
	c.flush()
}

// count counts an answer among those that a connection is to bring; nil: among
// none.
func (g *get) count(p *peer) {
	if g.on != nil {
		g.on.asked -= g.bytes
	}
	if g.on = p; p != nil {
		p.asked += g.bytes
	}
}

// register notes a request, which is to be sent. It needs c.mu.
func (c *Client) register(g *get) {
	c.gets[g.id] = g
	g.bytes = wire.HeaderBytes
	if g.kind == wire.KindGet {
		g.bytes += 4 * g.table.spec.Dim * g.rows.Count
	}
}

// dropGet forgets a request. It needs c.mu.
func (c *Client) dropGet(g *get) {
	if c.gets[g.id] == g {
		delete(c.gets, g.id)
	}
	g.asked = false
	g.count(nil)
}

// await sends a batch's requests and waits until all are answered, an error of
// check, or a roll-back. After an error the batch's memory is not written to any more. It needs
// c.mu.
func (c *Client) await(ctx context.Context, b *batch, check func() error) error {
	if b.left == 0 {
		return nil
	}
	c.pump()
	begin := time.Now()
	defer func() {
		c.stats.blocked(begin, b)
		c.waited(begin)
	}()
	err := c.wait(ctx, func() (bool, error) {
		if err := check(); err != nil {
			return false, err
		}
		if b.gen != c.generation {
			return false, perdure.ErrRolledBack
		}
		return b.left == 0, nil
	})
	if err != nil {
		c.abandon(b)
	}
	return err
}

// abandon drops a batch's requests and waits until no answer is being received
// into its memory. It needs c.mu.
func (c *Client) abandon(b *batch) {
	for _, g := range b.gets {
		if len(g.batches) == 0 || g.batches[0] != b {
			continue // it was answered, and asks for somebody else now
		}
		c.dropGet(g)
		for g.placer != nil {
			// The rest of the answer may never come: the connection is given up.
			p, over := g.placer, make(chan struct{})
			p.placed = append(p.placed, over)
			conn := p.conn
			c.mu.Unlock()
			if conn != nil {
				conn.Close()
			}
			<-over
			c.mu.Lock()
		}
	}
	for _, g := range c.gets {
		if g.kind == wire.KindPush { // nothing comes for it, and it may stand for long
			g.batches = slices.DeleteFunc(g.batches, func(other *batch) bool { return other == b })
		}
	}
	c.pump() // there is room for others now
}

// getFrame is a request's frame. It needs c.mu.
func (c *Client) getFrame(sh *shardLink, g *get) wire.Frame {
	f := c.shardFrame(sh, g.kind)
	f.Request, f.Clock = g.id, g.need
	if g.kind != wire.KindLoad && len(g.request) == 0 {
		g.request = wire.AppendRows(g.request, &g.rows)
	}
	if g.kind == wire.KindGet && g.table.subscribes() && g.toCache() {
		f.Flags |= wire.FlagSubscribe
	}
	f.Payload = g.request
	g.sent++
	g.subs = sh.subs
	return f
}

// toCache reports whether the cache may take rows from the answer: none of a run
// of a part that is too large to be cached whole.
func (g *get) toCache() bool {
	return !g.pass && (g.rows.IDs != nil || g.table.parts[g.shard].cache.index == nil)
}

// place says where an answer is to be received: rows that the reader wants one
// after the other go straight to it. The header is not verified yet; if it turns
// out to be wrong the connection breaks, and the reader asks again.
func (c *Client) place(p *peer, f *wire.Frame, n int) []byte {
	if f.Kind != wire.KindRows {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p.settle()
	g := c.gets[f.Request]
	if g == nil || g.kind != wire.KindGet || g.dst == nil || g.placer != nil || g.rows.Count == 0 || !g.consecutive() {
		return nil
	}
	if sh := c.shards[g.shard]; sh.reader != p || sh.epoch != f.Epoch {
		return nil // late, from whom it was asked for before
	}
	dim := g.table.spec.Dim
	b, ok := wire.FloatBytes(g.dst[g.to*dim : (g.to+g.rows.Count)*dim])
	if head := n - len(b) - wire.AnswerHeaderBytes(0); !ok || head%8 != 0 || head < 8*c.job.Slots || head > 8*perdure.MaxSlots {
		return nil
	}
	p.placing, g.placer = g, p
	return b
}

// consecutive reports whether the rows go to dst one after the other.
func (g *get) consecutive() bool {
	for i, at := range g.at {
		if int(at) != int(g.at[0])+i {
			return false
		}
	}
	if len(g.at) > 0 {
		g.to = int(g.at[0])
	}
	return true
}

// settle says that this connection is not receiving into a reader's memory any
// more. It needs c.mu.
func (p *peer) settle() {
	if p.placing != nil {
		p.placing.placer, p.placing = nil, nil
	}
	for _, over := range p.placed {
		close(over)
	}
	p.placed = nil
}

// answered ends a request. It needs c.mu.
func (c *Client) answered(g *get, again bool) {
	c.dropGet(g)
	for _, b := range g.batches {
		b.left--
		b.again = b.again || again
		if b.left == 0 {
			c.broadcast()
		}
	}
	c.freeGet(g)
	if len(c.queue) > 0 {
		c.pump()
	}
}

// onRows takes an answer to a read. It needs c.mu.
func (c *Client) onRows(sh *shardLink, f *wire.Frame) error {
	g := c.gets[f.Request]
	if g == nil || g.kind != wire.KindGet || g.shard != sh.id {
		return nil // answered already, or given up
	}
	if other := g.placer; other != nil {
		// The shard has moved, and its former server's answer is still coming.
		go other.conn.Close()
		sh.reader.batch = append(sh.reader.batch, c.getFrame(sh, g))
		c.flush()
		return nil
	}
	a := &c.answer
	if err := wire.ParseAnswer(f, a); err != nil {
		return err
	}
	if err := c.checkVector(a.Applied); err != nil {
		return err
	}
	if len(a.Values) != g.rows.Count*g.table.spec.Dim {
		return fmt.Errorf("%w: %d values for %d rows of %d", wire.ErrPayload, len(a.Values), g.rows.Count, g.table.spec.Dim)
	}
	if f.Clock < g.need {
		return nil // a reader believes no answer that breaks its bound
	}
	c.stats.pulled += int64(wire.HeaderBytes + f.PayloadBytes())
	sh.minClock = max(sh.minClock, f.Clock)
	r := c.reading(sh, f.Clock, a)
	if g.dst != nil {
		g.batches[0].saw(sh.id, r, g.rows.Count, false)
	}
	for _, b := range g.batches {
		b.waited = max(b.waited, min(a.Waited, mostWaitUs))
	}
	c.answered(g, g.take(c, sh, r, a.Values, len(f.Body) > 0))
	return nil
}

// reading describes an answer. Answers of one state of the shard share it.
func (c *Client) reading(sh *shardLink, minClock perdure.Clock, a *wire.Answer) *reading {
	now := c.readClock()
	if r := sh.last; r != nil && r.epoch == sh.epoch && r.seq == a.Seq && r.minClock == minClock && r.fetchedAt == now && slices.Equal(r.applied, a.Applied) {
		return r
	}
	sh.last = &reading{epoch: sh.epoch, seq: a.Seq, minClock: minClock, applied: slices.Clone(a.Applied), fetchedAt: now}
	if n := len(a.Applied) - len(c.known); n > 0 {
		c.known = append(c.known, make([]perdure.Clock, n)...)
	}
	for slot, clocks := range a.Applied {
		c.known[slot] = max(c.known[slot], clocks)
	}
	return sh.last
}

// take brings an answer's values where they are wanted: to the reader, unless
// they were received there, and into the cache, own updates applied on top. It
// reports whether the reader must look again: the cache has newer rows.
func (g *get) take(c *Client, sh *shardLink, r *reading, values []float32, placed bool) (again bool) {
	t, p := g.table, g.table.parts[g.shard]
	pushed := t.subscribes() && !g.pass && g.subs == sh.subs
	switch {
	case g.rows.Count == 0:
		return false
	case p.cache.floor.newer(r):
		return true
	case g.pass || p.cache.index != nil:
		p.cache.floor = reading{epoch: r.epoch, seq: r.seq}
	}
	own := t.pending(sh, r)
	if g.rows.IDs == nil {
		return g.takeRun(p, sh, r, values, placed, own, pushed)
	}
	return g.takeList(p, sh, r, values, placed, own, pushed)
}

// takeRun takes a run of a dense table's rows.
func (g *get) takeRun(p *part, sh *shardLink, r *reading, values []float32, placed, own, pushed bool) (again bool) {
	t, dim, at := g.table, g.table.spec.Dim, int(g.rows.First-p.first)
	if g.dst != nil {
		to := g.dst[g.to*dim : (g.to+g.rows.Count)*dim]
		if !placed {
			copy(to, values)
		}
		values = to
		if own {
			t.overlay(p, sh, r, &g.rows, values)
		}
	}
	cc := &p.cache
	if cc.index != nil {
		t.refresh(p, r, &g.rows, values)
		return false
	}
	if g.pass {
		cc.uniform = false
		if cc.read != nil {
			clear(cc.read[at : at+g.rows.Count]) // the reader has newer ones now
		}
		return false
	}
	cc.open(t)
	whole := g.rows.Count == p.rows
	for j := at; j < at+g.rows.Count; {
		k := cc.same(j, at+g.rows.Count)
		if old := cc.reading(j); old != nil && old.newer(r) {
			again, whole = true, false
			j = k
			continue
		}
		copy(cc.values[j*dim:k*dim], values[(j-at)*dim:])
		if g.dst == nil && own {
			t.overlay(p, sh, r, &wire.Rows{First: p.first + perdure.RowID(j), Count: k - j}, cc.values[j*dim:k*dim])
		}
		had := cc.read[j]
		for i := j; i < k; i++ {
			cc.read[i] = r
		}
		sh.rejoin(p, had, j, k)
		j = k
	}
	cc.uniform = whole
	cc.touch(at, at+g.rows.Count, t.c.clock)
	if pushed {
		sh.subscribed(p, g.rows.First, at, at+g.rows.Count)
	}
	return again
}

// refresh brings rows of a run that are cached one by one up to what was just read
// of them.
func (t *Table) refresh(p *part, r *reading, rows *wire.Rows, values []float32) {
	cc := &p.cache
	if cc.index.Len() == 0 {
		return
	}
	for i := range rows.Count {
		row := rows.ID(i)
		if at := cc.find(p, row); at >= 0 && (cc.read[at] == nil || !cc.reading(at).newer(r)) {
			had := cc.read[at]
			cc.read[at] = r
			copy(cc.row(at), values[i*cc.dim:])
			t.c.shards[p.shard].rejoin(p, had, at, at+1)
		}
	}
}

// takeList takes a list of rows.
func (g *get) takeList(p *part, sh *shardLink, r *reading, values []float32, placed, own, pushed bool) (again bool) {
	t, dim, cc := g.table, g.table.spec.Dim, &p.cache
	if g.dst != nil && !placed {
		for i, at := range g.at {
			copy(g.dst[int(at)*dim:(int(at)+1)*dim], values[i*dim:(i+1)*dim])
		}
	}
	cc.uniform = false
	cc.open(t)
	keep := t.keeps(g)
	if g.dst == nil && t.spec.Consistency.Kind == perdure.BSP {
		// What the program reads must not depend on when a row came that it has asked
		// for ahead: what it Inc'd is put on top when it reads the row.
		ahead := *r
		ahead.cooked = r
		r, own = &ahead, false
	}
	defer t.shed(p)
	for i, row := range g.rows.IDs {
		v := values[i*dim : (i+1)*dim]
		if g.dst != nil {
			v = g.dst[int(g.at[i])*dim : (int(g.at[i])+1)*dim]
		}
		if own {
			t.overlay(p, sh, r, &wire.Rows{First: row, Count: 1}, v)
		}
		at := cc.find(p, row) // a row that is there must not stay older than what was read
		if at < 0 && keep {
			at = cc.place(t, p, row)
		}
		if at < 0 {
			if pushed {
				p.unwant(row)
			}
			continue
		}
		cc.touch(at, at+1, t.c.clock)
		if old := cc.reading(at); old != nil && old.newer(r) {
			again = true
		} else {
			had := cc.read[at]
			cc.read[at] = r
			copy(cc.row(at), v)
			sh.rejoin(p, had, at, at+1)
		}
		if pushed {
			sh.subscribed(p, row, at, at+1)
		}
	}
	return again
}

// keeps reports whether an answer goes into the cache: always where every row has
// its place; else if a later clock may read it there, or nobody waits for it.
func (t *Table) keeps(g *get) bool {
	return t.parts[g.shard].cache.index == nil || g.dst == nil || t.reuses()
}

// pending reports whether own updates exist that an answer does not contain and
// that can be applied to it here.
func (t *Table) pending(sh *shardLink, r *reading) bool {
	c := t.c
	if c.slot < 0 || t.spec.Rule.KeepsState() {
		return false
	}
	contained := r.applied[c.slot]
	if n := len(sh.kept); n > 0 && sh.kept[n-1].until() > contained {
		return true
	}
	return t.parts[sh.id].deltas.n > 0 && contained <= c.clock
}

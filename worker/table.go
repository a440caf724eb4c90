package worker

import (
	"context"
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/consistency"
	"github.com/perdure/perdure/placement"
	"github.com/perdure/perdure/wire"
)

// Table gives access to one table of the job. It is as safe for concurrent use
// as its Client.
type Table struct {
	c     *Client
	id    perdure.TableID
	spec  perdure.TableSpec
	parts []*part // by shard

	expiring      []wire.Rows // read in the present clock, to be asked for ahead
	expiringBytes int
}

// part is one shard's part of a table as this client has it: the rows it has
// read, and the deltas of the present clock.
type part struct {
	shard   perdure.ShardID
	first   perdure.RowID
	rows    int
	values  []float32 // cached rows, own updates applied on top; nil until read
	read    []*reading
	uniform bool      // all rows have the same reading, not nil
	delta   []float32 // nil until Inc'd
	touched []bool
	ids     []perdure.RowID // touched rows, in order of first touch
}

// reading says what a cached row contains.
type reading struct {
	epoch     perdure.Epoch
	seq       uint64
	minClock  perdure.Clock
	applied   []perdure.Clock
	fetchedAt perdure.Clock
	renewal   uint64 // the request that will replace it; 0: none
}

// get is a request to a shard that is not answered yet.
type get struct {
	shard perdure.ShardID
	table *Table
	rows  wire.Rows
	need  perdure.Clock
	load  bool // it asks for the saved state
	ahead int  // bytes, if it was sent ahead and nobody waits for it yet
	done  bool
	state []byte
}

// Table creates a table, or attaches to the one of that name: all slots that
// ask must ask for the same. Tables are created before the first clock ends.
func (c *Client) Table(ctx context.Context, spec perdure.TableSpec) (*Table, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if spec.Consistency == (perdure.Consistency{}) {
		spec.Consistency = c.job.Consistency
	}
	if err := spec.Validate(c.job.Shards); err != nil {
		return nil, err
	}
	id := -1
	asked := wire.Control(wire.KindTable, spec)
	var sentOn any
	err := c.wait(ctx, func() (bool, error) {
		id = slices.IndexFunc(c.view.Tables, func(t perdure.TableSpec) bool { return t.Name == spec.Name })
		if id >= 0 && c.view.Tables[id] != spec {
			return false, fmt.Errorf("%w: table %s exists already with other properties", perdure.ErrUsage, spec.Name)
		}
		if id < 0 && c.coordinator != nil && sentOn != c.coordinator && !c.cfg.Observer {
			sentOn = c.coordinator
			_ = c.coordinator.Send(asked) // sent again on the next connection
		}
		return id >= 0, nil
	})
	if err != nil {
		return nil, fmt.Errorf("worker: table %s: %w", spec.Name, err)
	}
	for len(c.tables) <= id {
		c.tables = append(c.tables, nil)
	}
	if c.tables[id] == nil {
		t := &Table{c: c, id: perdure.TableID(id), spec: spec}
		for s := range c.job.Shards {
			first, rows := placement.Range(spec.Rows, c.job.Shards, perdure.ShardID(s))
			t.parts = append(t.parts, &part{shard: perdure.ShardID(s), first: first, rows: rows})
		}
		c.tables[id] = t
	}
	t := c.tables[id]
	return t, t.reach(ctx)
}

// reach waits until every server knows the table: it reads one row of each
// shard, however old. It needs c.mu.
func (t *Table) reach(ctx context.Context) error {
	var ids []uint64
	for s, p := range t.parts {
		ids = append(ids, t.c.ask(&get{
			shard: perdure.ShardID(s), table: t, rows: wire.Rows{Table: t.id, First: p.first, Count: 1}, need: consistency.Always,
		}))
	}
	// A roll-back ends the wait: shards that begin anew know all tables.
	return t.c.await(ctx, ids, func() error { return t.c.err })
}

// Spec returns the table's description.
func (t *Table) Spec() perdure.TableSpec { return t.spec }

// Get reads one row into dst, of Dim values.
func (t *Table) Get(ctx context.Context, row perdure.RowID, dst []float32) error {
	return t.GetRun(ctx, row, dst)
}

// GetRun reads consecutive rows from first on into dst, of a multiple of Dim
// values. Rows that the cache may not answer are fetched in one go.
func (t *Table) GetRun(ctx context.Context, first perdure.RowID, dst []float32) error {
	n := len(dst) / t.spec.Dim
	if err := t.check(first, n, len(dst)); err != nil {
		return err
	}
	return t.read(ctx, &wire.Rows{Table: t.id, First: first, Count: n}, dst)
}

// GetRows reads the given rows into dst, of len(rows)·Dim values.
func (t *Table) GetRows(ctx context.Context, rows []perdure.RowID, dst []float32) error {
	if len(dst) != len(rows)*t.spec.Dim {
		return fmt.Errorf("%w: table %s: %d values for %d rows of %d", perdure.ErrUsage, t.spec.Name, len(dst), len(rows), t.spec.Dim)
	}
	for _, r := range rows {
		if err := t.check(r, 1, t.spec.Dim); err != nil {
			return err
		}
	}
	return t.read(ctx, &wire.Rows{Table: t.id, Count: len(rows), IDs: rows}, dst)
}

func (t *Table) check(first perdure.RowID, n, values int) error {
	if values == 0 || values != n*t.spec.Dim {
		return fmt.Errorf("%w: table %s: %d values; rows have %d each", perdure.ErrUsage, t.spec.Name, values, t.spec.Dim)
	}
	if uint64(first) > uint64(t.spec.Rows) || uint64(n) > uint64(t.spec.Rows)-uint64(first) {
		return fmt.Errorf("%w: table %s: rows %d to %d; it has rows 0 to %d", perdure.ErrUsage, t.spec.Name, first, uint64(first)+uint64(n)-1, t.spec.Rows-1)
	}
	return nil
}

// pieceBytes is how much is fetched at once: a server keeps no more for a reader
// than fits in its connection.
const pieceBytes = 8 << 20

// read fetches what the cache may not answer until it may answer all, and
// copies it out, piece by piece.
func (t *Table) read(ctx context.Context, rows *wire.Rows, dst []float32) error {
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	most := max(1, pieceBytes/(4*t.spec.Dim))
	for from := 0; from < rows.Count || from == 0; from += most {
		piece := rows
		if rows.Count > most {
			piece = rows.Part(from, min(from+most, rows.Count))
		}
		if err := t.readPiece(ctx, piece, dst[from*t.spec.Dim:]); err != nil {
			return err
		}
	}
	return nil
}

// readPiece needs c.mu.
func (t *Table) readPiece(ctx context.Context, rows *wire.Rows, dst []float32) error {
	c := t.c
	for {
		if err := c.usable(); err != nil {
			return err
		}
		ids := t.fetch(rows)
		if len(ids) == 0 {
			break
		}
		if err := c.await(ctx, ids, c.usable); err != nil {
			return err
		}
	}
	dim := t.spec.Dim
	for i := 0; i < rows.Count; {
		p, at, run := t.run(rows, i)
		copy(dst[i*dim:(i+run)*dim], p.values[at*dim:(at+run)*dim])
		i += run
	}
	t.measure(rows)
	t.expire(rows)
	return nil
}

// run returns the part that holds the i-th row asked for, where in it, and how
// many of the rows asked for follow there one after the other.
func (t *Table) run(rows *wire.Rows, i int) (p *part, at, run int) {
	first := rows.ID(i)
	p = t.parts[placement.ShardOf(t.spec.Rows, len(t.parts), first)]
	at = int(first - p.first)
	if rows.IDs == nil {
		return p, at, min(rows.Count-i, p.rows-at)
	}
	run = 1
	for i+run < rows.Count && at+run < p.rows && rows.IDs[i+run] == first+perdure.RowID(run) {
		run++
	}
	return p, at, run
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

// needLess asks again for what waits for clocks that the job, ended early, will
// not have. It needs c.mu.
func (c *Client) needLess() {
	for id, g := range c.gets {
		if g.load || g.done || c.view.End == 0 {
			continue
		}
		if need := g.table.need(c.view.End); need < g.need {
			g.need = need
			if sh := c.shards[g.shard]; sh.open {
				sh.send(c.getFrame(sh, id, g))
			}
		}
	}
}

// need is the MinClock that a read of the table at a clock must have.
func (t *Table) need(clock perdure.Clock) perdure.Clock {
	if t.c.exact {
		return clock
	}
	return consistency.Needed(t.spec.Consistency, clock)
}

// mayAnswer reports whether the cached row may be read at a clock.
func (t *Table) mayAnswer(r *reading, clock perdure.Clock) bool {
	if r == nil {
		return false
	}
	if t.c.exact {
		return r.minClock >= clock
	}
	return consistency.MayReuse(t.spec.Consistency, r.minClock, r.fetchedAt, clock)
}

// renewing returns the request that is on its way to replace a cached row and
// will serve a read at a clock; 0 if there is none.
func (t *Table) renewing(r *reading, clock perdure.Clock) uint64 {
	if r == nil || r.renewal == 0 {
		return 0
	}
	if g := t.c.gets[r.renewal]; g == nil || g.need < t.need(clock) {
		return 0
	}
	return r.renewal
}

// fetch asks the servers for the rows that the cache may not answer, unless it
// has asked already. It returns the requests to wait for.
func (t *Table) fetch(rows *wire.Rows) (ids []uint64) {
	clock := t.c.readClock()
	t.request(rows, clock, func(r *reading) bool {
		if t.mayAnswer(r, clock) {
			return false
		}
		id := t.renewing(r, clock)
		if id != 0 && (len(ids) == 0 || ids[len(ids)-1] != id) {
			ids = append(ids, id)
		}
		return id == 0
	}, func(g *get) { ids = append(ids, t.c.ask(g)) })
	return ids
}

// request makes up requests, to be read at a clock, for those rows whose cached
// copy (nil: none) wants one, and hands them to send.
func (t *Table) request(rows *wire.Rows, clock perdure.Clock, wants func(*reading) bool, send func(*get)) {
	most := max(1, wire.PartBytes/(4*t.spec.Dim)) // rows in one answer
	open := map[perdure.ShardID]*get{}
	for i := 0; i < rows.Count; {
		p, at, run := t.run(rows, i)
		i += run
		for j := at; j < at+run; {
			k := p.same(j, min(at+run, j+most))
			if wants(p.reading(j)) {
				t.addRows(open, p, j, k-j, clock, most, send)
			}
			j = k
		}
	}
	for _, g := range open {
		send(g)
	}
}

// same returns the end of the rows from the first on, before end, that have the
// same reading as it.
func (p *part) same(first, end int) int {
	if p.uniform || p.read == nil {
		return end
	}
	k := first + 1
	for k < end && p.read[k] == p.read[first] {
		k++
	}
	return k
}

// reading returns what is known of a cached row; nil if it was never read.
func (p *part) reading(at int) *reading {
	if p.read == nil {
		return nil
	}
	return p.read[at]
}

// addRows adds rows to the request being made up for a shard: a run as long as
// there is only one, else a list.
func (t *Table) addRows(open map[perdure.ShardID]*get, p *part, at, n int, clock perdure.Clock, most int, send func(*get)) {
	g, first := open[p.shard], p.first+perdure.RowID(at)
	if g != nil && g.rows.Count+n > most {
		send(g)
		g = nil
	}
	if g == nil {
		open[p.shard] = &get{shard: p.shard, table: t, need: t.need(clock), rows: wire.Rows{Table: t.id, First: first, Count: n}}
		return
	}
	g.rows.Count += n
	if g.rows.IDs == nil && first == g.rows.First+perdure.RowID(g.rows.Count-n) {
		return
	}
	if g.rows.IDs == nil {
		for i := range g.rows.Count - n {
			g.rows.IDs = append(g.rows.IDs, g.rows.First+perdure.RowID(i))
		}
		g.rows.First = 0
	}
	for i := range n {
		g.rows.IDs = append(g.rows.IDs, first+perdure.RowID(i))
	}
}

// register gives a request its number. It needs c.mu.
func (c *Client) register(g *get) uint64 {
	c.nextRequest++
	c.gets[c.nextRequest] = g
	return c.nextRequest
}

// drop forgets a request. It needs c.mu.
func (c *Client) drop(id uint64) {
	if g := c.gets[id]; g != nil {
		c.aheadBytes -= g.ahead
		delete(c.gets, id)
	}
}

// ask registers a request and sends it if its shard is open; otherwise it is
// sent when that opens. It needs c.mu.
func (c *Client) ask(g *get) uint64 {
	id := c.register(g)
	if sh := c.shards[g.shard]; sh.open {
		sh.send(c.getFrame(sh, id, g))
	}
	return id
}

// await waits until requests are answered, or an error of check. It needs c.mu.
func (c *Client) await(ctx context.Context, ids []uint64, check func() error) error {
	err := c.wait(ctx, func() (bool, error) {
		if err := check(); err != nil {
			return false, err
		}
		for len(ids) > 0 {
			if g := c.gets[ids[0]]; g != nil && !g.done {
				return false, nil
			}
			c.drop(ids[0])
			ids = ids[1:]
		}
		return true, nil
	})
	for _, id := range ids {
		c.drop(id)
	}
	return err
}

func (c *Client) getFrame(sh *shardLink, id uint64, g *get) wire.Frame {
	kind := wire.KindGet
	if g.load {
		kind = wire.KindLoad
	}
	f := c.shardFrame(sh, kind)
	f.Request, f.Clock = id, g.need
	if !g.load {
		f.Payload = wire.AppendRows(make([]byte, 0, 24+8*len(g.rows.IDs)), &g.rows)
	}
	return f
}

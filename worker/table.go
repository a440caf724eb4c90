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
}

// part is one shard's part of a table as this client has it: the rows it has
// read, and the deltas of the present clock.
type part struct {
	shard   perdure.ShardID
	first   perdure.RowID
	rows    int
	values  []float32 // cached rows, own updates applied on top; nil until read
	read    []*reading
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
}

// get is a request to a shard that is not answered yet.
type get struct {
	shard perdure.ShardID
	table *Table
	rows  wire.Rows
	need  perdure.Clock
	load  bool // it asks for the saved state
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
	return t.read(ctx, n, func(i int) perdure.RowID { return first + perdure.RowID(i) }, dst)
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
	return t.read(ctx, len(rows), func(i int) perdure.RowID { return rows[i] }, dst)
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

// read fetches what the cache may not answer until it may answer all, and
// copies it out.
func (t *Table) read(ctx context.Context, n int, row func(int) perdure.RowID, dst []float32) error {
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := c.usable(); err != nil {
			return err
		}
		ids := t.fetch(n, row)
		if len(ids) == 0 {
			break
		}
		if err := c.await(ctx, ids, c.usable); err != nil {
			return err
		}
	}
	dim := t.spec.Dim
	for i := 0; i < n; {
		p, at, run := t.run(i, n, row)
		copy(dst[i*dim:(i+run)*dim], p.values[at*dim:(at+run)*dim])
		i += run
	}
	t.measure(n, row)
	return nil
}

// run returns the part that holds the i-th row asked for, where in it, and how
// many of the rows asked for follow there one after the other.
func (t *Table) run(i, n int, row func(int) perdure.RowID) (p *part, at, run int) {
	first := row(i)
	s := placement.ShardOf(t.spec.Rows, len(t.parts), first)
	p = t.parts[s]
	at = int(first - p.first)
	run = 1
	for i+run < n && at+run < p.rows && row(i+run) == first+perdure.RowID(run) {
		run++
	}
	return p, at, run
}

// need is the MinClock that this client's reads of the table must have.
func (t *Table) need() perdure.Clock {
	if t.c.exact {
		return t.c.clock
	}
	return consistency.Needed(t.spec.Consistency, t.c.clock)
}

// mayAnswer reports whether the cached row may be read now.
func (t *Table) mayAnswer(r *reading) bool {
	if r == nil {
		return false
	}
	if t.c.exact {
		return r.minClock >= t.c.clock
	}
	return consistency.MayReuse(t.spec.Consistency, r.minClock, r.fetchedAt, t.c.clock)
}

// fetch asks the servers for the rows that the cache may not answer.
func (t *Table) fetch(n int, row func(int) perdure.RowID) (ids []uint64) {
	most := max(1, wire.PartBytes/(4*t.spec.Dim)) // rows in one answer
	open := map[perdure.ShardID]*get{}
	send := func(g *get) { ids = append(ids, t.c.ask(g)) }
	for i := 0; i < n; {
		p, at, run := t.run(i, n, row)
		s := placement.ShardOf(t.spec.Rows, len(t.parts), row(i))
		i += run
		for j := at; j < at+run; {
			if p.read != nil && t.mayAnswer(p.read[j]) {
				j++
				continue
			}
			k := j + 1
			for k < at+run && k-j < most && (p.read == nil || !t.mayAnswer(p.read[k])) {
				k++
			}
			t.addRows(open, s, p.first+perdure.RowID(j), k-j, most, send)
			j = k
		}
	}
	for _, g := range open {
		send(g)
	}
	return ids
}

// addRows adds rows to the request being made up for a shard: a run as long as
// there is only one, else a list.
func (t *Table) addRows(open map[perdure.ShardID]*get, s perdure.ShardID, first perdure.RowID, n, most int, send func(*get)) {
	g := open[s]
	if g != nil && g.rows.Count+n > most {
		send(g)
		g = nil
	}
	if g == nil {
		open[s] = &get{shard: s, table: t, need: t.need(), rows: wire.Rows{Table: t.id, First: first, Count: n}}
		return
	}
	if g.rows.IDs == nil {
		for i := range g.rows.Count {
			g.rows.IDs = append(g.rows.IDs, g.rows.First+perdure.RowID(i))
		}
		g.rows.First = 0
	}
	for i := range n {
		g.rows.IDs = append(g.rows.IDs, first+perdure.RowID(i))
	}
	g.rows.Count += n
}

// ask registers a request and sends it if its shard is open; otherwise it is
// sent when that opens. It needs c.mu.
func (c *Client) ask(g *get) uint64 {
	c.nextRequest++
	id := c.nextRequest
	c.gets[id] = g
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
			delete(c.gets, ids[0])
			ids = ids[1:]
		}
		return true, nil
	})
	for _, id := range ids {
		delete(c.gets, id)
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

package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/outbox"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/reads"
	"github.com/perdure/perdure/internal/data/packed"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// Table gives access to one table of the job. It is as safe for concurrent use as its Client. Rows have Dim float32
// values each; several rows are stored one after the other.
//
// A program reads its own writes. If the effect of an Inc follows from the row and the update alone
// (perdure.TableSpec.HasPredictableEffect), later Gets show it immediately; otherwise they show it once an answer of a
// server contains it.
type Table struct {
	c      *Client
	id     perdure.TableID
	spec   perdure.TableSpec
	out    *outbox.Table // deltas added to the table
	shards []*tableShard // by shard
	rows   *reads.Table
}

// tableShard is one shard's part of a table on this client.
type tableShard struct {
	shard  perdure.ShardID
	first  perdure.RowID // dense
	rows   int           // dense
	deltas *outbox.Deltas
	picked []int32 // sparse: indexes of an Inc's rows in this part
}

// Table creates a table, or opens the existing one with that name. All slots must ask for the same spec; otherwise the
// error wraps perdure.ErrUsage. Create tables before the first clock ends. Table waits until every server knows the
// table.
func (c *Client) Table(ctx context.Context, spec perdure.TableSpec) (*Table, error) {
	l := c.lock()
	defer c.mu.Unlock()
	if spec.Consistency == (perdure.Consistency{}) {
		spec.Consistency = l.job.ConsistencyOf(spec.Name)
	}
	spec = spec.Requested()
	spec.Rule = spec.Rule.WithDefaults()
	if err := cmp.Or(spec.Validate(l.job.Shards), l.job.ValidateTable(spec)); err != nil {
		return nil, err
	}
	id := -1
	asked := wire.Control(wire.KindTable, spec)
	var sentOn any
	err := l.waits.Until(ctx, func() (bool, error) {
		id = slices.IndexFunc(l.view.Tables, func(t perdure.TableSpec) bool { return t.Name == spec.Name })
		if id >= 0 && l.view.Tables[id].Requested() != spec {
			return false, fmt.Errorf("%w: table %s already exists with different properties; use the same TableSpec "+
				"in every slot", perdure.ErrUsage, spec.Name)
		}
		if id < 0 && l.session.conn != nil && sentOn != l.session.conn && !l.cfg.Observer {
			sentOn = l.session.conn
			_ = l.session.send(asked) // sent again on the next connection
		}
		return id >= 0, nil
	})
	if err != nil {
		return nil, fmt.Errorf("worker: table %s: %w", spec.Name, err)
	}
	for len(l.tables) <= id {
		l.tables = append(l.tables, nil)
	}
	if l.tables[id] == nil {
		l.tables[id] = l.newTable(c, perdure.TableID(id), l.view.Tables[id])
	}
	t := l.tables[id]
	return t, l.reach(ctx, t)
}

func (l *locked) newTable(c *Client, id perdure.TableID, spec perdure.TableSpec) *Table {
	t := &Table{c: c, id: id, spec: spec, out: l.out.Table(id, spec), rows: l.reads.Table(id, spec)}
	for s := range l.job.Shards {
		p := &tableShard{shard: perdure.ShardID(s)}
		p.first, p.rows = placement.Range(&spec, l.job.Shards, p.shard)
		p.deltas = t.out.Deltas(p.shard)
		t.shards = append(t.shards, p)
	}
	return t
}

// reach waits until every server knows the table. It reads one row of each shard, however old, or no row if the table
// is sparse.
func (l *locked) reach(ctx context.Context, t *Table) error {
	err := t.awaitStart(ctx, l) // these rows enter the cache
	if err == nil {
		err = l.await(ctx, t.rows.Probe(), func() error { return l.waits.Err })
	}
	if errors.Is(err, perdure.ErrRolledBack) {
		return nil // after a rollback, shards start with all tables
	}
	return err
}

// Spec returns the table's specification, including its consistency model and, for a whole table, its shard.
func (t *Table) Spec() perdure.TableSpec { return t.spec }

// Get reads one row into dst, which has Dim values. It waits until the row is as fresh as the table's consistency model
// requires. The values come from the cache or from a server. The error wraps perdure.ErrBound if a server has sent rows
// older than the model allows.
func (t *Table) Get(ctx context.Context, row perdure.RowID, dst []float32) error {
	if t.spec.Sparse {
		return t.GetRows(ctx, []perdure.RowID{row}, dst)
	}
	return t.GetRun(ctx, row, dst)
}

// GetRun reads n consecutive rows of a dense table into dst, which has n·Dim values, starting with row first. Rows that
// the cache cannot answer are fetched together.
func (t *Table) GetRun(ctx context.Context, first perdure.RowID, dst []float32) error {
	_, _, err := t.GetRunAt(ctx, first, dst)
	return err
}

// GetRunAt is like GetRun, and also returns the clocks of the rows: they contain all updates of clocks below from, and
// none of clock to or later, except the slot's own. If from equals to, all rows are of the same clock.
func (t *Table) GetRunAt(ctx context.Context, first perdure.RowID, dst []float32) (from, to perdure.Clock, err error) {
	n := len(dst) / t.spec.Dim
	if err := t.check(first, n, len(dst)); err != nil {
		return 0, 0, err
	}
	of, err := t.read(ctx, &wire.Rows{Table: t.id, First: first, Count: n}, dst, perdure.EncodingFloat32)
	return of.Oldest, of.Newest, err
}

// GetRunRounded is like GetRunAt for a table with bsp, except that the servers round the rows to bf16 or int8 before
// they send them: see perdure.Encoding. Rows with NaN or Inf are sent as they are. The cache is not used.
func (t *Table) GetRunRounded(
	ctx context.Context, first perdure.RowID, dst []float32, e perdure.Encoding,
) (from, to perdure.Clock, err error) {
	n := len(dst) / t.spec.Dim
	if err := t.check(first, n, len(dst)); err != nil {
		return 0, 0, err
	}
	if e != perdure.EncodingBF16 && e != perdure.EncodingInt8 || t.spec.Consistency.Kind != perdure.BSP {
		return 0, 0, fmt.Errorf("%w: rows of table %s cannot be read as %q under %s: choose bf16 or int8, and bsp",
			perdure.ErrUsage, t.spec.Name, e, t.spec.Consistency)
	}
	of, err := t.read(ctx, &wire.Rows{Table: t.id, First: first, Count: n}, dst, e)
	return of.Oldest, of.Newest, err
}

// Round replaces rows of values, a multiple of Dim, by what the servers receive if they are added to the table in one
// clock. A program whose updates are rounded coarsely can add the difference to its next update.
func (t *Table) Round(values []float32) error {
	if len(values)%t.spec.Dim != 0 {
		return t.check(0, len(values)/t.spec.Dim, len(values))
	}
	if at := table.FirstNonFinite(values); at >= 0 && t.spec.Encoding != perdure.EncodingFloat32 {
		return t.out.NotFinite(at, perdure.RowID(at/t.spec.Dim), values[at])
	}
	packed.Round(values, t.spec.Encoding, t.spec.Dim)
	return nil
}

// GetRows reads the given rows into dst, in their order; dst has len(rows)·Dim values. Rows of a sparse table without
// any update have their initial values.
func (t *Table) GetRows(ctx context.Context, rows []perdure.RowID, dst []float32) error {
	_, _, err := t.GetRowsAt(ctx, rows, dst)
	return err
}

// GetRowsAt is like GetRows, and also returns the clocks of the rows, as GetRunAt does.
func (t *Table) GetRowsAt(ctx context.Context, rows []perdure.RowID, dst []float32) (_, _ perdure.Clock, err error) {
	if err := t.checkList(rows, len(dst)); err != nil {
		return 0, 0, err
	}
	of, err := t.read(ctx, &wire.Rows{Table: t.id, Count: len(rows), IDs: rows}, dst, perdure.EncodingFloat32)
	return of.Oldest, of.Newest, err
}

// Prefetch requests rows that will be read in this clock, and returns immediately. A later Get of them waits only for
// the remaining transfer. Prefetch skips rows that the cache can answer, and rows that do not fit into the cache.
func (t *Table) Prefetch(rows []perdure.RowID) error {
	if err := t.checkList(rows, len(rows)*t.spec.Dim); err != nil {
		return err
	}
	l := t.c.lock()
	defer t.c.mu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	if l.out.Ticks().MayRead() { // otherwise the cache would get rows that must not be read yet
		t.rows.Prefetch(rows)
		l.carryOut()
	}
	return nil
}

// Forget empties the table's cache. The next reads come from the servers and return their newest rows, even if the
// consistency model allows older ones.
func (t *Table) Forget() {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	t.rows.Forget()
}

// check validates a run of rows.
func (t *Table) check(first perdure.RowID, n, values int) error {
	if t.spec.Sparse {
		return fmt.Errorf("%w: table %s is sparse and has no consecutive rows; use GetRows and IncRows",
			perdure.ErrUsage, t.spec.Name)
	}
	if values == 0 || values != n*t.spec.Dim {
		return fmt.Errorf("%w: table %s: got %d values, but rows have %d each",
			perdure.ErrUsage, t.spec.Name, values, t.spec.Dim)
	}
	if uint64(first) > uint64(t.spec.Rows) || uint64(n) > uint64(t.spec.Rows)-uint64(first) {
		return fmt.Errorf("%w: table %s: rows %d to %d are out of range; the table has rows 0 to %d",
			perdure.ErrUsage, t.spec.Name, first, uint64(first)+uint64(n)-1, t.spec.Rows-1)
	}
	return nil
}

func (t *Table) checkList(rows []perdure.RowID, values int) error {
	if values != len(rows)*t.spec.Dim {
		return fmt.Errorf("%w: table %s: got %d values for %d rows of %d values each",
			perdure.ErrUsage, t.spec.Name, values, len(rows), t.spec.Dim)
	}
	if t.spec.Sparse {
		return nil
	}
	for _, r := range rows {
		if uint64(r) >= uint64(t.spec.Rows) {
			return t.check(r, 1, t.spec.Dim)
		}
	}
	return nil
}

// Weigh sets the weight of this slot's update of the current clock, for a table with perdure.CombineWeighted: for
// example its number of tokens. Clock requires a weight even if the slot has added no deltas.
func (t *Table) Weigh(weight float64) error {
	l := t.c.lock()
	defer t.c.mu.Unlock()
	if err := cmp.Or(l.requireSlot(incs), l.usable()); err != nil {
		return err
	}
	return t.out.Weigh(weight)
}

// shardOf returns the part that holds a row.
func (t *Table) shardOf(row perdure.RowID) *tableShard {
	return t.shards[placement.ShardOf(&t.spec, len(t.shards), row)]
}

// Inc adds delta, which has Dim values, to this slot's update of a row in the current clock. The update is sent with
// Clock, or earlier; the table's rule defines its effect on the row. Inc copies delta.
//
// The error wraps perdure.ErrNonFinite if a value is NaN or Inf and the table does not allow that, and
// perdure.ErrRolledBack after a rollback. It wraps perdure.ErrUsage if the table has no such row, delta has the wrong
// size, or the program has the row's memory from Deltas. After an error, no part of delta was added.
func (t *Table) Inc(row perdure.RowID, delta []float32) error {
	if t.spec.Sparse {
		return t.IncRows([]perdure.RowID{row}, delta)
	}
	return t.IncRun(row, delta)
}

// IncRun is Inc for n consecutive rows of a dense table, starting with row first; delta has n·Dim values.
func (t *Table) IncRun(first perdure.RowID, delta []float32) error {
	n := len(delta) / t.spec.Dim
	if err := t.check(first, n, len(delta)); err != nil {
		return err
	}
	if err := t.finite(delta, func(i int) perdure.RowID { return first + perdure.RowID(i) }); err != nil {
		return err
	}
	l := t.c.lock()
	defer t.c.mu.Unlock()
	if err := cmp.Or(l.requireSlot(incs), l.usable()); err != nil {
		return err
	}
	check := func(p *tableShard, at, run, _ int) error { return p.deltas.CheckAdd(at, run) }
	if err := t.eachRun(first, n, check); err != nil {
		return fmt.Errorf("%w: table %s", err, t.spec.Name)
	}
	return t.add(l, first, n, delta)
}

// add adds deltas to consecutive rows of a dense table.
func (t *Table) add(l *locked, first perdure.RowID, n int, delta []float32) error {
	dim := t.spec.Dim
	return t.eachRun(first, n, func(p *tableShard, at, run, i int) error {
		for from := 0; from < run; from += outbox.MaxRunRows(dim) {
			k := min(outbox.MaxRunRows(dim), run-from)
			d := delta[(i+from)*dim : (i+from+k)*dim]
			again := p.deltas.AddRun(at+from, k, d)
			t.rows.ApplyDeltas(p.shard, at+from, k, d)
			if err := l.added(t, p, again); err != nil {
				return err
			}
		}
		return nil
	})
}

// added acts on an Inc to a part. If the deltas fill a part of an update, that part is sent now, while the program
// continues, unless its rows are likely to receive further Incs.
func (l *locked) added(t *Table, p *tableShard, again bool) error {
	if !p.deltas.RecordInc(again) {
		return nil
	}
	if err := l.send(t, p, false); err != nil {
		return err
	}
	l.servers.flush()
	return nil
}

// eachRun calls f for each part's piece of a run of rows: at is the index of its first row in the part, run its length,
// and i the index of that row in the whole run.
func (t *Table) eachRun(first perdure.RowID, n int, f func(p *tableShard, at, run, i int) error) error {
	for i := 0; i < n; {
		p := t.shardOf(first + perdure.RowID(i))
		at := int(first + perdure.RowID(i) - p.first)
		run := min(n-i, p.rows-at)
		if err := f(p, at, run, i); err != nil {
			return err
		}
		i += run
	}
	return nil
}

// IncRows is Inc for the given rows, in their order; delta has len(rows)·Dim values. A row that is listed twice gets
// both deltas.
func (t *Table) IncRows(rows []perdure.RowID, delta []float32) error {
	if err := t.checkList(rows, len(delta)); err != nil {
		return err
	}
	if err := t.finite(delta, func(i int) perdure.RowID { return rows[i] }); err != nil {
		return err
	}
	l := t.c.lock()
	defer t.c.mu.Unlock()
	if err := cmp.Or(l.requireSlot(incs), l.usable()); err != nil {
		return err
	}
	if t.spec.Sparse {
		return t.incSparse(l, rows, delta)
	}
	if err := t.out.CheckAdd(rows); err != nil {
		return err
	}
	for i, n := 0, 0; i < len(rows); i += n {
		n = outbox.RunLength(rows[i:])
		if err := t.add(l, rows[i], n, delta[i*t.spec.Dim:]); err != nil {
			return err
		}
	}
	return nil
}

// incSparse adds deltas to rows of a sparse table, shard by shard. It looks up many rows at a time, so that the memory
// latencies of the index overlap.
func (t *Table) incSparse(l *locked, rows []perdure.RowID, delta []float32) error {
	for _, p := range t.shards {
		p.picked = p.picked[:0]
	}
	for i, row := range rows {
		p := t.shardOf(row)
		p.picked = append(p.picked, int32(i))
	}
	dim := t.spec.Dim
	var ids [lookups]perdure.RowID
	var at [lookups]int
	for _, p := range t.shards {
		for picked := p.picked; len(picked) > 0; picked = picked[min(lookups, len(picked)):] {
			n := min(lookups, len(picked))
			for j, i := range picked[:n] {
				ids[j] = rows[i]
			}
			p.deltas.FindAll(ids[:n], at[:n])
			again := false
			for j, i := range picked[:n] {
				d := delta[int(i)*dim : (int(i)+1)*dim]
				again = p.deltas.AddRow(ids[j], at[j], d) || again
			}
			t.rows.ApplyRowDeltas(p.shard, ids[:n], picked[:n], delta)
			if err := l.added(t, p, again); err != nil {
				return err
			}
		}
	}
	return nil
}

// lookups is how many rows are looked up at a time.
const lookups = 128

// finite returns an error for deltas with NaN or Inf, unless the table allows them. row(i) is the number of the i-th
// row.
func (t *Table) finite(delta []float32, row func(i int) perdure.RowID) error {
	if t.spec.NonFinite == perdure.AllowNonFinite {
		return nil
	}
	at := table.FirstNonFinite(delta)
	if at < 0 {
		return nil
	}
	return t.out.NotFinite(at, row(at/t.spec.Dim), delta[at])
}

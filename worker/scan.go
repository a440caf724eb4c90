package worker

import (
	"context"
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// StoredRows returns the numbers of all rows that a sparse table stores, in
// ascending order: those that were updated before the present clock, and
// perhaps some that were updated since. It is meant for a job that has ended;
// while rows are evicted some may be missing.
func (t *Table) StoredRows(ctx context.Context) ([]perdure.RowID, error) {
	if !t.spec.Sparse {
		return nil, fmt.Errorf("%w: table %s is dense; it stores the rows 0 to %d", perdure.ErrUsage, t.spec.Name, t.spec.Rows-1)
	}
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		all, err := t.scan(ctx)
		if c.readsOn(err) {
			continue
		}
		slices.Sort(all)
		return slices.Compact(all), err
	}
}

// scan asks every shard for the rows that it stores. It needs c.mu.
func (t *Table) scan(ctx context.Context) (all []perdure.RowID, err error) {
	c := t.c
	for _, p := range t.parts {
		for at := 0; ; {
			if err := c.usable(); err != nil {
				return nil, err
			}
			b := c.newBatch(t, nil)
			g := c.newGet(wire.KindScan, t, p.shard, t.need(c.readClock()))
			g.rows.First, g.rows.Count = perdure.RowID(at), wire.PartBytes/8
			b.add(g)
			if err := c.await(ctx, b, c.usable); err != nil {
				return nil, err
			}
			all, at = append(all, b.ids...), at+len(b.ids)
			done := len(b.ids) == 0 || at >= b.count
			b.free()
			if done {
				break
			}
		}
	}
	return all, nil
}

// onIDs takes an answer to a scan. It needs c.mu.
func (c *Client) onIDs(f *wire.Frame) error {
	g := c.gets[f.Request]
	if g == nil || g.kind != wire.KindScan || f.Clock < g.need {
		return nil
	}
	stored, ids, err := wire.ParseIDs(f.Payload)
	if err != nil {
		return err
	}
	b := g.batches[0]
	b.count, b.ids = stored, slices.Clone(ids)
	c.answered(g, false)
	return nil
}

package worker

import (
	"context"
	"fmt"
	"slices"

	"github.com/perdure/perdure"
)

// StoredRows returns the numbers of all rows that a sparse table stores, in ascending order: all rows updated before
// the current clock, and possibly some updated since. It is meant for jobs that have ended; while rows are evicted the
// result may be incomplete.
func (t *Table) StoredRows(ctx context.Context) ([]perdure.RowID, error) {
	if !t.spec.Sparse {
		return nil, fmt.Errorf("%w: table %s is dense and always stores rows 0 to %d; read them with GetRun",
			perdure.ErrUsage, t.spec.Name, t.spec.Rows-1)
	}
	l := t.c.lock()
	defer t.c.mu.Unlock()
	if err := t.awaitStart(ctx, l); err != nil {
		return nil, err
	}
	for {
		all, err := l.scan(ctx, t)
		if l.cfg.readsOn(err) {
			continue
		}
		slices.Sort(all)
		return slices.Compact(all), err
	}
}

// scan asks every shard for the rows that it stores.
func (l *locked) scan(ctx context.Context, t *Table) (all []perdure.RowID, err error) {
	for _, sh := range l.shards {
		for at := 0; ; {
			if err := l.usable(); err != nil {
				return nil, err
			}
			call := t.rows.Scan(sh.rows, at)
			if err := l.await(ctx, call, l.usable); err != nil {
				return nil, err
			}
			ids, of := call.Stored()
			all, at = append(all, ids...), at+len(ids)
			call.Free()
			if len(ids) == 0 || at >= of {
				break
			}
		}
	}
	return all, nil
}

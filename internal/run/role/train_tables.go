package role

import (
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/workload"
	"github.com/perdure/perdure/worker"
)

// Tables gives a workload access to its tables through a client.
type Tables struct {
	tables map[string]*worker.Table
	waited time.Duration // in Get, since it was last reset
	list   []perdure.RowID
}

// OpenTables creates the workload's tables or attaches to them.
func OpenTables(ctx context.Context, c *worker.Client, w workload.Workload) (*Tables, error) {
	t := &Tables{tables: map[string]*worker.Table{}}
	for _, spec := range w.Tables() {
		table, err := c.Table(ctx, spec)
		if err != nil {
			return nil, err
		}
		t.tables[spec.Name] = table
	}
	return t, nil
}

// Table returns one of the workload's tables by name.
func (t *Tables) Table(name string) *worker.Table { return t.tables[name] }

// Get implements workload.Tables.
func (t *Tables) Get(ctx context.Context, table string, first perdure.RowID, dst []float32) error {
	start := time.Now()
	defer func() { t.waited += time.Since(start) }()
	to := t.tables[table]
	if spec := to.Spec(); spec.Sparse {
		return to.GetRows(ctx, t.rows(first, len(dst)/spec.Dim), dst)
	}
	return to.GetRun(ctx, first, dst)
}

func (t *Tables) Inc(_ context.Context, table string, first perdure.RowID, delta []float32) error {
	to := t.tables[table]
	if spec := to.Spec(); spec.Sparse {
		return to.IncRows(t.rows(first, len(delta)/spec.Dim), delta)
	}
	return to.IncRun(first, delta)
}

func (t *Tables) GetRows(ctx context.Context, table string, rows []perdure.RowID, dst []float32) error {
	start := time.Now()
	defer func() { t.waited += time.Since(start) }()
	return t.tables[table].GetRows(ctx, rows, dst)
}

func (t *Tables) IncRows(_ context.Context, table string, rows []perdure.RowID, delta []float32) error {
	return t.tables[table].IncRows(rows, delta)
}

// weigh sets the weight of this clock's updates, the number of examples, for tables that need it.
func (t *Tables) weigh(samples int) error {
	for _, to := range t.tables {
		if to.Spec().Combine != perdure.CombineWeighted {
			continue
		}
		if err := to.Weigh(float64(samples)); err != nil {
			return err
		}
	}
	return nil
}

// rows returns the IDs of n rows from first on. The list is valid until the next call.
func (t *Tables) rows(first perdure.RowID, n int) []perdure.RowID {
	t.list = t.list[:0]
	for i := range n {
		t.list = append(t.list, first+perdure.RowID(i))
	}
	return t.list
}

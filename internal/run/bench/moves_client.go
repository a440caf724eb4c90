package bench

import (
	"context"
	"fmt"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/hooks"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/worker"
)

// This is the only file of the moves benchmark that uses the client, through the same API as a user's program.

// missingFor returns the feature that a measurement needs and this machine lacks, or "".
func missingFor(m *measurement) string {
	if m.Socket == "unix" && !unixWorks() {
		return "automatic Unix sockets"
	}
	return ""
}

// unixWorks reports whether processes on this machine can find each other's Unix sockets.
var unixWorks = sync.OnceValue(func() bool {
	l, err := transport.TCP{}.Listen(localrun.AnyPort)
	if err != nil {
		return false
	}
	defer l.Close()
	c, err := transport.TCP{Socket: transport.SocketUnix}.Dial(context.Background(), l.Addr())
	if err != nil {
		return false
	}
	return c.Close() == nil
})

// joinAlone joins a job as its only worker, over the connections that the bed specifies.
func joinAlone(ctx context.Context, r *localrun.Run, b *movesTestbed) (*worker.Client, error) {
	c := worker.Config{Coordinator: r.Coordinator(), Secret: r.Secrets().Job, Connections: b.Conns}
	var network transport.Network
	switch b.Socket {
	case socketTLS:
		c.Keys = r.Settings().Reach.Keys
	case "unix":
		// The coordinator is reached over TCP, its servers are not.
		network = transport.TCP{Socket: transport.SocketAuto}
	default:
		network = transport.TCP{Socket: transport.SocketTCP}
	}
	return worker.Dial(hooks.NewContext(ctx, hooks.Worker{Network: network}), c)
}

// openMoved opens a table.
func openMoved(ctx context.Context, c *worker.Client, spec perdure.TableSpec) (*movedTable, error) {
	t, err := c.Table(ctx, spec)
	return &movedTable{Table: t, c: c}, err
}

// movedTable is a table to push to and pull from.
type movedTable struct {
	*worker.Table
	c          *worker.Client
	Pushes     int
	computeErr error // error of the last compute
}

// push pushes delta and returns when the server has applied it. rows are the IDs to move; nil means all rows of a
// dense table.
func (t *movedTable) push(ctx context.Context, rows []perdure.RowID, delta []float32) (err error) {
	if rows == nil {
		err = t.IncRun(0, delta)
	} else {
		err = t.IncRows(rows, delta)
	}
	if err != nil {
		return err
	}
	return t.finishClock(ctx)
}

// compute writes delta into the buffer of the table's next update, like a program that computes it in place.
func (t *movedTable) compute(delta []float32) {
	to, err := t.Deltas(0, int(t.Spec().Rows))
	if t.computeErr = err; err == nil {
		copy(to, delta)
	}
}

// finishClock ends the clock and returns when its update is applied.
func (t *movedTable) finishClock(ctx context.Context) error {
	if t.computeErr != nil {
		return t.computeErr
	}
	if _, err := t.c.Clock(ctx); err != nil {
		return err
	}
	t.Pushes++
	return t.c.Settle(ctx)
}

// pull reads rows from the server. The caller must call Forget first.
func (t *movedTable) pull(ctx context.Context, rows []perdure.RowID, dst []float32) error {
	if rows == nil {
		return t.GetRun(ctx, 0, dst)
	}
	return t.GetRows(ctx, rows, dst)
}

// Verify reads a dense table with the rule add and compares it with the sum of all pushes, to ensure that the measured
// pushes were really applied.
func (t *movedTable) Verify(ctx context.Context) error {
	spec := t.Spec()
	if spec.Sparse || spec.Rule.Kind != perdure.RuleAdd || t.Pushes > maxExactPushes {
		return nil
	}
	got := make([]float32, spec.Rows*int64(spec.Dim))
	delta := pushDelta(len(got))
	t.Forget()
	if err := t.pull(ctx, nil, got); err != nil {
		return err
	}
	for i, v := range got {
		if want := delta[i] * float32(t.Pushes); v != want {
			return fmt.Errorf("bench: after %d pushes, value %d of table %s is %v, not %v", t.Pushes, i, spec.Name, v,
				want)
		}
	}
	return nil
}

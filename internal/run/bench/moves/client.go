package moves

import (
	"context"
	"fmt"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/bench/raw"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/worker"
)

// This file is all of the bench that touches the client: what it uses is what a
// user's own program would.

// missing says what a measurement needs that this machine has not; "": nothing.
func missing(m *Measurement) string {
	if m.Socket == "unix" && !unixWorks() {
		return "Unix sockets that are chosen by themselves"
	}
	return ""
}

// unixWorks reports whether processes of this machine find each other's Unix
// sockets.
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

// Client is this process as the job's one worker.
type Client struct{ *worker.Client }

// Dial joins a job over the connections that the bed asks for.
func Dial(ctx context.Context, r *localrun.Run, b *Bed) (Client, error) {
	c := worker.Config{Coordinator: r.Coordinator(), Secret: r.Secrets().Job, Connections: b.Conns}
	switch b.Socket {
	case raw.TLS:
		c.Keys = r.Settings().Reach.Keys
	case "unix":
		// The coordinator is reached over TCP, its servers are not.
		c.Network = transport.TCP{Socket: transport.SocketAuto}
	default:
		c.Network = transport.TCP{Socket: transport.SocketTCP}
	}
	w, err := worker.Dial(ctx, c)
	return Client{w}, err
}

func (c Client) Close() { _ = c.Client.Close() } // never fails

// Table makes a table.
func (c Client) Table(ctx context.Context, spec perdure.TableSpec) (*Table, error) {
	t, err := c.Client.Table(ctx, spec)
	return &Table{Table: t, c: c}, err
}

// Table is one table that is pushed to and pulled from.
type Table struct {
	*worker.Table
	c        Client
	Pushes   int
	computed error // of the last compute
}

// pushed applies delta on the server, and returns when it is applied. rows are
// the ids to move; nil: all rows of a dense table.
func (t *Table) pushed(ctx context.Context, rows []perdure.RowID, delta []float32) (err error) {
	if rows == nil {
		err = t.IncRun(0, delta)
	} else {
		err = t.IncRows(rows, delta)
	}
	if err != nil {
		return err
	}
	return t.finished(ctx)
}

// compute puts delta where the table's next update has it, as a program would that
// computes it there.
func (t *Table) compute(delta []float32) {
	to, err := t.Deltas(0, int(t.Spec().Rows))
	if t.computed = err; err == nil {
		copy(to, delta)
	}
}

// finished ends the clock, and returns when its update is applied.
func (t *Table) finished(ctx context.Context) error {
	if t.computed != nil {
		return t.computed
	}
	if _, err := t.c.Clock(ctx); err != nil {
		return err
	}
	t.Pushes++
	return t.c.Settle(ctx)
}

// pulled reads rows from the server; Forget comes before.
func (t *Table) pulled(ctx context.Context, rows []perdure.RowID, dst []float32) error {
	if rows == nil {
		return t.GetRun(ctx, 0, dst)
	}
	return t.GetRows(ctx, rows, dst)
}

// Verify reads a dense table of rule add, and holds it against all that was
// pushed: figures of something else than what they are called are worth nothing.
func (t *Table) Verify(ctx context.Context) error {
	spec := t.Spec()
	if spec.Sparse || spec.Rule.Kind != perdure.RuleAdd || t.Pushes > mostExact {
		return nil
	}
	got := make([]float32, spec.Rows*int64(spec.Dim))
	delta := Delta(len(got))
	t.Forget()
	if err := t.pulled(ctx, nil, got); err != nil {
		return err
	}
	for i, v := range got {
		if want := delta[i] * float32(t.Pushes); v != want {
			return fmt.Errorf("bench: after %d pushes value %d of table %s is %v, not %v", t.Pushes, i, spec.Name, v,
				want)
		}
	}
	return nil
}

package main

import (
	"context"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/transport"
	"github.com/perdure/perdure/worker"
)

// This file is all of the bench that touches the client: what it uses is what a
// user's own program would.

// missing says what a measurement needs that this build has not; "": nothing.
func missing(m *measurement) string {
	switch {
	case m.conns > 1:
		return "more than one connection to a server"
	case m.socket == "unix":
		return "Unix sockets"
	case m.rule == perdure.RuleAdam:
		return "rule adam"
	case m.size.rows > 0:
		return "sparse tables"
	}
	return ""
}

// benchClient is this process as the job's one worker, and as a reader beside it
// whose every Get goes to the server.
type benchClient struct {
	worker, reader *worker.Client
	marks          *worker.Table // one row in each shard
	mark           []float32
}

// dialBench joins a job over the connections that the bed asks for.
func dialBench(ctx context.Context, addr string, _ *bed) (*benchClient, error) {
	cfg := worker.Config{Network: transport.TCP{}, Coordinator: addr, Slot: 0}
	w, err := worker.Dial(ctx, cfg)
	if err != nil {
		return nil, err
	}
	c := &benchClient{worker: w}
	cfg.Observer = true
	if c.reader, err = worker.Dial(ctx, cfg); err != nil {
		c.close()
		return nil, err
	}
	c.mark = make([]float32, w.Job().Shards)
	c.marks, err = w.Table(ctx, perdure.TableSpec{Name: "marks", Rows: int64(len(c.mark)), Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd}})
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *benchClient) close() {
	for _, client := range []*worker.Client{c.worker, c.reader} {
		if client != nil {
			_ = client.Close() // never fails
		}
	}
}

// settle waits until the server has applied all updates so far: it answers a
// read after what came before it on the same connection.
func (c *benchClient) settle(ctx context.Context) error {
	return c.marks.GetRun(ctx, 0, c.mark)
}

// forget empties the reader's cache.
func (c *benchClient) forget() { c.reader.At(0) }

// table makes a table for both.
func (c *benchClient) table(ctx context.Context, spec perdure.TableSpec) (*benchTable, error) {
	t := &benchTable{c: c}
	var err error
	if t.push, err = c.worker.Table(ctx, spec); err != nil {
		return nil, err
	}
	t.pull, err = c.reader.Table(ctx, spec)
	return t, err
}

// benchTable is one table that is pushed to and pulled from. rows are the ids
// to move; nil: all rows of a dense table.
type benchTable struct {
	c          *benchClient
	push, pull *worker.Table
	pushes     int
}

// pushed applies delta on the server, and returns when it is applied.
func (t *benchTable) pushed(ctx context.Context, rows []perdure.RowID, delta []float32) (err error) {
	if rows == nil {
		err = t.push.IncRun(0, delta)
	} else {
		err = t.push.IncRows(rows, delta)
	}
	if err != nil {
		return err
	}
	if _, err := t.c.worker.Clock(ctx); err != nil {
		return err
	}
	t.pushes++
	return t.c.settle(ctx)
}

// pulled reads rows from the server; forget comes before.
func (t *benchTable) pulled(ctx context.Context, rows []perdure.RowID, dst []float32) error {
	if rows == nil {
		return t.pull.GetRun(ctx, 0, dst)
	}
	return t.pull.GetRows(ctx, rows, dst)
}

// verify reads a dense table of rule add, and holds it against all that was
// pushed: figures of something else than what they are called are worth nothing.
func (t *benchTable) verify(ctx context.Context) error {
	spec := t.push.Spec()
	if spec.Sparse || spec.Rule.Kind != perdure.RuleAdd || t.pushes > mostExact {
		return nil
	}
	got := make([]float32, spec.Rows*int64(spec.Dim))
	delta := benchDelta(len(got))
	t.c.forget()
	if err := t.pulled(ctx, nil, got); err != nil {
		return err
	}
	for i, v := range got {
		if want := delta[i] * float32(t.pushes); v != want {
			return fmt.Errorf("bench: after %d pushes value %d of table %s is %v, not %v", t.pushes, i, spec.Name, v, want)
		}
	}
	return nil
}

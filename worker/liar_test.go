package worker_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// forger is a network that modifies frames from servers and injects others.
type forger struct {
	transport.Network

	mu     sync.Mutex // guards the fields below
	change func(f *wire.Frame)
	forged func(like wire.Header) wire.Frame // injected once, before the next acknowledgement
}

type forgedConn struct {
	transport.Conn
	n    *forger
	held *wire.Frame // the next frame
}

func (n *forger) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	conn, err := n.Network.Dial(ctx, addr)
	if err != nil || !strings.HasPrefix(addr, "server:") {
		return conn, err
	}
	return &forgedConn{conn, n, nil}, nil
}

func (c *forgedConn) Recv(f *wire.Frame) error { return c.RecvInto(f, nil) }

func (c *forgedConn) RecvInto(f *wire.Frame, _ func(f *wire.Frame, n int) []byte) error {
	if c.held != nil {
		*f, c.held = *c.held, nil
		return nil
	}
	if err := c.Conn.Recv(f); err != nil {
		return err
	}
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	if c.n.change != nil {
		c.n.change(f)
	}
	if c.n.forged != nil && f.Kind == wire.KindAck {
		honest := *f
		c.held, *f, c.n.forged = &honest, c.n.forged(f.Header), nil
	}
	return nil
}

func (n *forger) lie(change func(f *wire.Frame)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.change = change
}

// forges joins as slot 0 through a forger and captures the log.
func (c *cluster) forges() (*worker.Client, *forger, *bytes.Buffer) {
	n, log := &forger{Network: c.Net.Host("worker:0")}, &bytes.Buffer{}
	w := c.dial("worker:0", 0, func(cfg *testcluster.DialConfig) {
		cfg.Network, cfg.Log = n, slog.New(slog.NewTextHandler(log, nil)) // written under the client's lock
	})
	return w, n, log
}

// TestStranger checks that a process of another job, which listens at the address of a dead server and rejects
// connections, does not affect this job: the worker tries again.
func TestStranger(t *testing.T) {
	inCluster(t, "ssp:0", "none", 1, 0, func(c *cluster) {
		w, n, log := c.forges()
		turned := 0
		n.lie(func(f *wire.Frame) {
			if f.Kind == wire.KindWelcome && turned < 3 {
				turned++
				*f = wire.Control(wire.KindRefuse, wire.Refusal{Reason: "the secret belongs to another run"})
			}
		})
		ts := c.tables([]*worker.Client{w})
		c.clock(w, 1)
		c.get(ts[0])
		if turned != 3 || strings.Count(log.String(), "rejected the connection") != 3 {
			t.Errorf("turned away %d times: %s", turned, log)
		}
	})
}

// TestLyingServer checks that the reader detects a server that claims its rows are fresh enough although its own
// messages show that they are not.
func TestLyingServer(t *testing.T) {
	for _, model := range []string{"bsp", "ssp:0", "essp:0"} {
		inCluster(t, model, "none", 2, 0, func(c *cluster) {
			w, n, _ := c.forges()
			other := c.dial("worker:1", 1)
			ts := c.tables([]*worker.Client{w, other})
			for clock := range perdure.Clock(3) {
				both(2, func(slot int) { c.clock([]*worker.Client{w, other}[slot], clock+1) })
			}
			c.get(ts[0]) // the client knows by now that every slot has finished 3 clocks
			stale := func(minClock perdure.Clock) func(f *wire.Frame) {
				return func(f *wire.Frame) {
					var a wire.Answer
					if f.Kind != wire.KindRows || wire.ParseAnswer(f, &a) != nil {
						return
					}
					values := slices.Clone(a.Values)
					a.Applied = make([]perdure.Clock, 2)
					f.Clock, f.Payload = minClock, wire.AppendFloats(wire.AppendState(nil, &a.State), values)
				}
			}
			ts[0].Forget()
			n.lie(stale(3))
			err := ts[0].GetRun(c.ctx, 0, make([]float32, rows*dim))
			if !errors.Is(err, perdure.ErrBound) || strings.Contains(err.Error(), "\n") ||
				!says(err, "table t, "+model+", clock 3") {
				t.Errorf("%s: a read of rows that lack 6 updates: %v", model, err)
			}
			ts[0].Forget()
			n.lie(stale(2))
			err = ts[0].GetRun(c.within(time.Second), 0, make([]float32, rows*dim))
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: a read that is answered with rows of an old MinClock: %v", model, err)
			}
			n.lie(nil)
			ts[0].Forget()
			if err := ts[0].GetRun(c.ctx, 0, make([]float32, rows*dim)); err != nil {
				t.Errorf("%s: when nobody lies: %v", model, err)
			}
		})
	}
}

// forgedPush is a frame that no correct server sends, with the expected log message; "": it is ignored.
type forgedPush struct {
	name, says string
	frame      func(like wire.Header) wire.Frame
}

// forgedPushes returns frames for a job with the tables t, which is pushed, s, which is sparse, and b, which is bsp.
func forgedPushes() []forgedPush {
	push := func(slots int, r wire.Rows, values int) func(like wire.Header) wire.Frame {
		return func(like wire.Header) wire.Frame {
			state := wire.State{Seq: 1 << 40, Applied: make([]perdure.Clock, slots)}
			h := wire.Header{
				Kind: wire.KindPush, Generation: like.Generation, Epoch: like.Epoch, Shard: like.Shard,
				Slot: perdure.NoSlot,
			}
			return wire.Frame{
				Header:  h,
				Payload: wire.AppendFloats(wire.AppendPushHead(nil, &state, &r), make([]float32, values)),
			}
		}
	}
	const pushed, sparse, bsp = 0, 1, 2
	ids := func(table perdure.TableID, ids ...perdure.RowID) wire.Rows {
		return wire.Rows{Table: table, Count: len(ids), IDs: ids}
	}
	return []forgedPush{
		{"a short vector", "invalid length of 1 slots", push(1, wire.Rows{}, 0)},
		{"a long vector", "invalid length of 4097 slots", push(perdure.MaxSlots+1, wire.Rows{}, 0)},
		{"nothing", "answer of 0 bytes", func(h wire.Header) wire.Frame {
			h.Kind = wire.KindPush
			return wire.Frame{Header: h}
		}},
		{"a run beyond the part", "malformed", push(2, wire.Rows{First: 1, Count: rows}, rows*dim)},
		{"a run that wraps around", "malformed", push(2, wire.Rows{First: ^perdure.RowID(0), Count: 2}, 2*dim)},
		{"a row beyond the part", "malformed", push(2, ids(pushed, 1<<40), dim)},
		{"too few values", "do not fit", push(2, ids(pushed, 1, 2), dim)},
		{"too many values", "do not fit", push(2, ids(pushed, 1, 2), 5*dim)},
		{"a run of a sparse table", "malformed", push(2, wire.Rows{Table: sparse, Count: 2}, 2*dim)},
		{"a row of a table that is not pushed", "table b, which", push(2, wire.Rows{Table: bsp, Count: 1}, dim)},
		{"a run of a table that is not pushed", "table b, which", push(2, wire.Rows{Table: bsp, Count: 2}, 2*dim)},
		{"a table that is not", "", push(2, ids(99, 1), dim)},
		{"rows of other shards", "malformed", push(2, ids(sparse, 1, 2, 3, 4, 5, 6, 7, 8, 9), 9*dim)},
		{"rows that nobody wants", "", func(like wire.Header) wire.Frame {
			return push(2, ids(sparse, onShard(like.Shard, 4, 3)...), 3*dim)(like)
		}},
	}
}

// TestForgedPushes checks that an invalid push either closes its connection, with a one-line reason, or is ignored. The
// client continues on the next connection.
func TestForgedPushes(t *testing.T) {
	for _, f := range forgedPushes() {
		inCluster(t, "essp:1,b=bsp", "none", 2, 0, func(c *cluster) {
			w, n, log := c.forges()
			other := c.dial("worker:1", 1)
			ws := []*worker.Client{w, other}
			var ts []*worker.Table
			for _, w := range ws {
				ts = append(ts, c.table(w))
				c.table(w, sparsely, func(s *perdure.TableSpec) { s.Name = "s" })
				b := c.table(w, func(s *perdure.TableSpec) { s.Name = "b" })
				c.get(b)
			}
			for clock := range perdure.Clock(8) {
				for slot := range ws {
					if err := ts[slot].GetRun(c.ctx, 0, make([]float32, rows*dim)); err != nil {
						t.Fatalf("%s: at clock %d: %v", f.name, clock, err)
					}
					c.inc(ts[slot], 1)
				}
				if clock == 3 {
					n.mu.Lock()
					n.forged = f.frame
					n.mu.Unlock()
				}
				both(2, func(slot int) { c.clock(ws[slot], clock+1) })
				c.pass(100 * time.Millisecond)
			}
			ts[0].Forget()
			if v := c.get(ts[0]); v != 16 {
				t.Errorf("%s: the rows are %v, want 16", f.name, v)
			}
			lost := strings.Count(log.String(), "lost a server")
			if want := min(len(f.says), 1); lost != want || !strings.Contains(log.String(), f.says) {
				t.Errorf("%s: %d connections were given up, want %d with %q: %s", f.name, lost, want, f.says, log)
			}
		})
	}
}

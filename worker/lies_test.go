package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
)

var liesTold = flag.Int("worker.lies", 40, "how many frames a liar sends on each of its connections")

// guardedJob is the ID of a job that requires secrets.
const guardedJob = "guarded"

// recorder is a network that records the frames sent on each connection.
type recorder struct {
	transport.Network

	mu    sync.Mutex // guards the fields below
	calls []*call
}

// call holds the frames sent on one connection.
type call struct {
	addr   string
	frames []wire.Frame
}

type recordedConn struct {
	transport.Conn
	r *recorder
	*call
}

func (r *recorder) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	conn, err := r.Network.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	one := &call{addr: addr}
	r.calls = append(r.calls, one)
	return &recordedConn{conn, r, one}, nil
}

func (c *recordedConn) Send(frames ...wire.Frame) error {
	c.keep(frames)
	return c.Conn.Send(frames...)
}

func (c *recordedConn) TrySend(frames ...wire.Frame) error {
	c.keep(frames)
	return c.Conn.TrySend(frames...)
}

func (c *recordedConn) keep(frames []wire.Frame) {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	for _, f := range frames {
		f.Payload, f.Body = append(bytes.Clone(f.Payload), f.Body...), nil
		f.Release, f.Lent = nil, false
		c.frames = append(c.frames, f)
	}
}

// heard returns everything recorded so far.
func (r *recorder) heard() (calls []call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.calls {
		calls = append(calls, call{c.addr, append([]wire.Frame(nil), c.frames...)})
	}
	return calls
}

// liar sends invalid messages and replays recorded ones.
type liar struct {
	*cluster
	rng *rand.Rand
	n   int // number of connections so far
}

// pick returns one of several values.
func pick[T any](l *liar, values ...T) T { return values[l.rng.IntN(len(values))] }

// talk connects, sends a hello and frames, and waits a moment.
func (l *liar) talk(addr string, hello *wire.Frame, frames []wire.Frame) {
	l.n++
	conn, err := l.Net.Host(fmt.Sprintf("liar:%d", l.n)).Dial(l.within(time.Second), addr)
	if err != nil {
		return // the process has just ended
	}
	defer conn.Close()
	if hello != nil {
		_ = conn.Send(*hello) // the receiver may reject it at any time
		l.pass(2 * time.Millisecond)
	}
	for _, f := range frames {
		if conn.Send(f) != nil {
			return
		}
	}
	l.pass(5 * time.Millisecond)
}

// hello returns a hello that no correct process sends, signed with the job's secret.
func (l *liar) hello() *wire.Frame {
	h := wire.Hello{
		Role: pick(l, wire.RoleWorker, wire.RoleObserver, wire.RoleObserver, wire.RoleServer, wire.RoleSupervisor,
			wire.RoleCoordinator, "king"),
		Job:   pick(l, guardedJob, guardedJob, "", "another"),
		Index: pick(l, 0, 1, -1, -5, 2, math.MaxInt32, math.MinInt64), Process: pick(l, "liar", "worker:0#3", ""),
		PID:  pick(l, 0, 1, -1),
		Addr: "liar/1", Incarnation: pick[perdure.Incarnation](l, 0, 1, 2, math.MaxUint32), Grow: pick(l, true, false),
		Secret: pick(l, l.Keys.Job, l.Keys.Job, l.Keys.Job, "", "guess"),
		Nonce:  pick[perdure.Secret](l, "", "guess", "drawn"), Ticket: pick[perdure.Secret](l, "", "guess"),
	}
	f := wire.Control(wire.KindHello, h)
	return &f
}

// frame returns a frame of any kind with boundary values in its fields.
func (l *liar) frame() wire.Frame {
	far := []perdure.Clock{math.MinInt64, -1, 1 << 41, 1 << 62, math.MaxInt64}
	f := wire.Frame{Header: wire.Header{
		Kind: wire.Kind(l.rng.IntN(64)), Flags: uint16(l.rng.Uint32()),
		Generation: pick[perdure.Generation](l, 0, 1, 1, 1, math.MaxUint64),
		Epoch:      pick[perdure.Epoch](l, 0, 1, 1, 1, 2, math.MaxUint64), Clock: pick(l, far...),
		Request:     pick[uint64](l, 0, 1, wire.MaxRequest),
		Clocks:      pick[uint16](l, 0, 1, 2, math.MaxUint16),
		Slot:        pick[perdure.Slot](l, 0, 1, -1, 2, math.MaxInt32, math.MinInt32),
		Incarnation: pick[perdure.Incarnation](l, 0, 1, 1, 2, math.MaxUint32),
		Shard:       pick[perdure.ShardID](l, 0, 1, 2, 3, -1, 4, math.MaxInt32, math.MinInt32),
		Part:        pick[uint16](l, 0, 1, math.MaxUint16), Parts: pick[uint16](l, 0, 1, 1, math.MaxUint16),
	}}
	if f.Kind == wire.KindHello {
		f.Kind = 0
	}
	f.Payload = pick(l, l.payloads()...)
	return f
}

// payloads returns payloads of several kinds of frames, with extreme values.
func (l *liar) payloads() [][]byte {
	noise := make([]byte, l.rng.IntN(200))
	for i := range noise {
		noise[i] = byte(l.rng.Uint32())
	}
	all := [][]byte{
		nil, noise,
		wire.AppendRows(nil, &wire.Rows{Table: math.MaxUint32 - 7, Count: math.MaxInt64}),
		wire.AppendRows(nil, &wire.Rows{First: math.MaxUint64, Count: 1 << 24}),
		wire.AppendRows(nil, &wire.Rows{IDs: []perdure.RowID{0, math.MaxUint64}}),
		wire.AppendState(nil, &wire.State{Seq: math.MaxUint64, Applied: []perdure.Clock{math.MaxInt64, math.MinInt64}}),
		wire.AppendBasisBlock(nil, math.MaxInt64, math.MinInt64),
	}
	for _, v := range []any{
		wire.Order{
			Kind: pick[wire.OrderKind](l, "finish", "end", "drop", "pass", "kill", "stop"), Target: "worker:0",
			Spec: pick(l, "1 1", "end 0 0s", "", "NaN 0"),
		},
		wire.Report{
			Slot: pick[perdure.Slot](l, 0, 1, -1), Generation: 1,
			Clock: pick[perdure.Clock](l, 0, -1, math.MaxInt64), EndAfter: true,
		},
		wire.Exited{
			Role: pick(l, wire.RoleWorker, wire.RoleServer, "king"), Index: pick(l, 0, -1, math.MaxInt64),
			How: string(noise),
		},
		perdure.TableSpec{Name: "huge", Rows: math.MaxInt64, Dim: math.MaxInt32},
		protocol.View{Revision: math.MaxUint64, Done: true, End: 1},
		wire.Progress{Complete: true},
		protocol.WorkerStatus{Clock: math.MaxInt64, Finished: true},
	} {
		b, err := json.Marshal(v)
		if err != nil {
			l.Fatal(err)
		}
		all = append(all, b)
	}
	return all
}

// lie sends some invalid messages to all processes and replays messages of a worker.
func (l *liar) lie(r *recorder) {
	for _, addr := range []string{coordinatorAddr, "server:0/1", "server:1/1"} {
		hello := l.hello()
		var frames []wire.Frame
		for range *liesTold / 4 {
			frames = append(frames, l.frame())
		}
		l.talk(addr, hello, frames)
		for range 3 { // each on its own connection, because most close it
			l.talk(addr, l.hello(), []wire.Frame{l.frame()})
		}
	}
	l.talk(coordinatorAddr, nil, []wire.Frame{l.frame()})
	calls := r.heard()
	for _, c := range calls {
		if c.addr != coordinatorAddr { // replay a complete connection
			l.talk(c.addr, nil, c.frames)
		}
	}
	c := calls[l.rng.IntN(len(calls))] // send recorded frames to another process, in a different order
	l.rng.Shuffle(len(c.frames), func(i, j int) { c.frames[i], c.frames[j] = c.frames[j], c.frames[i] })
	l.talk(pick(l, coordinatorAddr, "server:0/1", "server:1/1"), l.hello(), c.frames)
}

// TestLiesAndReplays checks that a process with the job's secret cannot corrupt the job, whatever it sends or replays.
// The job ends at its planned end and contains every update once.
func TestLiesAndReplays(t *testing.T) {
	const clocks = 8
	for _, model := range []string{"bsp", "asp"} {
		for _, recovery := range []string{"checkpoint:3", "chain:2"} {
			t.Run(model+" "+recovery, func(t *testing.T) {
				job := jobOf(model, recovery, 2, clocks)
				job.ID, job.FixedEnd = guardedJob, true
				if !job.TwoStep(nil) {
					job.SuspendMs = 2000 // for joiners that have ended
				}
				inJob(t, transport.MemoryOptions{}, nil, job, func(c *cluster) { survive(c, clocks) })
			})
		}
	}
}

// survive trains while the liar interferes.
func survive(c *cluster, clocks perdure.Clock) {
	l := &liar{cluster: c, rng: rand.New(rand.NewPCG(*seed, 7))}
	r := &recorder{Network: c.Net.Host("worker:0")}
	ws := c.workers(func(cfg *testcluster.DialConfig) {
		if cfg.Slot.Requested() == 0 {
			cfg.Network = r
		}
	})
	ts := c.tables(ws)
	for clock := range clocks {
		for _, table := range ts {
			c.inc(table, 1)
		}
		l.lie(r)
		both(len(ws), func(i int) { c.clock(ws[i], clock+1) })
	}
	l.lie(r)
	both(len(ws), func(i int) {
		if err := ws[i].Finish(c.ctx); err != nil {
			c.Errorf("slot %d does not finish: %v", i, err)
		}
	})
	ts[0].Forget()
	if got := c.get(ts[0]); got != float32(2*clocks) {
		c.Errorf("at the end the rows hold %v, want %v", got, 2*clocks)
	}
}

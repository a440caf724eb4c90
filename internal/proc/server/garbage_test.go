package server_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/server"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// lines collects a server's log without times.
type lines struct {
	mu    sync.Mutex    // guards all
	all   []string      // warnings and errors
	came  int           // number of lines, including debug output
	added chan struct{} // capacity 1: a line was added
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch line := string(b); {
	case strings.Contains(line, "level=INFO"):
		return len(b), nil
	case strings.Contains(line, "level=DEBUG"):
	default:
		l.all = append(l.all, line)
	}
	l.came++
	select {
	case l.added <- struct{}{}:
	default:
	}
	return len(b), nil
}

// total returns the number of lines, including debug output.
func (l *lines) total() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.came
}

// about returns how many lines contain a text.
func (l *lines) about(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// wait waits until there are more than n lines.
func (l *lines) wait(ctx context.Context, n int) {
	for l.total() <= n && ctx.Err() == nil {
		select {
		case <-l.added:
		case <-ctx.Done():
		}
	}
}

// subject is a server with 2 shards of a dense table of 10 rows of 3 values and of a sparse table. Its job has a
// coordinator and one correct worker that the server must keep serving.
type subject struct {
	*testing.T
	ctx   context.Context
	near  transport.Network // of the sender of garbage
	addr  string            // the server's address
	log   *lines
	view  protocol.View // as known to its peers
	good  *worker.Client
	table *worker.Table
	clock perdure.Clock
}

const (
	tableRows = 10
	tableDim  = 3
)

// inMemory and overSockets are the networks of a job.
var inMemory, overSockets = testcluster.Options{Seed: 1}, testcluster.Options{Sockets: &transport.TCP{}}

// start starts the job.
func start(t *testing.T, over testcluster.Options, with ...func(*server.Config)) *subject {
	ctx, h := testcluster.NewForTest(t, time.Minute, over)
	s := &subject{T: t, ctx: ctx, log: &lines{added: make(chan struct{}, 1)}, near: h.NewProcess("garbage").Net}
	_, err := h.StartCoordinator(testcluster.Job("bsp", "none", 1, 1, 2))
	if err != nil {
		t.Fatal(err)
	}
	logs := func(cfg *server.Config) {
		cfg.Log = slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	h.StartServer("server:0", append([]func(*server.Config){logs}, with...)...)
	if s.good, err = h.NewProcess("worker:0").Dial(ctx, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.good.Close() })
	s.table, err = s.good.Table(ctx,
		perdure.TableSpec{Name: "t", Rows: tableRows, Dim: tableDim, Rule: perdure.Rule{Kind: perdure.RuleAdd}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = s.good.Table(ctx, perdure.TableSpec{
		Name: "s", Sparse: true, Dim: tableDim,
		Init: perdure.Init{Kind: perdure.InitUniform, Scale: 1}, // not 0: answers are as large as their values
		Rule: perdure.Rule{Kind: perdure.RuleAdd},
	}); err != nil {
		t.Fatal(err)
	}
	if err := h.Leader().Ask(ctx, func(core *membership.Core,
		_ coordinator.Latest,
	) {
		s.view = core.Record().View
	}); err != nil {
		t.Fatal(err)
	}
	s.addr = s.view.Shards[0].Addr
	return s
}

// goesOn checks that the server still serves its worker, and that only the worker's updates have been applied.
func (s *subject) goesOn(after string) {
	s.Helper()
	delta, got := make([]float32, tableRows*tableDim), make([]float32, tableRows*tableDim)
	for i := range delta {
		delta[i] = 1
	}
	if err := s.table.IncRun(0, delta); err != nil {
		s.Fatalf("after %s: %v", after, err)
	}
	var err error
	if s.clock, err = s.good.Clock(s.ctx); err != nil {
		s.Fatalf("after %s: %v", after, err)
	}
	if err := s.table.GetRun(s.ctx, 0, got); err != nil {
		s.Fatalf("after %s: %v", after, err)
	}
	for _, v := range got {
		if v != float32(s.clock) {
			s.Fatalf("after %s the table is %v at clock %d", after, got, s.clock)
		}
	}
}

// hello returns the hello of another worker with the same incarnation as the correct one. That one keeps its
// acknowledgements, since nothing sent to this connection is for it.
func hello(change func(*wire.Hello)) wire.Frame {
	h := wire.Hello{Role: wire.RoleWorker, Job: "job-1", Incarnation: 1}
	change(&h)
	return wire.Control(wire.KindHello, h)
}

// shardFrame returns a frame for shard 0 in its current epoch.
func (s *subject) shardFrame(kind wire.Kind, payload []byte, change func(*wire.Header)) wire.Frame {
	h := wire.Header{
		Kind: kind, Generation: s.view.Generation, Epoch: s.view.Shards[0].Epoch, Incarnation: 1,
		Clock: s.clock, Parts: 1,
	}
	if change != nil {
		change(&h)
	}
	return wire.Frame{Header: h, Payload: payload}
}

func update(first perdure.RowID, ids []perdure.RowID, count, values int, table perdure.TableID) []byte {
	return wire.AppendBlock(nil, &wire.Block{
		Rows:   wire.Rows{Table: table, First: first, IDs: ids, Count: count},
		Values: make([]float32, values),
	})
}

// bad is a peer's misbehaviour that ends its connection.
type bad struct {
	name  string
	hello *wire.Frame
	send  func(s *subject) []wire.Frame // after the hello
	says  string                        // expected in the server's log, once
}

func bads() []bad { return slices.Concat(badHellos(), badUpdates(), badReads(), badNames()) }

// badHello returns a hello that differs from a good one.
func badHello(change func(*wire.Hello)) *wire.Frame { f := hello(change); return &f }

var (
	goodHello     = badHello(func(*wire.Hello) {})
	observerHello = badHello(func(h *wire.Hello) { h.Role = wire.RoleObserver })
)

// badFrame sends one frame that differs from a good one.
func badFrame(kind wire.Kind, payload []byte, change func(*wire.Header)) func(*subject) []wire.Frame {
	return func(s *subject) []wire.Frame { return []wire.Frame{s.shardFrame(kind, payload, change)} }
}

func read(r wire.Rows) []byte { return wire.AppendRows(nil, &r) }

// badHellos are rejected before anything else is read.
func badHellos() []bad {
	return []bad{
		{"a hello of another job", badHello(func(h *wire.Hello) { h.Job = "job-2" }), nil, "job-2"},
		{"a hello of no job", badHello(func(h *wire.Hello) { h.Job = "" }), nil, `peer for job`},
		{"an old incarnation", badHello(func(h *wire.Hello) { h.Incarnation = 0 }), nil, "taken over by incarnation 1"},
		{"an unknown slot", badHello(func(h *wire.Hello) { h.Index = 7 }), nil, "slot 7"},
		{"a negative slot", badHello(func(h *wire.Hello) { h.Index = -1 }), nil, "slot -1"},
		{"another role", badHello(func(h *wire.Hello) { h.Role = "king" }), nil, "king"},
		{"no hello", nil, badFrame(wire.KindGet, nil, nil), "instead of a hello"},
		{"an unknown kind", goodHello, badFrame(99, nil, nil), "no worker may send a frame of kind 99"},
		{
			"a second hello", goodHello, badFrame(wire.KindHello, []byte("{}"), nil),
			"no worker may send a frame of kind 1",
		},
	}
}

// badUpdates are updates that cannot be applied.
func badUpdates() []bad {
	return []bad{
		{
			"rows outside the shard", goodHello, badFrame(wire.KindUpdate, update(5, nil, 1, 3, 0), nil),
			"row not on this shard",
		},
		{
			"a row id outside the shard", goodHello,
			badFrame(wire.KindUpdate, update(0, []perdure.RowID{0, 1 << 63}, 2, 6, 0), nil), "row not on this shard",
		},
		{
			"a run of all rows there could be", goodHello,
			badFrame(wire.KindUpdate, update(0, nil, wire.MaxPayload*8, 3, 0), nil), "row not on this shard",
		},
		{
			"too few values", goodHello, badFrame(wire.KindUpdate, update(0, nil, 2, 5, 0), nil),
			"wrong number of values",
		},
		{
			"too many values", goodHello, badFrame(wire.KindUpdate, update(0, nil, 1, 6, 0), nil),
			"wrong number of values",
		},
		{
			"an unknown table", goodHello, badFrame(wire.KindUpdate, update(0, nil, 1, 3, 9), nil),
			"an update is for table 9",
		},
		{
			"an update that does not parse", goodHello, badFrame(wire.KindUpdate, []byte("garbage"), nil),
			"malformed payload",
		},
		{
			"NaN in an update", goodHello, badFrame(wire.KindUpdate, nanUpdate(), nil),
			"NaN or Inf in an update: value 1 of row 0",
		},
		{
			"a part beyond the last", goodHello, badFrame(wire.KindUpdate, nil, func(h *wire.Header) { h.Part = 1 }),
			"part 1 of 1",
		},
		{
			"a negative clock", goodHello, badFrame(wire.KindUpdate, nil, func(h *wire.Header) { h.Clock = -1 }),
			"invalid clock -1",
		},
		{
			"an observer's update", observerHello, badFrame(wire.KindUpdate, nil, nil),
			"no observer may send a frame of kind 20",
		},
		{
			"an observer's tick", observerHello, badFrame(wire.KindTick, nil, nil),
			"no observer may send a frame of kind 21",
		},
	}
}

// badReads are reads that cannot be answered.
func badReads() []bad {
	return []bad{
		{"a read that does not parse", goodHello, badFrame(wire.KindGet, []byte{1}, nil), "malformed payload"},
		{
			"a read with trailing bytes", goodHello, badFrame(wire.KindGet, append(read(wire.Rows{Count: 1}), 0), nil),
			"bytes after a read",
		},
		{
			"a read outside the shard", goodHello,
			badFrame(wire.KindGet, read(wire.Rows{First: 5, Count: 1}), func(h *wire.Header) { h.Clock = 0 }),
			"row not on this shard",
		},
		{
			"a read of all rows there could be", goodHello,
			badFrame(wire.KindGet, read(wire.Rows{Count: wire.MaxPayload * 8}), func(h *wire.Header) { h.Clock = 0 }),
			"row not on this shard",
		},
		{
			"a sparse row of another shard", goodHello,
			badFrame(wire.KindUpdate, update(0, sparseRows(0, 1), 2, 6, 1), nil), "is on shard 1, not on shard 0",
		},
		{
			"consecutive rows of a sparse table", goodHello, badFrame(wire.KindUpdate, update(0, nil, 2, 6, 1), nil),
			"is sparse: give the id",
		},
		{
			"too few values of sparse rows", goodHello,
			badFrame(wire.KindUpdate, update(0, sparseRows(0, 0), 2, 5, 1), nil), "5 for 2 rows of table s",
		},
		{
			"values of another dimension", goodHello,
			badFrame(wire.KindUpdate, update(0, sparseRows(0, 0), 2, 8, 1), nil),
			"8 for 2 rows of table s",
		},
		{"Inf in a sparse row", goodHello, badFrame(wire.KindUpdate, infUpdate(), nil), "value 2 of row "},
		{
			"a read of a sparse row of another shard", goodHello,
			badFrame(wire.KindGet, read(wire.Rows{Table: 1, Count: 1, IDs: sparseRows(1)}),
				func(h *wire.Header) { h.Clock = 0 }), "is on shard 1, not on shard 0",
		},
		{
			"a read of such a row, that would wait", goodHello,
			badFrame(wire.KindGet, read(wire.Rows{Table: 1, Count: 1, IDs: sparseRows(1)}),
				func(h *wire.Header) { h.Clock = 1 << 40 }), "is on shard 1, not on shard 0",
		},
		{
			"a read of consecutive sparse rows", goodHello,
			badFrame(wire.KindGet, read(wire.Rows{Table: 1, Count: 1}), func(h *wire.Header) { h.Clock = 0 }),
			"is sparse: give the id",
		},
		{
			"a read that is too large", goodHello,
			badFrame(wire.KindGet, read(manyRows(wire.MaxPayload/12)), func(h *wire.Header) { h.Clock = 0 }),
			"does not fit in 4194304 bytes",
		},
		{
			"a scan of a dense table", goodHello,
			badFrame(wire.KindScan, read(wire.Rows{Count: 1}), func(h *wire.Header) { h.Clock = 1 << 40 }),
			"its stored rows cannot be listed",
		},
		{
			"an observer's request for acknowledgements", observerHello, badFrame(wire.KindSync, nil, nil),
			"no observer may send a frame of kind 26",
		},
	}
}

// badNames name other slots, or clocks and frames that are not the sender's.
func badNames() []bad {
	return []bad{
		{
			"the state of an unknown slot", goodHello,
			badFrame(wire.KindLoad, nil, func(h *wire.Header) { h.Slot = 3 }),
			"slot 3",
		},
		{
			"an update for another slot", goodHello,
			badFrame(wire.KindUpdate, nil, func(h *wire.Header) { h.Slot = 1 }),
			"names slot 1",
		},
		{
			"an update of another incarnation", goodHello,
			badFrame(wire.KindUpdate, nil, func(h *wire.Header) { h.Incarnation = 2 }), "earlier incarnation",
		},
		{
			"an update from the future", goodHello,
			badFrame(wire.KindUpdate, nil, func(h *wire.Header) { h.Clock = 1 << 62 }), "the job's clocks are 0 to",
		},
		{
			"a tick from the future", goodHello,
			badFrame(wire.KindTick, nil, func(h *wire.Header) { h.Clock = 1 << 62 }),
			"the job's clocks are 0 to",
		},
		{
			"a request for acknowledgements from the future", goodHello,
			badFrame(wire.KindSync, nil, func(h *wire.Header) { h.Clock = 1 << 62 }), "the job's clocks are 0 to",
		},
		{
			"a worker's fence of another slot", goodHello,
			badFrame(wire.KindFence, nil, func(h *wire.Header) { h.Slot = 1 }), "no worker may send a frame of kind 37",
		},
		{"a worker's fence", goodHello, badFrame(wire.KindFence, nil, nil), "no worker may send a frame of kind 37"},
		{
			"a worker's membership list", goodHello, badFrame(wire.KindMembership, []byte("[]"), nil),
			"no worker may send a frame of kind 43",
		},
		{
			"a worker's follow", goodHello, badFrame(wire.KindFollow, nil, nil),
			"no worker may send a frame of kind 32",
		},
		{
			"a worker's snapshot", goodHello, badFrame(wire.KindSnapshot, nil, nil),
			"no worker may send a frame of kind 35",
		},
		{
			"an observer's request for saved state", observerHello, badFrame(wire.KindLoad, nil, nil),
			"no observer may send a frame of kind 23",
		},
	}
}

// closed waits until the server has closed a connection.
func closed(c transport.Conn) error {
	var f wire.Frame
	for {
		if err := c.Recv(&f); err != nil {
			return err
		}
	}
}

func nanUpdate() []byte {
	return wire.AppendBlock(nil, &wire.Block{Rows: wire.Rows{Count: 1}, Values: []float32{1, float32(math.NaN()), 2}})
}

// TestBadFrames checks that a peer which sends invalid frames is disconnected with one line in the log, and that the
// server keeps serving others with intact rows.
func TestBadFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, inMemory)
		for _, b := range bads() {
			before := s.log.about("")
			c, err := s.near.Dial(s.ctx, s.addr)
			if err != nil {
				t.Fatal(err)
			}
			if b.hello != nil {
				if err := c.Send(*b.hello); err != nil {
					t.Fatal(err)
				}
			}
			if b.send != nil {
				if err := c.Send(b.send(s)...); err != nil {
					t.Fatal(err)
				}
			}
			sent := time.Now()
			err = closed(c)
			if took := time.Since(sent); took > time.Second {
				t.Errorf("%s: closed after %v: %v", b.name, took, err)
			}
			c.Close()
			if n := s.log.about("") - before; n != 1 || s.log.about(b.says) < 1 {
				t.Errorf("%s: %d lines in the log, want 1 with %q: %q", b.name, n, b.says, s.log.all[before:])
			}
			s.goesOn(b.name)
		}
	})
}

// TestOtherLives checks that frames for another epoch of a shard, or for a shard that is not here, change nothing and
// are not answered. Their sender stays connected, since its view may just be old.
func TestOtherLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, inMemory)
		c, err := s.near.Dial(s.ctx, s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		payload := update(0, nil, 1, 3, 0)
		frames := []wire.Frame{hello(func(*wire.Hello) {})}
		for _, kind := range []wire.Kind{wire.KindUpdate, wire.KindTick, wire.KindGet, wire.KindLoad, wire.KindOpen} {
			for _, change := range []func(*wire.Header){
				func(h *wire.Header) { h.Epoch-- }, func(h *wire.Header) { h.Epoch++ },
				func(h *wire.Header) { h.Generation-- },
				func(h *wire.Header) { h.Generation++ }, func(h *wire.Header) { h.Shard = 5 },
				func(h *wire.Header) { h.Shard = -1 },
			} {
				frames = append(frames, s.shardFrame(kind, payload, change))
			}
		}
		if err := c.Send(frames...); err != nil {
			t.Fatal(err)
		}
		var f wire.Frame
		if err := c.Recv(&f); err != nil || f.Kind != wire.KindWelcome {
			t.Fatalf("got kind %d, %v; want a welcome", f.Kind, err)
		}
		s.goesOn("frames of other epochs")
		answered := make(chan error, 1)
		go func() { answered <- c.Recv(&f) }()
		<-time.After(10 * time.Second)
		synctest.Wait()
		if len(answered) > 0 {
			t.Errorf("frames of other epochs were answered with kind %d, %v", f.Kind, <-answered)
		}
		if n := s.log.about(""); n != 0 {
			t.Errorf("%d lines in the log: %q", n, s.log.all)
		}
	})
}

// TestSilentPeer checks that a peer which sends nothing is disconnected after a while.
func TestSilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, inMemory)
		c, err := s.near.Dial(s.ctx, s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		begin := time.Now()
		err = closed(c)
		if took := time.Since(begin); took < 4*time.Second || took > 6*time.Second {
			t.Errorf("disconnected after %v: %v", took, err)
		}
		if n := s.log.about("handshake failed"); n != 1 {
			t.Errorf("%d lines in the log, want 1", n)
		}
		s.goesOn("a silent peer")
	})
}

// TestEndsWithSilentPeer checks that a silent peer does not prevent a server from ending.
func TestEndsWithSilentPeer(t *testing.T) {
	testcluster.RunVirtual(t, time.Minute, inMemory, func(t *testing.T, ctx context.Context, h *testcluster.Hosts) {
		p := h.StartServer("server:0",
			func(cfg *server.Config) { cfg.Listen = "server:0/1" }) // there is no coordinator
		<-time.After(time.Second)
		c, err := h.Net.Host("garbage").Dial(ctx, "server:0/1")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		<-time.After(time.Second)
		p.Stop()
		begin := time.Now()
		if err := p.Wait(); !errors.Is(err, context.Canceled) || time.Since(begin) > 100*time.Millisecond {
			t.Errorf("it ended after %v with %v", time.Since(begin), err)
		}
	})
}

// TestGarbageBytes checks over TCP that arbitrary bytes close the connection with one line in the log, and that the
// server continues.
func TestGarbageBytes(t *testing.T) {
	s := start(t, overSockets)
	rng := rand.New(rand.NewPCG(1, 1))
	random := make([]byte, 1000)
	for i := range random {
		random[i] = byte(rng.Uint32())
	}
	h := hello(func(*wire.Hello) {})
	greeting := wire.Append(nil, &h)
	changed := func(change func(b []byte)) []byte {
		b := append([]byte{}, greeting...)
		change(b)
		return b
	}
	oversize := changed(func(b []byte) { binary.LittleEndian.PutUint32(b[8:], 1<<31) })
	for _, c := range []struct {
		name string
		send []byte
		says string
	}{
		{"random bytes", random, "not a Perdure frame"},
		{
			"HTTP", []byte("GET / HTTP/1.1\r\nHost: localhost\r\n" + strings.Repeat("X: y\r\n", 20) + "\r\n"),
			"not a Perdure frame",
		},
		{"an oversized length", oversize, "payload too large"},
		{
			"another version", changed(func(b []byte) { b[4] = wire.Version + 1 }),
			fmt.Sprintf("the peer speaks wire version %d, but", wire.Version+1),
		},
		{"a flipped bit", changed(func(b []byte) { b[70] ^= 1 }), "checksum mismatch"},
		{"half a frame", greeting[:80], "unexpected EOF"},
		{"half a header", greeting[:10], "EOF"},
		{"nothing", nil, ""}, // an immediate close is not logged
	} {
		before, sent := s.log.total(), s.log.about("")
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(c.send); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil && !strings.Contains(err.Error(), "not connected") {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, conn); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: %v; want the connection to be closed", c.name, err)
		}
		conn.Close()
		s.log.wait(s.ctx, before)
		if n := s.log.about("") - sent; (n == 1) != (c.says != "") || n > 1 || s.log.about(c.says) == 0 {
			t.Errorf("%s: %d lines in the log, want one with %q: %q", c.name, n, c.says, s.log.all[sent:])
		}
		s.goesOn(c.name)
	}
	// Garbage in the middle of a connection ends it too.
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(append(greeting, random...)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Error(err)
	}
	s.goesOn("garbage after a hello")
}

// Example runs a server until its job ends. The coordinator assigns shards to it.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // the job ends immediately
	err := server.Run(ctx, server.Config{
		Index: -1, Self: server.Identity{Process: "server-1"}, Network: transport.TCP{}, Listen: "127.0.0.1:0",
		Coordinator: "127.0.0.1:7000", Store: store.NewDir(disk.NewMemory(), "run/checkpoint"),
		Log: slog.New(slog.DiscardHandler),
	})
	fmt.Println(err)
	// Output: context canceled
}

package worker_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/server"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// overSockets starts a job with one slot, one server and one shard over real sockets and joins it. through, unless nil,
// is the worker's network.
func overSockets(
	t testing.TB, model string, sock transport.TCP, heartbeat time.Duration,
	through func(transport.Network) transport.Network,
) (context.Context, *worker.Client) {
	t.Helper()
	ctx, h := testcluster.NewForTest(t, time.Minute, testcluster.Options{Sockets: &sock})
	if _, err := h.StartCoordinator(testcluster.Job(model, "none", 1, 1, 1)); err != nil {
		t.Fatal(err)
	}
	h.StartServer("server:0", func(cfg *server.Config) { cfg.Heartbeat = heartbeat })
	w, err := h.NewProcess("worker:0").Dial(ctx, 0, func(cfg *testcluster.DialConfig) {
		if cfg.Heartbeat = heartbeat; through != nil {
			cfg.Network = through(cfg.Network)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return ctx, w
}

// slowNetwork routes frames from servers through a relay that can stop in the middle of a frame. Connections to the
// coordinator are direct.
type slowNetwork struct {
	transport.Network
	t      *testing.T
	first  string // the first address dialled, which is the coordinator's
	mu     sync.Mutex
	budget int           // bytes that may still pass; < 0: unlimited
	stops  chan struct{} // closed when the relay stops
	goesOn chan struct{} // closed to resume the relay
	over   chan struct{} // closed when all delayed bytes are forwarded, or cannot be
}

func (n *slowNetwork) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.first == "" {
		n.first = addr
	}
	if addr == n.first {
		return n.Network.Dial(ctx, addr)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() {
		near, err := l.Accept()
		l.Close()
		if err != nil {
			return
		}
		// The kernel buffers bytes that were not read yet, so keep its buffer small.
		if err := near.(*net.TCPConn).SetWriteBuffer(4 << 10); err != nil {
			n.t.Error(err)
		}
		far, err := net.Dial("tcp", addr)
		if err != nil {
			near.Close()
			return
		}
		go func() { _, _ = io.Copy(far, near); far.Close() }()
		n.relay(near, far)
		near.Close()
	}()
	return transport.TCP{Socket: transport.SocketTCP}.Dial(ctx, l.Addr().String())
}

// stopAfter stops the relay after a number of bytes.
func (n *slowNetwork) stopAfter(bytes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.budget, n.stops, n.goesOn, n.over = bytes, make(chan struct{}), make(chan struct{}), make(chan struct{})
}

func (n *slowNetwork) relay(to, from net.Conn) {
	b := make([]byte, 16<<10)
	for {
		k, err := from.Read(b)
		if err != nil {
			return
		}
		n.mu.Lock()
		pass, stops := k, n.budget >= 0 && n.budget < k
		if stops {
			pass, n.budget = n.budget, -1
		} else if n.budget >= 0 {
			n.budget -= k
		}
		n.mu.Unlock()
		if _, err = to.Write(b[:pass]); err == nil && stops {
			close(n.stops)
			<-n.goesOn
			_, err = to.Write(b[pass:k])
			close(n.over)
		}
		if err != nil {
			return
		}
	}
}

// TestGivenUpHalfReceived checks a Get that is canceled while its answer is received into the caller's memory. It
// returns immediately and writes nothing there afterwards. The rows can be read again.
func TestGivenUpHalfReceived(t *testing.T) {
	for _, sparse := range []bool{false, true} {
		var slow *slowNetwork
		ctx, w := overSockets(t, "asp", transport.TCP{}, 0, func(n transport.Network) transport.Network {
			slow = &slowNetwork{Network: n, t: t, budget: -1}
			return slow
		})
		const dim = 200_000
		spec := perdure.TableSpec{
			Name: "t", Rows: 3, Dim: dim, Rule: perdure.Rule{Kind: perdure.RuleAdd},
			Init: perdure.Init{Kind: perdure.InitUniform, Scale: 1},
		}
		if sparse {
			sparsely(&spec)
		}
		table, err := w.Table(ctx, spec)
		if err != nil {
			t.Fatal(err)
		}
		want, got := make([]float32, dim), make([]float32, dim)
		if err := table.Get(ctx, 1, want); err != nil {
			t.Fatal(err)
		}
		table.Forget()
		slow.stopAfter(700_000)
		giveUp, cancel := context.WithCancel(ctx)
		ended := go1(func() error { return table.Get(giveUp, 1, got) })
		<-slow.stops
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Fatalf("the Get that was given up returned %v", err)
		}
		placed := 0
		for i := range got {
			if got[i] != 0 {
				placed++
			}
			got[i] = 42
		}
		if placed == 0 || placed == dim {
			t.Errorf("sparse %v: %d of %d values were received in place; want some", sparse, placed, dim)
		}
		close(slow.goesOn)
		<-slow.over
		again := make([]float32, dim)
		if err := table.Get(ctx, 1, again); err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if got[i] != 42 {
				t.Fatalf("value %d was written after the Get had returned", i)
			}
			if again[i] != want[i] {
				t.Fatalf("value %d is %v when it is read again, want %v", i, again[i], want[i])
			}
		}
	}
}

package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/keys"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// maxQueued is the queue limit of the networks under test.
const maxQueued = 1 << 20

// subject is a network under test.
type subject struct {
	name   string
	bubble bool // in virtual time
	// make returns the networks of both sides, an address to listen on, and an address without a listener.
	make func() (near, far Network, addr, none string)
}

func subjects(t *testing.T) []subject {
	dir := jobKeys(t, "job")
	private := func() (Network, Network, string, string) {
		near, far := as(t, dir, keys.Worker), as(t, dir, keys.Server)
		near.MaxQueued, far.MaxQueued = maxQueued, maxQueued
		return near, far, "127.0.0.1:0", "127.0.0.1:1"
	}
	over := func(kind Socket) func() (Network, Network, string, string) {
		t := TCP{MaxQueued: maxQueued, Socket: kind}
		return func() (Network, Network, string, string) { return t, t, "127.0.0.1:0", "127.0.0.1:1" }
	}
	tcp, unix := over(SocketTCP), over(SocketUnix)
	memory := func() (Network, Network, string, string) {
		mem := NewMemory(1, MemoryOptions{MaxQueued: maxQueued})
		return mem.Host("worker:0"), mem.Host("server:0"), "server:0/0", "server:0/1"
	}
	type makes = func() (near, far Network, addr, none string)
	faulty := func(inner makes, fault func(*FaultLayer)) makes {
		return func() (Network, Network, string, string) {
			near, far, addr, none := inner()
			n, f := NewFaultLayer(near), NewFaultLayer(far)
			fault(n)
			fault(f)
			return n, f, addr, none
		}
	}
	calm := func(*FaultLayer) {}
	slow := func(l *FaultLayer) { l.Slow(3, 0); l.Jitter(3, 0, 7) }
	cut := func(l *FaultLayer) { l.Cut(time.Second) }
	far := func(l *FaultLayer) {
		l.SetLink(LinkModel{Delay: 100 * time.Microsecond, Spread: 100 * time.Microsecond, BytesPerSecond: 1e9})
	}
	all := []subject{
		{"TCP", false, tcp},
		{"TLS", false, private},
		{"memory", true, memory},
		{"faulty TCP", false, faulty(tcp, calm)},
		{"faulty memory", true, faulty(memory, calm)},
		{"slow and jittery memory", true, faulty(memory, slow)},
		{"memory after a cut", true, faulty(memory, cut)},
		{"far memory", true, faulty(memory, far)},
	}
	if runtime.GOOS == "linux" {
		all = append(all, subject{"Unix", false, unix}, subject{"faulty Unix", false, faulty(unix, calm)},
			subject{"far Unix", false, faulty(unix, far)})
	}
	return all
}

func TestConformance(t *testing.T) {
	cases := []struct {
		name string
		run  func(*testing.T, subject)
	}{
		{"order and batches", testOrder},
		{"every field", testFields},
		{"concurrent senders", testConcurrent},
		{"large frames", testLarge},
		{"payload memory is reused", testReuse},
		{"small batches, slowly received", testBacklog},
		{"close unblocks", testCloseUnblocks},
		{"frames sent before close arrive", testLastWords},
		{"broken stays broken", testBroken},
		{"dial refused", testRefused},
		{"dial ends with its context", testDialContext},
		{"listen twice", testListenTwice},
		{"bound of queued bytes", testBound},
		{"large batch alone", testLargeBatch},
		{"try to send", testTrySend},
		{"budget of several", testBudget},
		{"thousand idle connections", testIdle},
		{"payload in two pieces", testBody},
		{"payload in place", testPlace},
		{"too large a place", testPlaceTooLarge},
		{"release", testRelease},
		{"release of unsent frames", testReleaseUnsent},
		{"bodies that are lent", testLent},
	}
	for _, s := range subjects(t) {
		for _, c := range cases {
			t.Run(s.name+"/"+c.name, func(t *testing.T) {
				if s.bubble {
					synctest.Test(t, func(t *testing.T) { c.run(t, s) })
					return
				}
				c.run(t, s)
			})
		}
	}
}

// testBacklog sends small batches until no more fit, then receives. The batches arrive complete and in order, and
// OnWait is called only when no more data is available.
func testBacklog(t *testing.T, s subject) {
	near, far := connect(t, s)
	waits, waiting := 0, make(chan struct{}, 1)
	far.OnWait(func() {
		waits++
		select {
		case waiting <- struct{}{}:
		default:
		}
	})
	const n = 800 // × 32 KiB: more than the socket buffers and the limit
	sent := make(chan error, 1)
	go func() {
		for i := range n {
			payload := bytes.Repeat([]byte{byte(i)}, 32<<10)
			if err := near.Send(wire.Frame{
				Header:  wire.Header{Kind: wire.KindTick, Clock: perdure.Clock(i)},
				Payload: payload,
			}); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	var f wire.Frame
	for i := range n {
		must(t, far.Recv(&f))
		if f.Clock != perdure.Clock(i) || len(f.Payload) != 32<<10 || f.Payload[0] != byte(i) ||
			f.Payload[len(f.Payload)-1] != byte(i) {
			t.Fatalf("frame %d came as clock %d with %d bytes", i, f.Clock, len(f.Payload))
		}
	}
	must(t, <-sent)
	// A batch arrives together, except that the memory network gives each frame its own time.
	tick := wire.Frame{Header: wire.Header{Kind: wire.KindTick}}
	must(t, near.Send(tick, tick))
	must(t, far.Recv(&f))
	before := waits
	must(t, far.Recv(&f))
	if !s.bubble && waits != before {
		t.Error("the batch's second frame was waited for after the first was received")
	}
	for len(waiting) > 0 {
		<-waiting
	}
	got := make(chan error, 1)
	go func() { got <- far.Recv(&f) }()
	<-waiting // the receiver is about to wait; only now data is sent
	must(t, near.Send(tick))
	must(t, <-got)
}

// testTrySend sends until TrySend returns ErrFull without blocking, and again after the peer has received frames.
func testTrySend(t *testing.T, s subject) {
	near, far := connect(t, s)
	payload := make([]byte, 64<<10)
	sent := 0
	var err error
	for ; err == nil && sent < 1<<11; sent++ {
		err = near.TrySend(wire.Frame{
			Header:  wire.Header{Kind: wire.KindTick, Clock: perdure.Clock(sent)},
			Payload: payload,
		})
	}
	if !errors.Is(err, ErrFull) {
		t.Fatalf("after %d frames of 64 KiB: %v", sent, err)
	}
	var f wire.Frame
	for i := range sent - 1 {
		must(t, far.Recv(&f))
		if f.Clock != perdure.Clock(i) || len(f.Payload) != len(payload) {
			t.Fatalf("frame %d came as %d with %d bytes", i, f.Clock, len(f.Payload))
		}
	}
	must(t, near.Send(wire.Frame{Header: wire.Header{Kind: wire.KindTick}}))
	must(t, far.Recv(&f))
	must(t, near.Close())
	if err := near.TrySend(wire.Frame{Header: wire.Header{Kind: wire.KindTick}}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// connect returns the two ends of a connection. They are closed at the end of the test.
func connect(t testing.TB, s subject) (near, far Conn) {
	t.Helper()
	from, to, addr, _ := s.make()
	l, err := to.Listen(addr)
	must(t, err)
	defer l.Close()
	return dialPair(t, from, l)
}

func dialPair(t testing.TB, from Network, l Listener) (near, far Conn) {
	t.Helper()
	var err error
	accepted := make(chan error, 1)
	go func() {
		var err error
		far, err = l.Accept()
		accepted <- err
	}()
	near, err = from.Dial(context.Background(), l.Addr())
	must(t, err)
	must(t, <-accepted)
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustBe(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
}

// numbered returns a frame with a number.
func numbered(i int, payload []byte) wire.Frame {
	return wire.Frame{Header: wire.Header{Kind: wire.KindUpdate, Request: uint64(i)}, Payload: payload}
}

func testOrder(t *testing.T, s subject) {
	near, far := connect(t, s)
	const seed, n = 3, 3000
	rng := rand.New(rand.NewPCG(seed, 0))
	noise := make([]byte, 4096)
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	sizes := make([]int, n)
	for i := range sizes {
		sizes[i] = rng.IntN(4096) * rng.IntN(2) // every other one empty
	}
	var sender sync.WaitGroup
	sender.Go(func() {
		batch := rand.New(rand.NewPCG(seed, 1))
		for i := 0; i < n; {
			var frames []wire.Frame
			for k := batch.IntN(20); k >= 0 && i < n; k-- {
				frames = append(frames, numbered(i, noise[:sizes[i]]))
				i++
			}
			if err := near.Send(frames...); err != nil {
				t.Error(err)
				return
			}
		}
	})
	var f wire.Frame
	for i := range n {
		must(t, far.Recv(&f))
		if f.Request != uint64(i) || !bytes.Equal(f.Payload, noise[:sizes[i]]) {
			t.Fatalf("seed %d: got frame %d with %d bytes, want %d with %d", seed, f.Request, len(f.Payload), i,
				sizes[i])
		}
	}
	sender.Wait()
}

func testFields(t *testing.T, s subject) {
	near, far := connect(t, s)
	want := wire.Frame{Header: wire.Header{
		Kind: wire.KindRows, Flags: 3, Generation: 4, Epoch: 5, Clock: 6, Request: 7,
		Slot: perdure.NoSlot, Incarnation: 8, Shard: -1, Part: 9, Parts: 10,
	}, Payload: []byte("rows")}
	must(t, far.Send(want)) // the listening side first
	var f wire.Frame
	must(t, near.Recv(&f))
	if f.Header != want.Header || string(f.Payload) != "rows" {
		t.Fatalf("got %+v, want %+v", f, want)
	}
	must(t, near.Send()) // sending no frames is not an error
	if near.Peer() == "" || far.Peer() == "" {
		t.Fatal("a peer without a description")
	}
}

func testConcurrent(t *testing.T, s subject) {
	near, far := connect(t, s)
	const senders, n = 8, 300
	var wg sync.WaitGroup
	for k := range senders {
		wg.Go(func() {
			for i := range n {
				f := numbered(i, []byte{byte(k)})
				f.Slot = perdure.Slot(k)
				g := f
				g.Flags = 1
				if err := near.Send(f, g); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var next [senders]uint64
	var f, g wire.Frame
	for range senders * n {
		must(t, far.Recv(&f))
		must(t, far.Recv(&g))
		if f.Slot != g.Slot || f.Request != g.Request || f.Flags != 0 || g.Flags != 1 {
			t.Fatalf("a batch was torn: %+v then %+v", f.Header, g.Header)
		}
		if f.Request != next[f.Slot] || f.Payload[0] != byte(f.Slot) {
			t.Fatalf("sender %d: got frame %d, want %d", f.Slot, f.Request, next[f.Slot])
		}
		next[f.Slot]++
	}
	wg.Wait()
}

func testLarge(t *testing.T, s subject) {
	near, far := connect(t, s)
	payload := make([]byte, wire.MaxPayload)
	for i := range payload {
		payload[i] = byte(i * 7 >> 3)
	}
	var sender sync.WaitGroup
	sender.Go(func() {
		for i := range 3 {
			if err := near.Send(numbered(i, payload)); err != nil {
				t.Error(err)
			}
		}
	})
	var f wire.Frame
	for i := range 3 {
		must(t, far.Recv(&f))
		if f.Request != uint64(i) || !bytes.Equal(f.Payload, payload) {
			t.Fatalf("frame %d differs from the sent frame", i)
		}
	}
	sender.Wait()
	mustBe(t, near.Send(numbered(3, make([]byte, wire.MaxPayload+1))), wire.ErrTooLarge)
	must(t, near.Send(numbered(4, nil))) // the connection still works
	must(t, far.Recv(&f))
}

func testReuse(t *testing.T, s subject) {
	near, far := connect(t, s)
	must(t, near.Send(numbered(0, []byte("first")), numbered(1, []byte("second"))))
	var f wire.Frame
	f.Payload = make([]byte, 0, 64)
	room := &f.Payload[:1][0]
	must(t, far.Recv(&f))
	must(t, far.Recv(&f))
	if string(f.Payload) != "second" || &f.Payload[0] != room {
		t.Fatalf("payload %q, in new memory: %v", f.Payload, &f.Payload[0] != room)
	}
}

func testCloseUnblocks(t *testing.T, s subject) {
	from, to, addr, _ := s.make()
	l, err := to.Listen(addr)
	must(t, err)
	near, far := dialPair(t, from, l)
	ended := make(chan error, 3)
	go func() {
		_, err := l.Accept()
		ended <- err
	}()
	go func() {
		var f wire.Frame
		ended <- near.Recv(&f)
	}()
	go func() {
		for {
			if err := near.Send(numbered(0, make([]byte, maxQueued/4))); err != nil {
				ended <- err
				return
			}
		}
	}()
	awaitBlocked(t, s, near, nil)
	must(t, l.Close())
	must(t, near.Close())
	for range 3 {
		mustBe(t, <-ended, ErrClosed)
	}
	var f wire.Frame
	mustBe(t, near.Send(f), ErrClosed)
	mustBe(t, near.Recv(&f), ErrClosed)
	must(t, near.Close()) // again
	must(t, l.Close())
	for err = nil; err == nil; { // frames sent before, then the end
		err = far.Recv(&f)
	}
	mustBe(t, err, ErrBroken)
}

func testLastWords(t *testing.T, s subject) {
	near, far := connect(t, s)
	must(t, near.Send(numbered(1, []byte("hello"))))
	var f wire.Frame
	must(t, far.Recv(&f))
	must(t, far.Send(numbered(2, []byte("refused"))))
	must(t, far.Close())
	must(t, near.Recv(&f))
	if string(f.Payload) != "refused" {
		t.Fatalf("got %q", f.Payload)
	}
	mustBe(t, near.Recv(&f), ErrBroken)
	mustBe(t, near.Recv(&f), io.EOF)
}

func testBroken(t *testing.T, s subject) {
	near, far := connect(t, s)
	must(t, far.Close())
	var f wire.Frame
	for range 3 {
		mustBe(t, near.Recv(&f), ErrBroken)
	}
	for near.Send(f) == nil { // frames held by a fault layer fail later
		if s.bubble {
			<-time.After(time.Millisecond)
		}
	}
	for range 3 {
		mustBe(t, near.Send(f), ErrBroken)
		mustBe(t, near.Recv(&f), ErrBroken)
	}
}

func testRefused(t *testing.T, s subject) {
	from, to, addr, none := s.make()
	_, err := from.Dial(context.Background(), none)
	mustBe(t, err, syscall.ECONNREFUSED)
	l, err := to.Listen(addr)
	must(t, err)
	must(t, l.Close())
	_, err = from.Dial(context.Background(), l.Addr())
	mustBe(t, err, syscall.ECONNREFUSED)
	_, err = l.Accept()
	mustBe(t, err, ErrClosed)
}

func testDialContext(t *testing.T, s subject) {
	from, _, _, none := s.make()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := from.Dial(ctx, none)
	mustBe(t, err, context.Canceled)
}

func testListenTwice(t *testing.T, s subject) {
	_, to, addr, _ := s.make()
	l, err := to.Listen(addr)
	must(t, err)
	_, err = to.Listen(l.Addr())
	mustBe(t, err, syscall.EADDRINUSE)
	must(t, l.Close())
	l, err = to.Listen(l.Addr())
	must(t, err)
	must(t, l.Close())
}

// blocked reports whether a Send on c is waiting.
func blocked(c Conn) bool {
	waits := func(mu sync.Locker, g *sendGate) bool {
		mu.Lock()
		defer mu.Unlock()
		return g.Blocked()
	}
	switch c := c.(type) {
	case *socketConn:
		return waits(&c.mu, &c.gate)
	case *memConn:
		return waits(&c.link.mem.mu, &c.out.gate)
	case *faultConn:
		return waits(&c.mu, &c.gate) || blocked(c.Conn)
	}
	panic(fmt.Sprintf("unknown connection %T", c))
}

// awaitBlocked waits until a Send on c is waiting. It fails if done is closed, which means that all frames were sent.
func awaitBlocked(t *testing.T, s subject, c Conn, done <-chan struct{}) {
	t.Helper()
	for !blocked(c) {
		select {
		case <-done:
			t.Fatal("all frames were sent although none was received")
		default:
		}
		runtime.Gosched()
	}
}

func testBound(t *testing.T, s subject) {
	near, far := connect(t, s)
	const frames, size = 384, 256 << 10 // 96 MiB: more than the limits and the kernel's buffers
	done := make(chan struct{})
	payload := make([]byte, size)
	go func() {
		defer close(done)
		for i := range frames {
			if err := near.Send(numbered(i, payload)); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	awaitBlocked(t, s, near, done)
	var f wire.Frame
	for i := range frames { // sending resumes as frames are received
		must(t, far.Recv(&f))
		if f.Request != uint64(i) {
			t.Fatalf("got frame %d, want %d", f.Request, i)
		}
	}
	<-done
}

func testLargeBatch(t *testing.T, s subject) {
	near, far := connect(t, s)
	payload := make([]byte, maxQueued)
	var small sync.WaitGroup
	for i := range 4 { // these must not starve the large batch
		small.Go(func() {
			for range 50 {
				if err := near.Send(numbered(i, payload[:maxQueued/8])); err != nil {
					t.Error(err)
				}
			}
		})
	}
	small.Go(func() {
		if err := near.Send(numbered(99, payload), numbered(99, payload), numbered(99, payload)); err != nil {
			t.Error(err)
		}
	})
	large := 0
	var f wire.Frame
	for range 4*50 + 3 {
		must(t, far.Recv(&f))
		if f.Request == 99 {
			large++
		}
	}
	if large != 3 {
		t.Fatalf("%d frames of the large batch came, want 3", large)
	}
	small.Wait()
}

func testIdle(t *testing.T, s subject) {
	from, to, addr, _ := s.make()
	l, err := to.Listen(addr)
	must(t, err)
	defer l.Close()
	const n = 1000
	var near, far [n]Conn
	for i := range n {
		near[i], far[i] = dialPair(t, from, l)
	}
	var f wire.Frame
	for i := range n {
		must(t, near[i].Send(numbered(i, nil)))
	}
	for i := range n {
		must(t, far[i].Recv(&f))
		if f.Request != uint64(i) {
			t.Fatalf("connection %d got frame %d", i, f.Request)
		}
	}
}

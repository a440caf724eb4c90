package transport

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/perdure/perdure/internal/data/wire"
)

// pattern returns n bytes whose values depend on their position.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*31 ^ i>>8)
	}
	return b
}

// splits are payloads in two pieces, with sizes around the relevant limits.
var splits = [][2]int{
	{0, 0},
	{1, 0},
	{0, 1},
	{1, 1},
	{inlineBytes, inlineBytes},
	{inlineBytes + 1, inlineBytes},
	{inlineBytes, inlineBytes + 1},
	{5000, 3},
	{3, 5000},
	{0, largePayload},
	{24, 300 << 10},
	{0, wire.MaxPayload},
	{wire.MaxPayload - 1, 1},
}

// testBody checks that payloads sent in two pieces arrive as one.
func testBody(t *testing.T, s subject) {
	near, far := connect(t, s)
	all := pattern(wire.MaxPayload)
	go func() {
		for i, split := range splits {
			n := split[0] + split[1]
			f := numbered(i, all[:split[0]])
			f.Body = all[split[0]:n]
			if err := near.Send(f); err != nil {
				t.Error(err)
			}
		}
	}()
	f := wire.Frame{Body: all, Release: new(counter)} // ignored by Recv
	for i, split := range splits {
		must(t, far.Recv(&f))
		if n := split[0] + split[1]; f.Request != uint64(i) || !bytes.Equal(f.Payload, all[:n]) || f.Body != nil ||
			f.Release != nil {
			t.Fatalf("frame %d differs from the sent frame", i)
		}
	}
	tooLarge := numbered(0, all)
	tooLarge.Body = all[:1]
	mustBe(t, near.Send(tooLarge), wire.ErrTooLarge)
	mustBe(t, near.TrySend(tooLarge), wire.ErrTooLarge)
}

// testPlace receives the ends of payloads in place.
func testPlace(t *testing.T, s subject) {
	near, far := connect(t, s)
	all := pattern(wire.MaxPayload)
	cases := splits
	go func() {
		for i, c := range cases {
			if err := near.Send(numbered(i, all[:c[0]+c[1]])); err != nil {
				t.Error(err)
			}
		}
	}()
	room := make([]byte, wire.MaxPayload)
	var f wire.Frame
	for i, c := range cases {
		head, body, asked := c[0], c[1], false
		clear(room)
		place := func(f *wire.Frame, n int) []byte {
			asked = true
			if f.Request != uint64(i) || n != head+body {
				t.Errorf("Place was called for frame %d with %d bytes", f.Request, n)
			}
			return room[:body]
		}
		must(t, far.RecvInto(&f, place))
		if asked != (head+body > 0) {
			t.Errorf("%d + %d bytes: Place was called: %v", head, body, asked)
		}
		if f.Request != uint64(i) || !bytes.Equal(f.Payload, all[:head]) || !bytes.Equal(f.Body, all[head:head+body]) {
			t.Fatalf("%d + %d bytes: differs from the sent payload", head, body)
		}
		if body > 0 && &f.Body[0] != &room[0] || body < len(room) && room[body] != 0 {
			t.Fatalf("%d + %d bytes: not in the memory from Place", head, body)
		}
	}
}

func testPlaceTooLarge(t *testing.T, s subject) {
	near, far := connect(t, s)
	must(t, near.Send(numbered(0, make([]byte, 10))))
	var f wire.Frame
	err := far.RecvInto(&f, func(*wire.Frame, int) []byte { return make([]byte, 11) })
	mustBe(t, err, ErrBroken)
	mustBe(t, far.Recv(&f), ErrBroken)
	mustBe(t, near.Recv(&f), ErrBroken)
}

// counter counts releases.
type counter struct{ n atomic.Int64 }

func (c *counter) Release() { c.n.Add(1) }

// counted returns n frames of a size, each with a counter.
func counted(n, size int) (frames []wire.Frame, counters []*counter) {
	body := make([]byte, size)
	for i := range n {
		c := new(counter)
		f := numbered(i, nil)
		f.Body, f.Release = body, c
		frames, counters = append(frames, f), append(counters, c)
	}
	return frames, counters
}

// mustRelease fails unless each frame was released exactly once.
func mustRelease(t *testing.T, counters []*counter) {
	t.Helper()
	for i, c := range counters {
		if n := c.n.Load(); n != 1 {
			t.Fatalf("frame %d of %d was released %d times", i, len(counters), n)
		}
	}
}

// testRelease sends small and large batches and checks that each frame is released once before Close returns.
func testRelease(t *testing.T, s subject) {
	near, far := connect(t, s)
	var all []*counter
	for _, c := range []struct{ n, size int }{{1, 0}, {100, 10}, {20, 100 << 10}, {3, wire.MaxPayload}, {1, 1}} {
		frames, counters := counted(c.n, c.size)
		all = append(all, counters...)
		sent := make(chan error, 1)
		go func() { sent <- near.Send(frames...) }()
		var f wire.Frame
		for range c.n {
			must(t, far.Recv(&f))
		}
		must(t, <-sent)
	}
	must(t, near.Close())
	mustRelease(t, all)
}

// testReleaseUnsent fills a connection whose peer does not read, until frames are rejected, and closes it. Each frame
// must be released once, sent or not.
func testReleaseUnsent(t *testing.T, s subject) {
	near, far := connect(t, s)
	tooLarge, all := counted(1, wire.MaxPayload+1)
	mustBe(t, near.Send(tooLarge...), wire.ErrTooLarge)
	for err := error(nil); err == nil; {
		frames, counters := counted(7, 50<<10)
		all = append(all, counters...)
		if err = near.TrySend(frames...); err != nil {
			mustBe(t, err, ErrFull)
			mustRelease(t, counters)
		}
	}
	waiting, counters := counted(2, maxQueued/2)
	all = append(all, counters...)
	ended := make(chan error, 1)
	go func() { ended <- near.Send(waiting...) }()
	awaitBlocked(t, s, near, nil)
	must(t, near.Close())
	if err := <-ended; err != nil { // the network may have accepted it just before
		mustBe(t, err, ErrClosed)
	}
	late, counters := counted(2, 1)
	all = append(all, counters...)
	mustBe(t, near.Send(late...), ErrClosed)
	mustRelease(t, all)
	must(t, far.Close())
}

// TestReleaseWhenThePeerDies checks that the death of the peer also releases queued frames.
func TestReleaseWhenThePeerDies(t *testing.T) {
	for _, s := range sockets {
		t.Run(s.name, func(t *testing.T) {
			c, raw := rawPair(t, s.tcp)
			var all []*counter
			for err := error(nil); err == nil; {
				frames, counters := counted(7, 1<<20)
				all = append(all, counters...)
				err = c.TrySend(frames...)
			}
			must(t, raw.Close())
			var f wire.Frame
			mustBe(t, c.Recv(&f), ErrBroken)
			must(t, c.Close())
			mustRelease(t, all)
		})
	}
}

func TestMemoryReleaseInACut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, near, far := faultPair(t)
		l.Cut(0)
		frames, counters := counted(3, 10)
		must(t, near.Send(frames...))
		synctest.Wait()
		for _, c := range counters {
			if c.n.Load() != 0 {
				t.Fatal("released while a cut holds it back")
			}
		}
		must(t, near.Close())
		mustRelease(t, counters)
		must(t, far.Close())
	})
}

// TestPlaceOfDamagedFrames checks that truncated or damaged data that is read in place breaks the connection.
func TestPlaceOfDamagedFrames(t *testing.T) {
	f := numbered(1, pattern(200<<10))
	good := wire.Append(nil, &f)
	flipped := append([]byte(nil), good...)
	flipped[len(flipped)-1] ^= 1
	head := append([]byte(nil), good...)
	head[wire.HeaderBytes] ^= 1
	for _, s := range sockets {
		for _, c := range []struct {
			name  string
			bytes []byte
			want  error
		}{
			{"torn before the body", good[:wire.HeaderBytes+5], io.ErrUnexpectedEOF},
			{"torn in the body", good[:100<<10], io.ErrUnexpectedEOF},
			{"torn at its end", good[:len(good)-1], io.ErrUnexpectedEOF},
			{"a bit of the body", flipped, wire.ErrChecksum},
			{"a bit before the body", head, wire.ErrChecksum},
		} {
			t.Run(s.name+"/"+c.name, func(t *testing.T) {
				near, raw := rawPair(t, s.tcp)
				go func() {
					_, _ = raw.Write(c.bytes)
					_ = raw.(interface{ CloseWrite() error }).CloseWrite()
				}()
				room := make([]byte, len(f.Payload)-10)
				var got wire.Frame
				err := near.RecvInto(&got, func(*wire.Frame, int) []byte { return room })
				mustBe(t, err, ErrBroken)
				mustBe(t, err, c.want)
				mustBe(t, near.Recv(&got), ErrBroken)
			})
		}
	}
}

// rawPair returns a connection under test and the bare socket of its peer.
func rawPair(t testing.TB, tcp TCP) (Conn, net.Conn) {
	t.Helper()
	l, err := tcp.Listen("127.0.0.1:0")
	must(t, err)
	defer l.Close()
	network, addr := "tcp", l.Addr()
	if tcp.Socket == SocketUnix {
		network, addr = "unix", localNames(t.Context(), addr)[0]
	}
	raw, err := net.Dial(network, addr)
	must(t, err)
	c, err := l.Accept()
	must(t, err)
	t.Cleanup(func() { raw.Close(); c.Close() })
	return c, raw
}

// lender lends the body of a frame and keeps copies.
type lender struct {
	counter
	kept [][]byte
}

func (l *lender) Keep(body []byte) []byte {
	l.kept = append(l.kept, slices.Clone(body))
	return l.kept[len(l.kept)-1]
}

// testLent sends frames whose bodies change as soon as Send has returned, and checks that the original bytes arrive.
func testLent(t *testing.T, s subject) {
	near, far := connect(t, s)
	var lenders []*lender
	var sizes []int
	for i := range 60 {
		sizes = append(sizes, []int{300 << 10, 1, 0, 700, 70 << 10, 1 << 20}[i%6])
	}
	sent := make(chan error, 1)
	go func() {
		body := make([]byte, 1<<20)
		var err error
		for i, size := range sizes {
			for j := range body[:size] {
				body[j] = byte(i + j/1000)
			}
			l := new(lender)
			lenders = append(lenders, l)
			f := numbered(i, []byte("head"))
			f.Body, f.Release, f.Lent = body[:size], l, true
			err = errors.Join(err, near.Send(f))
			clear(body[:size])
		}
		sent <- err
	}()
	for i, size := range sizes {
		var f wire.Frame
		must(t, far.Recv(&f))
		if len(f.Payload) != 4+size {
			t.Fatalf("frame %d has %d bytes, want %d", i, len(f.Payload), 4+size)
		}
		for j, b := range f.Payload[4:] {
			if b != byte(i+j/1000) {
				t.Fatalf("byte %d of frame %d is %d, want %d", j, i, b, byte(i+j/1000))
			}
		}
	}
	must(t, <-sent)
	must(t, near.Close())
	for i, l := range lenders {
		if n := l.n.Load(); n != 1 || len(l.kept) > 1 {
			t.Errorf("frame %d was released %d times, and %d parts of it were kept", i, n, len(l.kept))
		}
	}
}

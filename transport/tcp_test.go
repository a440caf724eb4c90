package transport

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/perdure/perdure/wire"
)

// rawPair returns a connection under test and the bare socket of its peer.
func rawPair(t testing.TB, tcp TCP) (Conn, net.Conn) {
	t.Helper()
	l, err := tcp.Listen("127.0.0.1:0")
	must(t, err)
	defer l.Close()
	raw, err := net.Dial("tcp", l.Addr())
	must(t, err)
	c, err := l.Accept()
	must(t, err)
	t.Cleanup(func() { raw.Close(); c.Close() })
	return c, raw
}

func TestTCPRefusesBadBytes(t *testing.T) {
	good := func() []byte {
		f := numbered(1, []byte("some payload"))
		return wire.Append(nil, &f)
	}
	flipped := func(bit int) []byte {
		b := good()
		b[bit/8] ^= 1 << (bit % 8)
		return b
	}
	oversize := good()
	binary.LittleEndian.PutUint32(oversize[8:], wire.MaxPayload+1)
	version := good()
	version[4]++
	cases := []struct {
		name  string
		bytes []byte
		want  error
	}{
		{"garbage", append([]byte("GET / HTTP/1.1\r\n"), make([]byte, 64)...), wire.ErrMagic},
		{"oversize", oversize, wire.ErrTooLarge},
		{"other version", version, wire.ErrVersion},
		{"bit flip in the header", flipped(20 * 8), wire.ErrChecksum},
		{"bit flip in the payload", flipped(len(good())*8 - 1), wire.ErrChecksum},
		{"cut short in the header", good()[:10], io.ErrUnexpectedEOF},
		{"cut short behind the header", good()[:wire.HeaderBytes], io.ErrUnexpectedEOF},
		{"cut short in the payload", good()[:70], io.ErrUnexpectedEOF},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			c, raw := rawPair(t, TCP{})
			_, err := raw.Write(append(good(), tc.bytes...))
			must(t, err)
			if tc.want == io.ErrUnexpectedEOF {
				must(t, raw.(*net.TCPConn).CloseWrite())
			}
			var f wire.Frame
			must(t, c.Recv(&f)) // the good one before
			err = c.Recv(&f)
			mustBe(t, err, ErrBroken)
			mustBe(t, err, tc.want)
			mustBe(t, c.Send(f), tc.want)
			must(t, raw.SetReadDeadline(time.Now().Add(10*time.Second)))
			if _, err := io.Copy(io.Discard, raw); os.IsTimeout(err) {
				t.Fatal("the connection was not closed")
			}
		})
	}
}

func TestTCPBytes(t *testing.T) {
	c, raw := rawPair(t, TCP{})
	var want []byte
	var frames []wire.Frame
	for i, size := range []int{0, 1, inlineBytes, inlineBytes + 1, 0, 0, 5000, chunkBytes, chunkBytes, 3} {
		f := numbered(i, make([]byte, size))
		for k := range f.Payload {
			f.Payload[k] = byte(k + i)
		}
		frames = append(frames, f)
		want = wire.Append(want, &f)
	}
	must(t, c.Send(frames...))
	got := make([]byte, len(want))
	_, err := io.ReadFull(raw, got)
	must(t, err)
	if string(got) != string(want) {
		t.Fatal("what is on the wire is not the frames' encoding")
	}
}

func TestTCPStalledPeerBreaksTheConnection(t *testing.T) {
	c, _ := rawPair(t, TCP{StallTimeout: 20 * time.Millisecond, MaxQueued: 1 << 20})
	payload := make([]byte, wire.MaxPayload)
	var err error
	for err == nil { // the kernel takes some, then the queue is full, then Send waits
		err = c.Send(numbered(0, payload))
	}
	mustBe(t, err, ErrBroken)
	mustBe(t, err, os.ErrDeadlineExceeded)
	var f wire.Frame
	mustBe(t, c.Recv(&f), os.ErrDeadlineExceeded)
}

func TestTCPSlowReaderIsNotStalled(t *testing.T) {
	const stall = 150 * time.Millisecond
	c, raw := rawPair(t, TCP{StallTimeout: stall})
	must(t, c.(*tcpConn).sock.SetWriteBuffer(64<<10)) // so that the kernel does not take it all at once
	must(t, raw.(*net.TCPConn).SetReadBuffer(64<<10))
	must(t, c.Send(numbered(0, make([]byte, wire.MaxPayload))))
	// 4 MiB at 10 MB/s are written in more than twice the time that is allowed
	// without progress, but there always is some.
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	part := make([]byte, 48<<10)
	for left := wire.HeaderBytes + wire.MaxPayload; left > 0; {
		<-pace.C
		n, err := io.ReadFull(raw, part[:min(left, len(part))])
		must(t, err)
		left -= n
	}
}

func TestTCPReadsLastWordsAfterAFailedWrite(t *testing.T) {
	c, raw := rawPair(t, TCP{})
	f := numbered(1, []byte("refused"))
	_, err := raw.Write(wire.Append(nil, &f))
	must(t, err)
	must(t, raw.Close())
	for c.Send(numbered(2, nil)) == nil { // until the peer's reset is noticed
	}
	must(t, c.Recv(&f))
	if string(f.Payload) != "refused" {
		t.Fatalf("got %q", f.Payload)
	}
	mustBe(t, c.Recv(&f), ErrBroken)
}

func TestTCPListenFile(t *testing.T) {
	parent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	f, err := parent.(*net.TCPListener).File()
	must(t, err)
	addr := parent.Addr().String()
	must(t, parent.Close()) // the socket lives on in f
	l, err := TCP{}.ListenFile(f)
	must(t, err)
	if l.Addr() != addr {
		t.Fatalf("listens on %s, want %s", l.Addr(), addr)
	}
	if f.Fd() != ^uintptr(0) {
		t.Fatal("the file was left open")
	}
	near, far := dialPair(t, TCP{}, l)
	must(t, near.Send(numbered(1, nil)))
	var got wire.Frame
	must(t, far.Recv(&got))
	must(t, l.Close())

	plain, err := os.CreateTemp(t.TempDir(), "")
	must(t, err)
	if _, err := (TCP{}).ListenFile(plain); err == nil {
		t.Fatal("a plain file was taken for a socket")
	}
}

// TestTCPAllocations shows that a round trip of 4 KiB allocates nothing once
// buffers have grown.
func TestTCPAllocations(t *testing.T) {
	near, far := connect(t, subject{make: func() (Network, Network, string, string) {
		return Faulty(TCP{}), TCP{}, "127.0.0.1:0", ""
	}})
	go echo(far)
	batch := []wire.Frame{numbered(1, make([]byte, 4096))}
	var f wire.Frame
	allocs := testing.AllocsPerRun(500, func() {
		if near.Send(batch...) != nil || near.Recv(&f) != nil {
			t.Fatal("broken")
		}
	})
	if allocs >= 1 {
		t.Fatalf("%v allocations in a round trip", allocs)
	}
}

// echo sends back what it receives until the connection ends.
func echo(c Conn) {
	batch := make([]wire.Frame, 1)
	for c.Recv(&batch[0]) == nil && c.Send(batch...) == nil {
	}
}

func BenchmarkRoundTrip4KiB(b *testing.B) {
	b.Run("frames", func(b *testing.B) { benchmarkRoundTrip(b, TCP{}) })
	b.Run("faulty", func(b *testing.B) { benchmarkRoundTrip(b, Faulty(TCP{})) })
	b.Run("raw", func(b *testing.B) {
		near, far := rawConns(b)
		go func() {
			buf := make([]byte, 4096)
			for {
				if _, err := io.ReadFull(far, buf); err != nil {
					return
				}
				if _, err := far.Write(buf); err != nil {
					return
				}
			}
		}()
		buf := make([]byte, 4096)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := near.Write(buf); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(near, buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func benchmarkRoundTrip(b *testing.B, network Network) {
	near, far := connect(b, subject{make: func() (Network, Network, string, string) {
		return network, network, "127.0.0.1:0", ""
	}})
	go echo(far)
	batch := []wire.Frame{numbered(1, make([]byte, 4096))}
	var f wire.Frame
	b.ReportAllocs()
	for b.Loop() {
		if near.Send(batch...) != nil || near.Recv(&f) != nil {
			b.Fatal("broken")
		}
	}
}

func BenchmarkOneWay(b *testing.B) {
	for _, size := range []struct {
		name  string
		bytes int
	}{{"64B", 64}, {"64KiB", 64 << 10}, {"1MiB", 1 << 20}} {
		b.Run(size.name+"/frames", func(b *testing.B) { benchmarkOneWay(b, size.bytes) })
		b.Run(size.name+"/raw", func(b *testing.B) { benchmarkRawOneWay(b, size.bytes) })
	}
}

func benchmarkOneWay(b *testing.B, size int) {
	near, far := connect(b, subject{make: func() (Network, Network, string, string) {
		return TCP{}, TCP{}, "127.0.0.1:0", ""
	}})
	batch := []wire.Frame{numbered(1, make([]byte, size))}
	done := make(chan error, 1)
	n := b.N
	go func() {
		var f wire.Frame
		var err error
		for i := 0; i < n && err == nil; i++ {
			err = far.Recv(&f)
		}
		done <- err
	}()
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	for range n {
		must(b, near.Send(batch...))
	}
	must(b, <-done)
}

func benchmarkRawOneWay(b *testing.B, size int) {
	near, far := rawConns(b)
	done := make(chan error, 1)
	n := b.N
	go func() {
		buf := make([]byte, size)
		var err error
		for i := 0; i < n && err == nil; i++ {
			_, err = io.ReadFull(far, buf)
		}
		done <- err
	}()
	buf := make([]byte, size)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	for range n {
		if _, err := near.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
	must(b, <-done)
}

func rawConns(b *testing.B) (near, far net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	defer l.Close()
	near, err = new(net.Dialer).DialContext(context.Background(), "tcp", l.Addr().String())
	must(b, err)
	far, err = l.Accept()
	must(b, err)
	b.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

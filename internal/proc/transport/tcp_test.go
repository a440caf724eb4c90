package transport

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

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
		{"cut short after the header", good()[:wire.HeaderBytes], io.ErrUnexpectedEOF},
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
			must(t, c.Recv(&f)) // the good frame before
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
		t.Fatal("the bytes on the wire are not the encoding of the frames")
	}
}

func TestTCPStalledPeerBreaksTheConnection(t *testing.T) {
	c, _ := rawPair(t, TCP{StallTimeout: 20 * time.Millisecond, MaxQueued: 1 << 20})
	payload := make([]byte, wire.MaxPayload)
	var err error
	for err == nil { // the kernel accepts some, then the queue is full, then Send blocks
		err = c.Send(numbered(0, payload))
	}
	mustBe(t, err, ErrBroken)
	mustBe(t, err, os.ErrDeadlineExceeded)
	var f wire.Frame
	mustBe(t, c.Recv(&f), os.ErrDeadlineExceeded)
}

func TestTCPSlowReaderIsNotStalled(t *testing.T) {
	const stall = 500 * time.Millisecond
	c, raw := rawPair(t, TCP{StallTimeout: stall})
	must(t, c.(*socketConn).sock.SetWriteBuffer(64<<10)) // so that the kernel does not accept all of it
	must(t, raw.(*net.TCPConn).SetReadBuffer(64<<10))
	must(t, c.Send(numbered(0, make([]byte, wire.MaxPayload))))
	// Writing 4 MiB at 3 MB/s takes more than twice the allowed time without progress, but there always is progress.
	pace := time.NewTicker(15 * time.Millisecond)
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
	must(t, parent.Close()) // f still refers to the socket
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

// TestAllocations checks that a round trip allocates nothing once buffers have grown, if the slice of frames is reused.
func TestAllocations(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector drops read buffers at random")
	}
	for _, s := range sockets {
		for _, size := range []int{100, 4096, 100 << 10, 2 << 20} {
			t.Run(fmt.Sprintf("%s/%d bytes", s.name, size), func(t *testing.T) {
				near, far := socketPair(t, NewFaultLayer(s.tcp), NewFaultLayer(s.tcp))
				go echo(far)
				f := numbered(1, make([]byte, 24))
				f.Body, f.Release = make([]byte, size), new(counter)
				batch := []wire.Frame{f}
				room := make([]byte, size)
				place := func(f *wire.Frame, n int) []byte { return room[:n-24] }
				var got wire.Frame
				for _, send := range []func(...wire.Frame) error{near.Send, near.TrySend} {
					allocs := testing.AllocsPerRun(100, func() {
						if send(batch...) != nil || near.RecvInto(&got, place) != nil || len(got.Body) != size {
							t.Fatal("broken")
						}
					})
					if allocs >= 1 {
						t.Errorf("%v allocations in a round trip", allocs)
					}
				}
			})
		}
	}
}

// TestIdleMemory checks that an idle connection that has received data holds neither a buffer nor a goroutine.
func TestIdleMemory(t *testing.T) {
	for _, s := range sockets {
		t.Run(s.name, func(t *testing.T) {
			l, err := s.tcp.Listen("127.0.0.1:0")
			must(t, err)
			defer l.Close()
			const n = 500
			used := func() uint64 {
				var m runtime.MemStats
				runtime.GC()
				runtime.GC() // a pool's items survive one collection
				runtime.ReadMemStats(&m)
				return m.HeapInuse + m.StackInuse
			}
			var near, far [n]Conn
			got := make(chan error, n)
			before, goroutines := used(), runtime.NumGoroutine()
			for i := range n {
				near[i], far[i] = dialPair(t, s.tcp, l)
				must(t, near[i].Send(numbered(i, make([]byte, 1000))))
				go func() {
					var f wire.Frame
					got <- far[i].Recv(&f)
					got <- far[i].Recv(&f)
				}()
			}
			for range n {
				must(t, <-got)
			}
			each := (used() - before) / n
			if most := uint64(readBuffer / 4); each > most {
				t.Errorf("each idle connection uses %d bytes for both ends, want at most %d", each, most)
			}
			if more := runtime.NumGoroutine() - goroutines; more > n+n/10 {
				t.Errorf("%d more goroutines for %d receivers", more, n)
			}
			for i := range n {
				must(t, near[i].Close())
				<-got
			}
		})
	}
}

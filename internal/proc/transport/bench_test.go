package transport

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/keys"
)

// sockets are the kinds of sockets that the benchmarks use.
var sockets = []struct {
	name string
	tcp  TCP
}{{"tcp", TCP{Socket: SocketTCP}}, {"unix", TCP{Socket: SocketUnix}}}

// measured is a kind of socket, possibly with TLS: its name, the dialling network and the listening one.
type measured struct {
	name      string
	near, far TCP
}

func measuredSockets(b *testing.B) (all []measured) {
	for _, s := range sockets {
		all = append(all, measured{s.name, s.tcp, s.tcp})
	}
	dir := jobKeys(b, "job")
	return append(all, measured{"tls", as(b, dir, keys.Worker), as(b, dir, keys.Server)})
}

// echo sends back all received frames until the connection ends.
func echo(c Conn) {
	batch := make([]wire.Frame, 1)
	for c.Recv(&batch[0]) == nil && c.Send(batch...) == nil {
	}
}

// BenchmarkRoundTrip sends 4 KiB in both directions. x-raw is the time relative to a round trip without frames on the
// same kind of socket, measured in turns.
func BenchmarkRoundTrip(b *testing.B) {
	for _, s := range measuredSockets(b) {
		for _, faulty := range []bool{false, true} {
			var from, to Network = s.near, s.far
			name := s.name
			if faulty {
				from, to, name = NewFaultLayer(from), NewFaultLayer(to), name+"/through the fault layer"
			}
			b.Run(name, func(b *testing.B) {
				near, far := socketPair(b, from, to)
				go echo(far)
				batch := []wire.Frame{numbered(1, make([]byte, 4096))}
				var f wire.Frame
				frames := func() {
					if near.Send(batch...) != nil || near.Recv(&f) != nil {
						b.Fatal("broken")
					}
				}
				rawNear, rawFar := rawConns(b, s)
				go func() {
					_, _ = io.CopyBuffer(struct{ io.Writer }{rawFar}, struct{ io.Reader }{rawFar}, make([]byte, 4096))
				}()
				buf := make([]byte, 4096)
				raw := func() {
					if _, err := rawNear.Write(buf); err != nil {
						b.Fatal(err)
					}
					if _, err := io.ReadFull(rawNear, buf); err != nil {
						b.Fatal(err)
					}
				}
				compare(b, 200, frames, raw, func(frames, raw time.Duration) {
					b.ReportMetric(float64(frames)/float64(raw), "x-raw")
				})
			})
		}
	}
}

// BenchmarkOneWay sends data as frames of a given size, each received into its place in a large array, and waits for an
// empty answer. of-raw is the throughput relative to one without frames on the same kind of socket, measured in turns.
func BenchmarkOneWay(b *testing.B) {
	const kib, mib = 1 << 10, 1 << 20
	for _, s := range measuredSockets(b) {
		for _, size := range []struct{ bytes, frame int }{
			{64 * kib, 64 * kib},
			{mib, 256 * kib},
			{mib, mib},
			{4 * mib, 256 * kib},
			{4 * mib, mib},
			{40 * mib, 64 * kib},
			{40 * mib, 128 * kib},
			{40 * mib, 256 * kib},
			{40 * mib, 512 * kib},
			{40 * mib, mib},
		} {
			b.Run(fmt.Sprintf("%s/%dKiB/as %dKiB", s.name, size.bytes/kib, size.frame/kib), func(b *testing.B) {
				oneWay(b, s, size.bytes, size.frame)
			})
		}
	}
}

func oneWay(b *testing.B, s measured, bytes, frame int) {
	// The data comes from another location each time, as in a large model.
	const array = 40 << 20
	src, dst := make([]byte, array), make([]byte, array)
	for i := range src {
		src[i], dst[i] = byte(i), 1
	}
	at := 0
	next := func() int {
		if at += bytes; at+bytes > array {
			at = 0
		}
		return at
	}

	near, far := socketPair(b, s.near, s.far)
	go func() {
		place := func(f *wire.Frame, n int) []byte { return dst[f.Request:][:n] }
		var f wire.Frame
		answer := make([]wire.Frame, 1)
		for got := 0; far.RecvInto(&f, place) == nil; {
			if got += f.PayloadBytes(); got == bytes {
				got = 0
				if far.Send(answer...) != nil {
					return
				}
			}
		}
	}()
	batch := make([]wire.Frame, 0, bytes/frame)
	var f wire.Frame
	frames := func() {
		batch = batch[:0]
		start := next()
		for i := start; i < start+bytes; i += frame {
			batch = append(batch, wire.Frame{
				Header: wire.Header{Kind: wire.KindRows, Request: uint64(i)},
				Body:   src[i:][:frame],
			})
		}
		if near.Send(batch...) != nil || near.Recv(&f) != nil {
			b.Fatal("broken")
		}
	}

	rawNear, rawFar := rawConns(b, s)
	go func() {
		for start := 0; ; start = (start + bytes) % (array - bytes + 1) {
			if _, err := io.ReadFull(rawFar, dst[start:][:bytes]); err != nil {
				return
			}
			if _, err := rawFar.Write(dst[:1]); err != nil {
				return
			}
		}
	}()
	one := make([]byte, 1)
	raw := func() {
		if _, err := rawNear.Write(src[next():][:bytes]); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(rawNear, one); err != nil {
			b.Fatal(err)
		}
	}
	compare(b, max(1, (8<<20)/bytes), frames, raw, func(frames, raw time.Duration) {
		b.ReportMetric(float64(raw)/float64(frames), "of-raw")
		b.ReportMetric(float64(bytes)/1e6/frames.Seconds(), "MB/s")
	})
}

// compare runs both variants in turns, count times each, and passes the medians to report.
func compare(b *testing.B, count int, frames, raw func(), report func(frames, raw time.Duration)) {
	var times [2][]time.Duration
	b.ReportAllocs()
	for b.Loop() {
		for i, run := range []func(){frames, raw} {
			start := time.Now()
			for range count {
				run()
			}
			times[i] = append(times[i], time.Since(start)/time.Duration(count))
		}
	}
	for i := range times {
		slices.Sort(times[i])
	}
	half := len(times[0]) / 2
	report(times[0][half], times[1][half])
	b.ReportMetric(0, "ns/op") // the time of both variants together is meaningless
	b.ReportMetric(float64(times[0][half].Nanoseconds()), "ns/exchange")
}

// socketPair is like connect, without the conformance suite's limit and with a large budget.
func socketPair(tb testing.TB, from, to Network) (near, far Conn) {
	tb.Helper()
	l, err := to.Listen("127.0.0.1:0")
	must(tb, err)
	defer l.Close()
	near, far = dialPair(tb, from, l)
	room := NewBudget(func() int64 { return 1 << 40 })
	near.Charge(room)
	far.Charge(room)
	return near, far
}

// rawConns returns a bare socket pair of a kind. For TLS it uses the same certificates and settings.
func rawConns(tb testing.TB, s measured) (near, far net.Conn) {
	tb.Helper()
	addr, kind := "127.0.0.1:0", s.name
	switch kind {
	case "unix":
		addr = fmt.Sprintf("%s/%d", tb.TempDir(), os.Getpid())
	case "tls":
		kind = "tcp"
	}
	l, err := net.Listen(kind, addr)
	must(tb, err)
	defer l.Close()
	near, err = net.Dial(kind, l.Addr().String())
	must(tb, err)
	far, err = l.Accept()
	must(tb, err)
	if s.near.Keys != nil {
		near, far = tls.Client(near, s.near.Keys.Client(keys.Server)), tls.Server(far, s.far.Keys.Server())
	}
	tb.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

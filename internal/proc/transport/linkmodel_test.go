package transport

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// sized returns a frame of n bytes on the wire.
func sized(i, n int) wire.Frame { return numbered(i, make([]byte, n-wire.HeaderBytes)) }

// arriveAt receives frames 0, 1, … and fails unless each arrives at its time after start.
func arriveAt(t *testing.T, far Conn, start time.Time, want ...time.Duration) {
	t.Helper()
	var f wire.Frame
	for i, w := range want {
		must(t, far.Recv(&f))
		if f.Request != uint64(i) {
			t.Fatalf("got frame %d, want %d", f.Request, i)
		}
		within(t, "a frame", time.Since(start), w)
	}
}

func TestLinkDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, near, far := faultPair(t)
		l.SetLink(LinkModel{Delay: 5 * time.Millisecond})
		start := time.Now()
		go func() { // later messages do not wait for earlier ones
			_ = near.Send(sized(0, 100)) // an unsent frame does not arrive
			<-time.After(time.Millisecond)
			_ = near.TrySend(sized(1, 1<<20), sized(2, 100))
		}()
		arriveAt(t, far, start, 5*time.Millisecond, 6*time.Millisecond, 6*time.Millisecond)
		start = time.Now()
		must(t, far.Send(sized(0, 100))) // the other direction belongs to the other side
		arriveAt(t, near, start, 0)
	})
}

func TestLinkBandwidth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, near, far := faultPair(t)
		l.SetLink(LinkModel{BytesPerSecond: 1e6})
		<-time.After(time.Hour) // an idle connection does not accumulate capacity
		start := time.Now()
		must(t, near.Send(sized(0, 1000), sized(1, 2000)))
		must(t, near.Send(sized(2, 64)))
		arriveAt(t, far, start, time.Millisecond, 3*time.Millisecond, 3064*time.Microsecond)

		l.SetLink(LinkModel{BytesPerSecond: 1e6, Delay: time.Second})
		start = time.Now()
		must(t, near.Send(sized(0, 1000), sized(1, 2000)))
		arriveAt(t, far, start, 1001*time.Millisecond, 1003*time.Millisecond)
	})
}

// TestLinkSpread checks that the delays depend only on the seed, the connection's number and the message's number, by
// recomputing them.
func TestLinkSpread(t *testing.T) {
	const seed, n = 9, 100
	const delay, spread, gap = 5 * time.Millisecond, 2 * time.Millisecond, 500 * time.Microsecond
	synctest.Test(t, func(t *testing.T) {
		l, near, far := faultPair(t)
		l.SetLink(LinkModel{Delay: delay, Spread: spread, Seed: seed})
		rng := rand.New(rand.NewPCG(seed, 1))
		var want, delays []time.Duration
		for i := range n {
			d := delay - spread + time.Duration(rng.Int64N(int64(2*spread)+1))
			delays = append(delays, d)
			at := time.Duration(i)*gap + d
			if i > 0 {
				at = max(at, want[i-1])
			}
			want = append(want, at)
		}
		if slices.Max(delays) < delay+spread/2 || slices.Min(delays) > delay-spread/2 {
			t.Fatalf("no spread: %v", delays)
		}
		start := time.Now()
		go func() {
			for i := range n {
				_ = near.Send(sized(i, 64)) // an unsent frame does not arrive
				<-time.After(gap)
			}
		}()
		var f wire.Frame
		for i, w := range want {
			must(t, far.Recv(&f))
			// The network below adds up to one tick for each frame that departs at the same time.
			if d := time.Since(start); f.Request != uint64(i) || d < w || d > w+10*tick {
				t.Fatalf("message %d came after %v as %d, want %v", i, d, f.Request, w)
			}
		}
	})
}

func TestLinkBesideSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, near, far := faultPair(t)
		l.SetLink(LinkModel{Delay: 5 * time.Millisecond})
		l.Slow(3, 0)
		start := time.Now()
		must(t, near.Send(sized(0, 64)))
		arriveAt(t, far, start, 5*time.Millisecond+2*minWork)
	})
}

// TestLinkHeartbeats checks that a delay shifts heartbeats but never lets them accumulate.
func TestLinkHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, near, far := faultPair(t)
		l.SetLink(LinkModel{Delay: 300 * time.Millisecond, Spread: 200 * time.Millisecond, BytesPerSecond: 1e5})
		const beat = 100 * time.Millisecond
		go func() {
			for i := range 100 {
				_ = near.Send(sized(i, 1000)) // an unsent frame does not arrive
				<-time.After(beat)
			}
		}()
		var f wire.Frame
		last := time.Now()
		for range 100 {
			must(t, far.Recv(&f))
			if silent := time.Since(last); silent > 500*time.Millisecond+beat {
				t.Fatalf("silence of %v before heartbeat %d", f.Request, silent)
			}
			last = time.Now()
		}
	})
}

func TestLinkBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, near, far := faultPair(t)
		l.SetLink(LinkModel{BytesPerSecond: 1 << 20})
		for range DefaultMaxQueued >> 20 {
			must(t, near.TrySend(sized(0, 1<<20)))
		}
		mustBe(t, near.TrySend(sized(0, 1<<20)), ErrFull)
		start := time.Now()
		go func() {
			var f wire.Frame
			for far.Recv(&f) == nil {
			}
		}()
		must(t, near.Send(sized(0, 1<<20))) // when the first has departed
		within(t, "a full connection", time.Since(start), time.Second)
		must(t, near.Close())
	})
}

// TestLinkClose checks that Close immediately sends frames delayed by a link model, in order, and that frames held by a
// cut are lost.
func TestLinkClose(t *testing.T) {
	for _, cut := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l, near, far := faultPair(t)
			l.SetLink(LinkModel{Delay: time.Second, BytesPerSecond: 1000})
			if cut {
				l.Cut(0)
			}
			frames, counters := counted(2, 100)
			must(t, near.Send(frames...))
			<-time.After(time.Millisecond)
			start := time.Now()
			must(t, near.Close())
			mustRelease(t, counters)
			if !cut {
				arriveAt(t, far, start, 0, 0)
			}
			var f wire.Frame
			mustBe(t, far.Recv(&f), ErrBroken)
		})
	}
}

package transport

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// tick is the maximum latency of the memory network in these tests.
const tick = 10 * time.Microsecond

// faultPair connects through a fault layer on the dialling side. The network below has almost no latency.
func faultPair(t *testing.T) (l *FaultLayer, near, far Conn) {
	t.Helper()
	mem := NewMemory(1, MemoryOptions{MinLatency: time.Microsecond})
	l = NewFaultLayer(mem.Host("a"))
	in, err := mem.Host("b").Listen("b/1")
	must(t, err)
	near, far = dialPair(t, l, in)
	return l, near, far
}

// within fails unless d is between want and want plus one tick.
func within(t *testing.T, what string, d, want time.Duration) {
	t.Helper()
	if d < want || d > want+tick {
		t.Fatalf("%s: took %v, want %v", what, d, want)
	}
}

// sendTimed sends a frame and returns the time until it arrives.
func sendTimed(t *testing.T, near, far Conn) time.Duration {
	t.Helper()
	start := time.Now()
	must(t, near.Send(numbered(0, nil)))
	var f wire.Frame
	must(t, far.Recv(&f))
	return time.Since(start)
}

func TestFaultyCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, near, far := faultPair(t)
		start := time.Now()
		l.Cut(time.Hour)
		l.Cut(time.Millisecond)
		l.Cut(time.Second) // replaces the earlier ends
		must(t, near.Send(numbered(1, nil)))
		must(t, near.Send(numbered(2, nil)))
		must(t, far.Send(numbered(3, nil)))
		var f wire.Frame
		must(t, near.Recv(&f))
		within(t, "incoming", time.Since(start), time.Second)
		for want := uint64(1); want <= 2; want++ {
			must(t, far.Recv(&f))
			within(t, "outgoing", time.Since(start), time.Second)
			if f.Request != want {
				t.Fatalf("got frame %d, want %d", f.Request, want)
			}
		}
		within(t, "after the cut", sendTimed(t, near, far), 0)
		<-time.After(2 * time.Hour) // the replaced end has no effect
		l.Cut(0)
		if _, _, late := recvWithin(near, 24*time.Hour); !late {
			t.Fatal("a cut without an end ended")
		}
		must(t, near.Close())
		synctest.Wait() // the receiver above has returned
	})
}

func TestFaultyCutHidesErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, near, far := faultPair(t)
		start := time.Now()
		l.Cut(time.Second)
		must(t, far.Close())
		must(t, near.Send(numbered(1, nil)))
		var f wire.Frame
		mustBe(t, near.Recv(&f), ErrBroken)
		within(t, "the peer's close", time.Since(start), time.Second)
		synctest.Wait()
		mustBe(t, near.Send(f), ErrBroken)
	})
}

func TestFaultyCutHangsDialAndAccept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMemory(1, MemoryOptions{MinLatency: time.Microsecond})
		l := NewFaultLayer(mem.Host("b"))
		in, err := l.Listen("b/1")
		must(t, err)
		out, err := mem.Host("a").Listen("a/1")
		must(t, err)

		start := time.Now()
		l.Cut(time.Second)
		dialPair(t, mem.Host("a"), in)
		within(t, "accept", time.Since(start), time.Second)

		start = time.Now()
		l.Cut(time.Second)
		dialPair(t, l, out)
		within(t, "dial", time.Since(start), time.Second)

		l.Cut(-1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = l.Dial(ctx, "a/1")
		mustBe(t, err, context.DeadlineExceeded)

		accepted := make(chan error, 1)
		go func() {
			_, err := in.Accept()
			accepted <- err
		}()
		c, err := mem.Host("a").Dial(t.Context(), "b/1")
		must(t, err)
		synctest.Wait()
		must(t, in.Close())
		mustBe(t, <-accepted, ErrClosed)
		must(t, c.Close())
	})
}

func TestFaultySlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, near, far := faultPair(t)
		within(t, "before", sendTimed(t, near, far), 0)
		<-time.After(time.Hour) // time before the fault is not slowed
		l.Slow(1.5, time.Second)
		l.Slow(3, time.Minute) // replaces the fault and its end
		within(t, "with no work", sendTimed(t, near, far), 2*minWork)

		var f wire.Frame
		must(t, far.Send(numbered(0, nil)))
		must(t, near.Recv(&f))
		<-time.After(10 * time.Millisecond) // work
		within(t, "after work", sendTimed(t, near, far), 20*time.Millisecond)

		start := time.Now()
		<-time.After(10 * time.Millisecond)
		must(t, near.Send(numbered(1, nil)))
		must(t, near.Send(numbered(2, nil)))
		for want := uint64(1); want <= 2; want++ { // in order, but not one delay after the other
			must(t, far.Recv(&f))
			if f.Request != want {
				t.Fatalf("got frame %d, want %d", f.Request, want)
			}
			if d := time.Since(start); d > 30*time.Millisecond+2*tick {
				t.Fatalf("frame %d took %v", want, d)
			}
		}
		for range 100 { // a heartbeat is delayed, but not more and more
			<-time.After(100 * time.Millisecond)
			d := sendTimed(t, near, far)
			if d < 200*time.Millisecond || d > 200*time.Millisecond+4*tick {
				t.Fatalf("a heartbeat took %v, want 200ms", d)
			}
		}
		<-time.After(time.Minute)
		within(t, "afterwards", sendTimed(t, near, far), 0)
		l.Slow(3, 0)
		<-time.After(time.Hour)
		if sendTimed(t, near, far) < minWork {
			t.Fatal("a fault without an end has ended")
		}
		l.Slow(1, 0)
		within(t, "switched off", sendTimed(t, near, far), 0)
	})
}

func TestFaultyStaysInOrderWhenAFaultEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, near, far := faultPair(t)
		l.Slow(11, time.Second)
		<-time.After(500 * time.Millisecond)
		must(t, near.Send(numbered(1, nil))) // leaves after 5 s
		<-time.After(time.Second)
		must(t, near.Send(numbered(2, nil))) // the fault is over
		var f wire.Frame
		for want := uint64(1); want <= 2; want++ {
			must(t, far.Recv(&f))
			if f.Request != want {
				t.Fatalf("got frame %d, want %d", f.Request, want)
			}
		}
		within(t, "afterwards", sendTimed(t, near, far), 0)
	})
}

// jitters returns the delays of several messages under jitter in a new network.
func jitters(t *testing.T, seed uint64) (delays []time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		l, near, far := faultPair(t)
		l.Jitter(3, 0, seed)
		for range 50 {
			<-time.After(time.Millisecond)
			d := sendTimed(t, near, far)
			if most := 2 * (time.Millisecond + tick); d > most {
				t.Errorf("seed %d: delay %v, want at most %v", seed, d, most)
			}
			delays = append(delays, d)
		}
	})
	return delays
}

func TestFaultyJitter(t *testing.T) {
	one := jitters(t, 1)
	if !slices.Equal(one, jitters(t, 1)) {
		t.Fatal("the same seed gave other delays")
	}
	if slices.Equal(one, jitters(t, 2)) {
		t.Fatal("another seed gave the same delays")
	}
	if slices.Max(one) < time.Millisecond || slices.Min(one) > slices.Max(one)/2 {
		t.Fatalf("no jitter: %v", one)
	}
}

func TestFaultyBoundWhileCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, near, far := faultPair(t)
		l.Cut(0)
		payload := make([]byte, 1<<20)
		sent := 0
		go func() {
			for near.Send(numbered(sent, payload)) == nil {
				sent++
			}
		}()
		synctest.Wait()
		if sent != DefaultMaxQueued>>20-1 { // headers take the space of the last one
			t.Fatalf("%d MiB queued in a cut", sent)
		}
		must(t, near.Close())
		must(t, far.Close())
	})
}

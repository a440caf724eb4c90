package transport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// memPair connects host a to host b at "b/1" and leaves the listener open.
func memPair(t *testing.T, mem *Memory) (near, far Conn) {
	t.Helper()
	l, err := mem.Host("b").Listen("b/1")
	must(t, err)
	return dialPair(t, mem.Host("a"), l)
}

func sendNumbered(t *testing.T, c Conn, n int) {
	t.Helper()
	for i := range n {
		must(t, c.Send(numbered(i, nil)))
	}
}

// drain receives numbered frames in order until an error, and returns that error.
func drain(t *testing.T, c Conn) (n int, err error) {
	t.Helper()
	var f wire.Frame
	for {
		if err := c.Recv(&f); err != nil {
			return n, err
		}
		if f.Request != uint64(n) {
			t.Fatalf("got frame %d, want %d", f.Request, n)
		}
		n++
	}
}

// overSeeds runs f for each of 40 seeds, each in its own bubble.
func overSeeds(t *testing.T, f func(t *testing.T, seed uint64)) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, seed) })
		})
	}
}

// arrivals returns the arrival times of frames of four connections in a new network.
func arrivals(t *testing.T, seed uint64) []string {
	var log []string
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		mem := NewMemory(seed, MemoryOptions{})
		l, err := mem.Host("b").Listen("b/1")
		must(t, err)
		var mu sync.Mutex // guards log and seen
		seen := map[time.Duration]bool{}
		var wg sync.WaitGroup
		for k := range 4 {
			near, far := dialPair(t, mem.Host(fmt.Sprintf("a:%d", k)), l)
			wg.Go(func() {
				for i := range 200 {
					if err := near.Send(numbered(i, nil)); err != nil {
						t.Error(err)
					}
				}
			})
			sent := time.Since(start)
			wg.Go(func() {
				var f wire.Frame
				for range 200 {
					if err := far.Recv(&f); err != nil {
						t.Error(err)
					}
					at := time.Since(start)
					mu.Lock()
					if seen[at] || at < sent+defaultMinLatency {
						t.Errorf("seed %d: a frame sent at %v arrived at %v", seed, sent, at)
					}
					seen[at] = true
					log = append(log, fmt.Sprint(far.Peer(), f.Request, at))
					mu.Unlock()
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if last := time.Since(start); last > 20*time.Millisecond {
			t.Errorf("seed %d: frames took until %v", seed, last)
		}
	})
	return log
}

func TestMemoryReplaysFromItsSeed(t *testing.T) {
	one := arrivals(t, 1)
	if !slices.Equal(one, arrivals(t, 1)) {
		t.Fatal("the same seed gave other arrivals")
	}
	if slices.Equal(one, arrivals(t, 2)) {
		t.Fatal("another seed gave the same arrivals")
	}
}

func TestMemoryKill(t *testing.T) {
	const frames = 10
	counts := map[int]bool{} // numbers of frames that arrived
	overSeeds(t, func(t *testing.T, seed uint64) {
		mem := NewMemory(seed, MemoryOptions{})
		old := mem.Host("a")
		own, err := old.Listen("a/1")
		must(t, err)
		near, far := memPair(t, mem)
		sendNumbered(t, near, frames)
		start := time.Now()
		mem.Kill("a")

		var f wire.Frame
		mustBe(t, near.Send(f), ErrBroken)
		mustBe(t, near.Recv(&f), ErrBroken)
		_, err = own.Accept()
		mustBe(t, err, ErrBroken)
		_, err = old.Listen("a/2")
		mustBe(t, err, errKilled)
		_, err = old.Dial(t.Context(), "b/1")
		mustBe(t, err, errKilled)
		if time.Since(start) > 2*defaultMaxLatency {
			t.Fatal("the killed host noticed late")
		}

		n, err := drain(t, far)
		mustBe(t, err, ErrBroken)
		counts[n] = true
		mustBe(t, far.Send(f), ErrBroken)
		_, err = mem.Host("b").Dial(t.Context(), "a/1")
		mustBe(t, err, syscall.ECONNREFUSED)

		l, err := mem.Host("a").Listen("a/1") // restarted
		must(t, err)
		near, far = dialPair(t, mem.Host("b"), l)
		sendNumbered(t, near, 1)
		must(t, far.Recv(&f))
	})
	if !counts[0] || !counts[frames] || len(counts) < 4 {
		t.Fatalf("frames that arrived after a kill: %v; want none, all and some between", counts)
	}
}

func TestMemoryKillWakesThePeersBlockedSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMemory(1, MemoryOptions{MaxQueued: 1000})
		near, _ := memPair(t, mem)
		ended := make(chan error, 1)
		go func() {
			for {
				if err := near.Send(numbered(0, make([]byte, 100))); err != nil {
					ended <- err
					return
				}
			}
		}()
		synctest.Wait()
		mem.Kill("b")
		mustBe(t, <-ended, ErrBroken)
	})
}

// recvWithin receives a frame, or gives up after d.
func recvWithin(c Conn, d time.Duration) (n uint64, err error, late bool) {
	type result struct {
		n   uint64
		err error
	}
	got := make(chan result, 1)
	go func() {
		var f wire.Frame
		err := c.Recv(&f)
		got <- result{f.Request, err}
	}()
	select {
	case r := <-got:
		return r.n, r.err, false
	case <-time.After(d):
		return 0, nil, true
	}
}

func TestMemoryCut(t *testing.T) {
	outcomes := map[string]int{}
	overSeeds(t, func(t *testing.T, seed uint64) {
		mem := NewMemory(seed, MemoryOptions{})
		near, far := memPair(t, mem)
		var f wire.Frame
		sendNumbered(t, near, 1)
		<-time.After(time.Second)
		must(t, near.Send(numbered(1, nil))) // in flight
		oneWay := seed%2 == 0
		mem.Cut("a", "b", oneWay)
		must(t, near.Send(numbered(2, nil)))
		must(t, far.Recv(&f)) // arrived before the cut
		must(t, far.Send(numbered(7, nil)))
		if _, _, late := recvWithin(near, time.Hour); late == oneWay {
			t.Fatalf("one way: %v, but the other way is cut: %v", oneWay, late)
		}
		result := make(chan error, 1)
		go func() {
			for i := range 2 {
				if err := far.Recv(&f); err != nil {
					result <- err
					return
				}
				if f.Request != uint64(i+1) {
					t.Errorf("got frame %d, want %d", f.Request, i+1)
				}
			}
			result <- nil
		}()
		select {
		case err := <-result:
			t.Fatalf("a frame passed the cut: %v", err)
		case <-time.After(time.Hour):
		}
		healed := time.Now()
		mem.Heal("b", "a")
		err := <-result
		if d := time.Since(healed); d < defaultMinLatency || d > 5*defaultMaxLatency {
			t.Fatalf("arrived %v after the heal", d)
		}
		if err == nil {
			err = near.Send(numbered(3, nil))
		}
		if err == nil {
			err = far.Recv(&f)
		}
		switch {
		case err == nil:
			outcomes["late"]++
		case errors.Is(err, ErrBroken):
			outcomes["broken"]++
			<-time.After(time.Second)
			mustBe(t, near.Send(f), ErrBroken)
		default:
			t.Fatal(err)
		}
	})
	if outcomes["late"] < 5 || outcomes["broken"] < 5 {
		t.Fatalf("outcomes of a healed cut: %v; want both", outcomes)
	}
}

func TestMemoryCutHidesAKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMemory(1, MemoryOptions{})
		near, _ := memPair(t, mem)
		mem.Cut("a", "b", false)
		mem.Kill("b")
		<-time.After(time.Hour)
		must(t, near.Send(numbered(0, nil))) // half open
		mem.Heal("a", "b")
		var f wire.Frame
		mustBe(t, near.Recv(&f), ErrBroken)
		mustBe(t, near.Send(f), ErrBroken)
	})
}

func TestMemoryDialThroughACut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMemory(1, MemoryOptions{})
		l, err := mem.Host("b").Listen("b/1")
		must(t, err)
		mem.Cut("b", "a", true) // the answer is blocked
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		_, err = mem.Host("a").Dial(ctx, "b/1")
		mustBe(t, err, context.DeadlineExceeded)
		if time.Since(start) != time.Minute {
			t.Fatalf("hung for %v, want the context's minute", time.Since(start))
		}
		time.AfterFunc(time.Hour, func() { mem.Heal("a", "b") })
		dialPair(t, mem.Host("a"), l)
		if time.Since(start) < time.Hour {
			t.Fatal("dialled through the cut")
		}
	})
}

func TestMemoryBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const seed, conns, frames = 5, 200, 20
		mem := NewMemory(seed, MemoryOptions{Breaks: 0.05})
		l, err := mem.Host("b").Listen("b/1")
		must(t, err)
		whole, torn := 0, 0
		for range conns {
			near, far := dialPair(t, mem.Host("a"), l)
			for i := range frames {
				if err := near.Send(numbered(i, nil)); err != nil {
					mustBe(t, err, ErrBroken)
				}
			}
			<-time.After(time.Second)
			must(t, near.Close())
			n, err := drain(t, far)
			mustBe(t, err, ErrBroken)
			if n == frames {
				whole++
			} else {
				torn++
			}
		}
		// 0.95^20 = 36 % of 200 connections should live: 72, deviation 7.
		if whole < 44 || whole > 100 {
			t.Fatalf("seed %d: %d of %d connections lived, want about 72", seed, whole, conns)
		}
	})
}

func TestMemoryArrivalsNeverTie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMemory(1, MemoryOptions{MinLatency: time.Microsecond})
		l, err := mem.Host("b").Listen("b/1")
		must(t, err)
		const conns = 50
		var near, far [conns]Conn
		for i := range conns {
			near[i], far[i] = dialPair(t, mem.Host("a"), l)
		}
		seen := make(chan time.Time, conns)
		for i := range conns { // all at the same instant
			must(t, near[i].Send(numbered(0, nil)))
		}
		for i := range conns {
			go func() {
				var f wire.Frame
				if err := far[i].Recv(&f); err != nil {
					t.Error(err)
				}
				seen <- time.Now()
			}()
		}
		at := map[time.Time]bool{}
		for range conns {
			at[<-seen] = true
		}
		if len(at) != conns {
			t.Fatalf("%d frames arrived at %d instants", conns, len(at))
		}
	})
}

func TestMemoryCopiesPayloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := memPair(t, NewMemory(1, MemoryOptions{}))
		payload := []byte("before")
		must(t, near.Send(numbered(0, payload)))
		copy(payload, "after!")
		var f wire.Frame
		must(t, far.Recv(&f))
		if string(f.Payload) != "before" {
			t.Fatalf("got %q", f.Payload)
		}
	})
}

func TestMemoryForgetsClosedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMemory(1, MemoryOptions{})
		near, far := memPair(t, mem)
		must(t, near.Close())
		must(t, far.Close())
		if len(mem.links) != 0 {
			t.Fatalf("%d links kept", len(mem.links))
		}
	})
}

func TestMemoryListenElsewhere(t *testing.T) {
	if _, err := NewMemory(1, MemoryOptions{}).Host("a").Listen("b/1"); err == nil {
		t.Fatal("a host listens on another's address")
	}
}

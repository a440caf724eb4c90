package transport

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// partedNetwork is a network in which some addresses cannot be dialled.
type partedNetwork struct {
	mu    sync.Mutex
	cut   map[string]bool
	calls map[string]int
}

func (n *partedNetwork) call(ctx context.Context, addr string) error {
	n.mu.Lock()
	n.calls[addr]++
	cut := n.cut[addr]
	n.mu.Unlock()
	if !cut {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (n *partedNetwork) set(addr string, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[addr] = cut
}

// watched runs a Reachability in virtual time.
func watched(t *testing.T, test func(w *Reachability, n *partedNetwork, after func(time.Duration, ...string))) {
	synctest.Test(t, func(t *testing.T) {
		n := &partedNetwork{cut: map[string]bool{}, calls: map[string]int{}}
		w := &Reachability{dial: n.call}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { w.Run(ctx) })
		test(w, n, func(d time.Duration, want ...string) {
			t.Helper()
			<-time.After(d)
			synctest.Wait()
			if got := w.Unreachable(); !slices.Equal(got, want) {
				t.Fatalf("unreachable are %v, want %v", got, want)
			}
		})
		cancel()
		wg.Wait()
	})
}

// TestOutOfReach checks that a silent server is dialled, and that it is unreachable from a failed dial until it sends a
// frame or a dial succeeds.
func TestOutOfReach(t *testing.T) {
	watched(t, func(w *Reachability, n *partedNetwork, after func(time.Duration, ...string)) {
		a, b := w.Watch("a"), w.Watch("b")
		n.set("a", true)
		after(3500 * time.Millisecond)
		after(time.Second, "a") // two checks and a dial of two seconds
		if n.calls["b"] != 2 {  // a reachable server is dialled again after two checks
			t.Errorf("b was called %d times", n.calls["b"])
		}
		a.Received()
		after(1100 * time.Millisecond)
		after(4*time.Second, "a")
		n.set("a", false)
		after(3 * time.Second)
		calls := n.calls["b"]
		for range 20 {
			a.Received()
			b.Received()
			after(500 * time.Millisecond)
		}
		if n.calls["b"] != calls {
			t.Error("a server that sends frames was dialled")
		}
	})
}

// TestLeave checks that a server without users is forgotten, except that an unreachable one is monitored until it is
// reachable again or ten minutes have passed.
func TestLeave(t *testing.T) {
	watched(t, func(w *Reachability, n *partedNetwork, after func(time.Duration, ...string)) {
		for _, addr := range []string{"a", "b", "c"} {
			n.set(addr, addr != "b")
			defer w.Unwatch(w.Watch(addr)) // a second user
			w.Unwatch(w.Watch(addr))
		}
		after(5*time.Second, "a", "c")
	})
	watched(t, func(w *Reachability, n *partedNetwork, after func(time.Duration, ...string)) {
		ears := map[string]*PeerMonitor{}
		for _, addr := range []string{"a", "b", "c"} {
			n.set(addr, addr != "b")
			ears[addr] = w.Watch(addr)
		}
		after(5*time.Second, "a", "c")
		for _, e := range ears {
			w.Unwatch(e)
		}
		after(time.Minute, "a", "c")
		n.set("c", false)
		after(4*time.Second, "a")
		if len(w.peers) != 1 {
			t.Errorf("%d servers are monitored", len(w.peers))
		}
		after(9 * time.Minute)
		if len(w.peers) != 0 {
			t.Errorf("%d servers are monitored forever", len(w.peers))
		}
	})
}

// TestFewCalls checks that only a few servers are dialled at the same time, however many are silent.
func TestFewCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now, most := 0, 0
		w := &Reachability{dial: func(ctx context.Context, _ string) error {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			<-ctx.Done()
			mu.Lock()
			now--
			mu.Unlock()
			return errors.New("no listener")
		}}
		for _, c := range "abcdefghij" {
			w.Watch(string(c))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		w.Run(ctx)
		if most != maxReachabilityDials || len(w.Unreachable()) != 10 {
			t.Errorf("%d concurrent dials, unreachable are %v", most, w.Unreachable())
		}
	})
}

// TestLateLook checks that a late check does not count silence, since this process was not running.
func TestLateLook(t *testing.T) {
	w := &Reachability{dial: func(context.Context, string) error { return errors.New("no listener") }}
	e := w.Watch("a")
	now := time.Unix(0, 0)
	for range 5 {
		w.check(t.Context(), now)
		now = now.Add(time.Minute)
	}
	w.under.Wait()
	if e.silent > 1 || e.unreachable {
		t.Errorf("silent for %d checks, unreachable: %v", e.silent, e.unreachable)
	}
}

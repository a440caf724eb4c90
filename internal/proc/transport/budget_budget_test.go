package transport_test

import (
	"sync"
	"testing"

	"github.com/perdure/perdure/internal/proc/transport"
)

// TestBound checks that Take respects the limit, that Add may exceed it and then blocks others, and that the limit may
// change.
func TestBound(t *testing.T) {
	most := int64(10)
	b := transport.NewBudget(func() int64 { return most })
	if !b.TryAdd(10) || b.TryAdd(1) || b.Held() != 10 {
		t.Fatalf("held %d of 10", b.Held())
	}
	b.Add(5)
	if b.Remove(5); b.TryAdd(1) || b.Held() != 10 {
		t.Fatalf("held %d after 5 were added and removed", b.Held())
	}
	most = 12
	if !b.TryAdd(2) || b.TryAdd(1) {
		t.Fatalf("held %d of 12", b.Held())
	}
	b.Remove(12)
	if b.Held() != 0 {
		t.Errorf("%d are still held", b.Held())
	}
	var none *transport.Budget
	if none.Add(1); !none.TryAdd(1<<60) || none.Held() != 0 {
		t.Error("a nil budget has a limit")
	}
}

// TestAtOnce checks that concurrent holders never exceed the limit, and that nothing is held when all have returned
// their bytes.
func TestAtOnce(t *testing.T) {
	const most = 100
	b := transport.NewBudget(func() int64 { return most })
	var all sync.WaitGroup
	var mu sync.Mutex
	have := int64(0)
	for i := range 8 {
		all.Go(func() {
			for n := range int64(1000) {
				n = n%7 + int64(i)
				if !b.TryAdd(n) {
					continue
				}
				mu.Lock()
				if have += n; have > most {
					t.Errorf("%d are held; the limit is %d", have, most)
				}
				mu.Unlock()
				mu.Lock()
				have -= n
				mu.Unlock()
				b.Remove(n)
			}
		})
	}
	all.Wait()
	if b.Held() != 0 {
		t.Errorf("%d are still held", b.Held())
	}
}

package transport_test

import (
	"sync"
	"testing"

	"github.com/perdure/perdure/internal/proc/transport"
)

// TestBound: as much is taken as there may be, what is added beyond that keeps others out, and what may be held can
// change.
func TestBound(t *testing.T) {
	most := int64(10)
	b := transport.NewBudget(func() int64 { return most })
	if !b.Take(10) || b.Take(1) || b.Held() != 10 {
		t.Fatalf("of 10 there are %d", b.Held())
	}
	b.Add(5)
	if b.Give(5); b.Take(1) || b.Held() != 10 {
		t.Fatalf("after 5 came and went there are %d", b.Held())
	}
	most = 12
	if !b.Take(2) || b.Take(1) {
		t.Fatalf("of 12 there are %d", b.Held())
	}
	b.Give(12)
	if b.Held() != 0 {
		t.Errorf("%d are left", b.Held())
	}
	var none *transport.Budget
	if none.Add(1); !none.Take(1<<60) || none.Held() != 0 {
		t.Error("without a budget there is a bound")
	}
}

// TestAtOnce: many who take at once have no more than there may be, and nothing is left when all have given back.
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
				if !b.Take(n) {
					continue
				}
				mu.Lock()
				if have += n; have > most {
					t.Errorf("%d are taken; at most %d may be", have, most)
				}
				mu.Unlock()
				mu.Lock()
				have -= n
				mu.Unlock()
				b.Give(n)
			}
		})
	}
	all.Wait()
	if b.Held() != 0 {
		t.Errorf("%d are left", b.Held())
	}
}

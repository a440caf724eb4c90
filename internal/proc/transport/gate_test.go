package transport

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
)

// TestGateIsFair shows that small batches do not overtake a large one that
// waits, however long they would keep the gate half full.
func TestGateIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var g gate
		g.init(&mu, 10)
		var order []int
		enter := func(n int) {
			go func() {
				mu.Lock()
				defer mu.Unlock()
				if err := g.enter(n, true); err == nil {
					order = append(order, n)
				}
			}()
			synctest.Wait()
		}
		leave := func(n int) {
			mu.Lock()
			g.leave(n)
			mu.Unlock()
			synctest.Wait()
		}
		enter(8)
		enter(12) // larger than the gate: when it is empty
		enter(1)
		if len(order) != 1 {
			t.Fatalf("let in: %v, want the first only", order)
		}
		leave(8)
		if len(order) != 2 || order[1] != 12 {
			t.Fatalf("let in: %v, want 8 then 12", order)
		}
		leave(12)
		if len(order) != 3 || g.inside != 1 {
			t.Fatalf("let in: %v with %d inside, want 8, 12 and 1", order, g.inside)
		}
		enter(10)
		mu.Lock()
		g.fail(errors.New("over"))
		g.fail(ErrClosed)
		mu.Unlock()
		synctest.Wait()
		if len(order) != 3 || g.enter(1, true).Error() != "over" {
			t.Fatalf("let in: %v after it failed", order)
		}
	})
}

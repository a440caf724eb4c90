package server

import (
	"testing"

	"golang.org/x/sync/semaphore"
)

// TestRoom checks that small copies run concurrently, that a large one runs alone, and that none overtakes another.
func TestRoom(t *testing.T) {
	copying := semaphore.NewWeighted(copyCapacity)
	for n := range copyCapacity / minCopyShare {
		if !copying.TryAcquire(copyShareOf(1)) {
			t.Fatalf("capacity for only %d small copies", n)
		}
	}
	large, late := make(chan struct{}), make(chan struct{})
	go func() {
		_ = copying.Acquire(t.Context(), copyShareOf(copyCapacity<<10)) // the context ends after the test
		close(large)
		_ = copying.Acquire(t.Context(), copyShareOf(1))
		close(late)
	}()
	if copying.TryAcquire(copyShareOf(1)) {
		t.Error("capacity for one small copy too many")
	}
	for range copyCapacity / minCopyShare {
		select {
		case <-large:
			t.Fatal("the large copy runs concurrently with small ones")
		default:
		}
		copying.Release(copyShareOf(1))
	}
	<-large
	select {
	case <-late:
		t.Fatal("a small copy runs concurrently with the large one")
	default:
	}
	copying.Release(copyShareOf(copyCapacity << 10))
	<-late
}

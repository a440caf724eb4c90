package server

import (
	"testing"

	"golang.org/x/sync/semaphore"
)

// TestCopyRoom: small copies go side by side, a large one alone, and nobody overtakes.
func TestCopyRoom(t *testing.T) {
	copying := semaphore.NewWeighted(copyRoom)
	for n := range copyRoom / leastCopy {
		if !copying.TryAcquire(roomOf(1)) {
			t.Fatalf("there is room for %d small ones only", n)
		}
	}
	large, late := make(chan struct{}), make(chan struct{})
	go func() {
		_ = copying.Acquire(t.Context(), roomOf(copyRoom<<10)) // the context ends after the test
		close(large)
		_ = copying.Acquire(t.Context(), roomOf(1))
		close(late)
	}()
	if copying.TryAcquire(roomOf(1)) {
		t.Error("there is room for one more small one")
	}
	for range copyRoom / leastCopy {
		select {
		case <-large:
			t.Fatal("the large one goes beside small ones")
		default:
		}
		copying.Release(roomOf(1))
	}
	<-large
	select {
	case <-late:
		t.Fatal("a small one goes beside the large one")
	default:
	}
	copying.Release(roomOf(copyRoom << 10))
	<-late
}

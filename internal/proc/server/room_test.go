package server

import (
	"testing"

	"golang.org/x/sync/semaphore"
)

// TestRoom: small copies go side by side, a large one alone, and nobody overtakes.
func TestRoom(t *testing.T) {
	copying := semaphore.NewWeighted(copyRoom)
	for n := range copyRoom / leastRoom {
		if !copying.TryAcquire(copyRoomOf(1)) {
			t.Fatalf("there is room for %d small ones only", n)
		}
	}
	large, late := make(chan struct{}), make(chan struct{})
	go func() {
		_ = copying.Acquire(t.Context(), copyRoomOf(copyRoom<<10)) // the context ends after the test
		close(large)
		_ = copying.Acquire(t.Context(), copyRoomOf(1))
		close(late)
	}()
	if copying.TryAcquire(copyRoomOf(1)) {
		t.Error("there is room for one more small one")
	}
	for range copyRoom / leastRoom {
		select {
		case <-large:
			t.Fatal("the large one goes beside small ones")
		default:
		}
		copying.Release(copyRoomOf(1))
	}
	<-large
	select {
	case <-late:
		t.Fatal("a small one goes beside the large one")
	default:
	}
	copying.Release(copyRoomOf(copyRoom << 10))
	<-late
}

package copies

import (
	"testing"

	"golang.org/x/sync/semaphore"
)

// TestRoom: small copies go side by side, a large one alone, and nobody overtakes.
func TestRoom(t *testing.T) {
	copying := semaphore.NewWeighted(Room)
	for n := range Room / leastRoom {
		if !copying.TryAcquire(RoomOf(1)) {
			t.Fatalf("there is room for %d small ones only", n)
		}
	}
	large, late := make(chan struct{}), make(chan struct{})
	go func() {
		_ = copying.Acquire(t.Context(), RoomOf(Room<<10)) // the context ends after the test
		close(large)
		_ = copying.Acquire(t.Context(), RoomOf(1))
		close(late)
	}()
	if copying.TryAcquire(RoomOf(1)) {
		t.Error("there is room for one more small one")
	}
	for range Room / leastRoom {
		select {
		case <-large:
			t.Fatal("the large one goes beside small ones")
		default:
		}
		copying.Release(RoomOf(1))
	}
	<-large
	select {
	case <-late:
		t.Fatal("a small one goes beside the large one")
	default:
	}
	copying.Release(RoomOf(Room << 10))
	<-late
}

package coordinator

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/checkpoint"
)

// TestPruner checks that only the newest published checkpoint waits while the store is busy with another one, and that
// there is only one goroutine.
func TestPruner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wg sync.WaitGroup
		var done []perdure.Clock
		goes, started := make(chan struct{}), 0
		p := &pruner{prune: func(m checkpoint.Manifest) {
			<-goes
			done = append(done, m.Cut)
		}}
		publish := func(cuts ...perdure.Clock) {
			for _, cut := range cuts {
				p.schedule(checkpoint.Manifest{Cut: cut}, func(work func()) {
					started++
					wg.Go(work)
				})
				synctest.Wait()
			}
		}
		publish(1, 2, 3, 4)
		if started != 1 {
			t.Errorf("%d goroutines", started)
		}
		close(goes)
		wg.Wait()
		publish(5)
		if wg.Wait(); !slices.Equal(done, []perdure.Clock{1, 4, 5}) || started != 2 {
			t.Errorf("pruned %v with %d goroutines", done, started)
		}
	})
}

package transport

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/perdure/perdure/internal/data/wire"
)

// testBudget checks that a budget shared by several connections holds nothing once all are closed, whatever was sent
// and however they ended.
func testBudget(t *testing.T, s subject) {
	queued := int64(0)
	for seed := range uint64(3) {
		rng := rand.New(rand.NewPCG(seed, 2))
		b := NewBudget(func() int64 { return maxQueued })
		var near, far [3]Conn
		var all sync.WaitGroup
		for i := range near {
			near[i], far[i] = connect(t, s)
			near[i].Charge(b)
			takes, closes := rng.IntN(60), rng.IntN(2) == 0
			all.Go(func() {
				var f wire.Frame
				for range takes {
					if far[i].Recv(&f) != nil {
						return
					}
				}
				if closes {
					far[i].Close()
				}
			})
		}
		payload := make([]byte, maxQueued/2)
		for range 150 {
			c, f := near[rng.IntN(len(near))], numbered(1, payload[:rng.IntN(len(payload))])
			if rng.IntN(20) == 0 {
				all.Go(func() { _ = c.Send(f, f) }) // fails if the connection is closed
			} else if err := c.TrySend(f); err != nil && !errors.Is(err, ErrFull) && !errors.Is(err, ErrBroken) {
				t.Fatalf("seed %d: %v", seed, err)
			}
			queued = max(queued, b.Held())
		}
		for _, i := range rng.Perm(len(near)) {
			near[i].Close()
			far[i].Close()
		}
		all.Wait()
		if b.Held() != 0 {
			t.Errorf("seed %d: the budget holds %d bytes after all connections were closed", seed, b.Held())
		}
	}
	if queued == 0 {
		t.Error("nothing was ever queued")
	}
}

package server

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// copyRate is how many bytes of snapshots a server takes in a second, for each of the
// machine's processors: copying at full speed takes the processors away from those who
// train and read.
const copyRate = 550e6

// copyThrottle spreads what is taken in over time. Its waits are about as long as the system's
// clock can tell, so what one overslept the next ones may make up for.
type copyThrottle struct {
	mu   sync.Mutex // guards free
	free time.Time  // when what was taken in so far is over, at copyRate
}

const slack = 2 * time.Millisecond

// take takes n bytes in, and returns how long to wait after them.
func (t *copyThrottle) take(now time.Time, n, processors int) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if least := now.Add(-slack); t.free.Before(least) {
		t.free = least
	}
	t.free = t.free.Add(time.Duration(float64(n) / (copyRate * float64(processors)) * float64(time.Second)))
	return max(0, t.free.Sub(now))
}

// Wait takes n bytes in, and waits as long as they are to take.
func (t *copyThrottle) Wait(ctx context.Context, n int) {
	d := t.take(time.Now(), n, runtime.NumCPU())
	if d < slack/2 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

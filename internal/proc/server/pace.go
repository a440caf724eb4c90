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

// pace spreads what is taken in over time. Its waits are about as long as the system's
// clock can tell, so what one overslept the next ones may make up for.
type pace struct {
	mu   sync.Mutex // guards free
	free time.Time  // when what was taken in so far is over, at copyRate
}

const paceSlack = 2 * time.Millisecond

// take takes n bytes in, and returns how long to wait after them.
func (p *pace) take(now time.Time, n, processors int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if least := now.Add(-paceSlack); p.free.Before(least) {
		p.free = least
	}
	p.free = p.free.Add(time.Duration(float64(n) / (copyRate * float64(processors)) * float64(time.Second)))
	return max(0, p.free.Sub(now))
}

// wait takes n bytes in.
func (p *pace) wait(ctx context.Context, n int) {
	d := p.take(time.Now(), n, runtime.NumCPU())
	if d < paceSlack/2 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

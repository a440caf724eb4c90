package server

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// copyRate is how many bytes of snapshots per second and processor a server receives. Copying at full speed would take
// the processors away from training and reads.
const copyRate = 550e6

// copyThrottle limits the rate of received bytes. Its waits are about as long as the system timer's resolution, so
// later waits may be shortened by the time that earlier ones overslept.
type copyThrottle struct {
	mu        sync.Mutex // guards free
	paidUntil time.Time  // when the bytes received so far have been paid for at copyRate
}

const slack = 2 * time.Millisecond

// reserve accounts for n bytes and returns how long to wait after them.
func (t *copyThrottle) reserve(now time.Time, n, processors int) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if least := now.Add(-slack); t.paidUntil.Before(least) {
		t.paidUntil = least
	}
	t.paidUntil = t.paidUntil.Add(time.Duration(float64(n) / (copyRate * float64(processors)) * float64(time.Second)))
	return max(0, t.paidUntil.Sub(now))
}

// Wait accounts for n bytes and waits accordingly.
func (t *copyThrottle) Wait(ctx context.Context, n int) {
	d := t.reserve(time.Now(), n, runtime.NumCPU())
	if d < slack/2 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

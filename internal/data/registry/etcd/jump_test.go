package etcd

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/data/registry/registrytest"
	"github.com/perdure/perdure/internal/rig/wall"
)

// TestJumpedLease: whose registry is away gives no lease up because the wall clock jumps, an hour forward and back at
// each look; and gives it up in time by the monotonic clock.
func TestJumpedLease(t *testing.T) {
	f := registrytest.NewEtcd(t, nil)
	var looks, passed atomic.Int64
	r := open(t, f, func(t *timing) {
		t.patience = 0
		t.now = func() time.Time {
			shows := time.Duration(looks.Add(1)%3-1) * time.Hour
			return wall.Jump(time.Now().Add(time.Duration(passed.Load())), shows)
		}
	})
	l := acquire(t, r)
	const failures = 20
	failed := make(chan struct{})
	var calls atomic.Int64
	f.Strike(func(string) registrytest.Fault {
		if calls.Add(1) == failures {
			close(failed)
		}
		return registrytest.Lost
	})
	select {
	case <-failed:
	case <-l.Done():
		t.Fatal("it is given up because the wall clock jumps")
	}
	passed.Store(int64(2 * time.Minute))
	<-l.Done()
}

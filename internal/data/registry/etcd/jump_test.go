package etcd

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/data/registry/registrytest"
	"github.com/perdure/perdure/internal/testcluster/wallclock"
)

// TestJumpedLease checks that jumps of the wall clock, an hour forward and back, do not end a lease while the registry
// is unavailable, and that the monotonic clock ends it in time.
func TestJumpedLease(t *testing.T) {
	f := registrytest.NewEtcd(t, nil)
	var looks, passed atomic.Int64
	r := open(t, f, func(t *timing) {
		t.patience = 0
		t.now = func() time.Time {
			shows := time.Duration(looks.Add(1)%3-1) * time.Hour
			return wallclock.Jump(time.Now().Add(time.Duration(passed.Load())), shows)
		}
	})
	l := acquire(t, r)
	const failures = 20
	failed := make(chan struct{})
	var calls atomic.Int64
	f.InjectFaults(func(string) registrytest.Fault {
		if calls.Add(1) == failures {
			close(failed)
		}
		return registrytest.RequestLost
	})
	select {
	case <-failed:
	case <-l.Done():
		t.Fatal("the lease was given up because the wall clock jumped")
	}
	passed.Store(int64(2 * time.Minute))
	<-l.Done()
}

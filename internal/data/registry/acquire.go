package registry

import (
	"context"
	"errors"
	"time"
)

// LingeringLeaseError is the ErrHeld of a lease that may outlive its holder, because the service detects a death only
// by a timeout. So the successor of a process that just died finds the lease held for a while.
type LingeringLeaseError struct {
	Err           error         // names the holder
	ExpiresWithin time.Duration // time after which a dead holder's lease has certainly expired
}

func (e *LingeringLeaseError) Error() string { return e.Err.Error() }

func (e *LingeringLeaseError) Unwrap() error { return e.Err }

// acquirePause is the pause between AcquireWait's attempts.
const acquirePause = 100 * time.Millisecond

// AcquireWait acquires the lease for a process that may succeed its holder. While the registry is unavailable, it waits
// until ctx is done. While the lease may belong to a dead holder, it waits as long as the lease may outlive that
// holder. AcquireWait calls waiting with the reason of the wait, and again whenever the reason changes; it may be nil.
func AcquireWait(ctx context.Context, r Registry, holder Holder, waiting func(error)) (Lease, error) {
	var held time.Time // start of the wait for the holder; zero: the lease was not held at the last attempt
	sent := ""
	again := time.NewTicker(acquirePause)
	defer again.Stop()
	for {
		l, err := r.Acquire(ctx, holder)
		var lingers *LingeringLeaseError
		switch {
		case err == nil:
			return l, nil
		case errors.As(err, &lingers):
			if held.IsZero() {
				held = time.Now()
			}
			if time.Since(held) > lingers.ExpiresWithin {
				return nil, err
			}
		case errors.Is(err, ErrUnavailable):
			held = time.Time{} // leases do not expire while the service is unavailable
		default:
			return nil, err
		}
		if waiting != nil && err.Error() != sent {
			sent = err.Error()
			waiting(err)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

package registry

import (
	"context"
	"errors"
	"time"
)

// LingersError is the ErrHeld of a lease that may outlive its holder: the service that
// keeps it hears of a death by silence alone. So whoever comes instead of a process that has
// just died finds the lease held, for a moment.
type LingersError struct {
	Err error         // says who has the lease
	For time.Duration // after which the lease of a holder that has died is surely free
}

func (e *LingersError) Error() string { return e.Err.Error() }

func (e *LingersError) Unwrap() error { return e.Err }

// takePause is how often Take tries again.
const takePause = 100 * time.Millisecond

// Take acquires the lease for a process that may be the successor of its holder. It waits for a
// registry that is away for as long as ctx lasts, and for the lease of a holder that may
// be dead for as long as that may outlive it. Waiting is told why it waits whenever the
// reason is another one; it may be nil.
func Take(ctx context.Context, r Registry, holder Holder, waiting func(error)) (Lease, error) {
	var held time.Time // since when; zero: it was not, when it was last asked for
	told := ""
	again := time.NewTicker(takePause)
	defer again.Stop()
	for {
		l, err := r.Acquire(ctx, holder)
		var lingers *LingersError
		switch {
		case err == nil:
			return l, nil
		case errors.As(err, &lingers):
			if held.IsZero() {
				held = time.Now()
			}
			if time.Since(held) > lingers.For {
				return nil, err
			}
		case errors.Is(err, ErrAway):
			held = time.Time{} // a lease is not over while nobody counts its time
		default:
			return nil, err
		}
		if waiting != nil && err.Error() != told {
			told = err.Error()
			waiting(err)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

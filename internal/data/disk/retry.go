package disk

import (
	"context"
	"time"
)

// Retry configures how persistently a disk operation is repeated. A full disk is retried without limit, because an
// operator may free space. Other errors may be temporary or permanent, so they are retried a limited number of times.
type Retry struct {
	MaxAttempts int              // max number of attempts for errors that do not pass; 0 and 1: no retry
	Pause       time.Duration    // between attempts
	Permanent   func(error) bool // reports whether no further attempt can succeed; nil: never
	// Retryable reports whether an error is retried without limit; nil: only a full disk is.
	Retryable func(error) bool
}

// Do calls do until it succeeds and returns the last error when it gives up. It calls do at least once, and not again
// after ctx has ended. do sees every error and reports it to users if necessary.
func (r Retry) Do(ctx context.Context, do func() error) error {
	for try := 1; ; try++ {
		err := do()
		if err == nil || r.permanent(err) || try >= r.MaxAttempts && !r.retryable(err) {
			return err
		}
		select {
		case <-time.After(r.Pause):
		case <-ctx.Done():
		}
		if ctx.Err() != nil || r.permanent(err) { // over may have changed during the pause
			return err
		}
	}
}

func (r Retry) retryable(err error) bool {
	if r.Retryable == nil {
		return IsFull(err)
	}
	return r.Retryable(err)
}

func (r Retry) permanent(err error) bool { return r.Permanent != nil && r.Permanent(err) }

package disk

import (
	"context"
	"time"
)

// Retry is how patiently something is done with a disk. A full disk is nobody's mistake
// and somebody may make room, so that it is waited for as long as it takes. Any other
// error may pass, too, or may not: so it is tried a number of times.
type Retry struct {
	Tries int              // before an error other than a full disk is returned; 0 and 1: it is returned at once
	Pause time.Duration    // between two tries
	Over  func(error) bool // reports that no try can help any more; nil: one always can
	// Passes reports that an error is waited for as long as it takes; nil: a full disk is.
	Passes func(error) bool
}

// Do tries until do succeeds, and returns the last error when it gives up. It tries at least
// once, and not again once ctx has ended. What people are to be told is told by do, which
// sees every error.
func (r Retry) Do(ctx context.Context, do func() error) error {
	for try := 1; ; try++ {
		err := do()
		if err == nil || r.over(err) || try >= r.Tries && !r.passes(err) {
			return err
		}
		select {
		case <-time.After(r.Pause):
		case <-ctx.Done():
		}
		if ctx.Err() != nil || r.over(err) { // it may have become so meanwhile
			return err
		}
	}
}

func (r Retry) passes(err error) bool {
	if r.Passes == nil {
		return Full(err)
	}
	return r.Passes(err)
}

func (r Retry) over(err error) bool { return r.Over != nil && r.Over(err) }

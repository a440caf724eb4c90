package coordinator

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
)

// Seen is what who looks at a coordinator is shown.
type Seen struct {
	Core   *membership.Core
	Latest Latest
	Facts  *membership.Facts // as they are recorded
	// Waits says that the loop waits for its registry. The core is as it was when that began, and may know, and have
	// decided, what is not recorded.
	Waits *Waits
}

// Waits is a loop's waiting for its registry.
type Waits struct {
	For time.Duration // so far
	Why string        // the last try has failed; "": none has yet
}

// lookPatience is how long who looks waits for the loop, before an answer will do that it gives while it waits for its
// registry.
const lookPatience = 250 * time.Millisecond

// look is somebody who looks while the loop waits for its registry.
type look func(w *Waits)

// looks are those. Only a loop that waits for its registry takes any.
type looks chan look

// Look runs f as Ask does, but waits for no registry: where that does not answer, f is shown what is known, and what of
// it is recorded. So nobody is told as a fact what is none yet.
func (c *Coordinator) Look(ctx context.Context, f func(s *Seen)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var claimed atomic.Bool // by the loop, in one way or the other, or by the caller, who gives up
	done := make(chan error, 1)
	go c.inbox.do(ctx, func() { // the inbox may be full meanwhile
		if claimed.CompareAndSwap(false, true) {
			f(&Seen{Core: c.core, Latest: c.latest, Facts: c.core.Facts()})
			done <- nil
		}
	})
	waiting := look(func(w *Waits) {
		if !claimed.CompareAndSwap(false, true) {
			return
		}
		s := Seen{Core: c.core, Latest: c.latest, Facts: &membership.Facts{}, Waits: w}
		err := json.Unmarshal(c.book.text, s.Facts)
		if err == nil {
			f(&s)
		}
		done <- err
	})
	patience := time.NewTimer(lookPatience)
	defer patience.Stop()
	var offered looks // nil: not yet
	for {
		select {
		case err := <-done:
			return err
		case <-patience.C:
			offered = c.book.looks
		case offered <- waiting:
			offered = nil
		case <-ctx.Done():
			if claimed.CompareAndSwap(false, true) {
				return ctx.Err()
			}
			return <-done // it is at work
		}
	}
}

package coordinator

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
)

// Seen is the state that callers of Look receive.
type Seen struct {
	Core   *membership.Core
	Latest Latest
	Facts  *membership.JobRecord // as saved
	// Waits is non-nil if the loop is waiting for its registry. The core is then as of the start of that wait and may
	// contain decisions that are not saved.
	Waits *Waits
}

// Waits describes a wait of the loop for its registry.
type Waits struct {
	For time.Duration // so far
	Why string        // the error of the last try; "" before the first error
}

// lookPatience is how long Look waits for the loop before it accepts an answer from a loop that is waiting for its
// registry.
const lookPatience = 250 * time.Millisecond

// look is a pending call of Look that accepts an answer during a wait for the registry.
type look func(w *Waits)

// looks passes pending calls of Look to a loop that is waiting for its registry.
type looks chan look

// Look is like Ask but does not wait for the registry. While the registry does not answer, f receives the current state
// and, separately, the saved facts, so that callers do not mistake an unsaved decision for a fact.
func (c *Coordinator) Look(ctx context.Context, f func(s *Seen)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var claimed atomic.Bool // by the loop in either way, or by the caller when it gives up
	done := make(chan error, 1)
	go c.inbox.do(ctx, func() { // the inbox may be full
		if claimed.CompareAndSwap(false, true) {
			f(&Seen{Core: c.core, Latest: c.latest, Facts: c.core.Record()})
			done <- nil
		}
	})
	waiting := look(func(w *Waits) {
		if !claimed.CompareAndSwap(false, true) {
			return
		}
		s := Seen{Core: c.core, Latest: c.latest, Facts: &membership.JobRecord{}, Waits: w}
		err := json.Unmarshal(c.factStore.text, s.Facts)
		if err == nil {
			f(&s)
		}
		done <- err
	})
	patience := time.NewTimer(lookPatience)
	defer patience.Stop()
	var offered looks // nil until the patience is over
	for {
		select {
		case err := <-done:
			return err
		case <-patience.C:
			offered = c.factStore.looks
		case offered <- waiting:
			offered = nil
		case <-ctx.Done():
			if claimed.CompareAndSwap(false, true) {
				return ctx.Err()
			}
			return <-done // f is running
		}
	}
}

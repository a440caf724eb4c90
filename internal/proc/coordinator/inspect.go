package coordinator

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
)

// Snapshot is the state that callers of Inspect receive.
type Snapshot struct {
	Core   *membership.Core
	Latest Latest
	Facts  *membership.JobRecord // as saved
	// RegistryWait is non-nil if the loop is waiting for its registry. The core is then as of the start of that wait
	// and may contain decisions that are not saved.
	RegistryWait *RegistryWait
}

// RegistryWait describes a wait of the loop for its registry.
type RegistryWait struct {
	Duration  time.Duration // so far
	LastError string        // the error of the last try; "" before the first error
}

// inspectTimeout is how long Inspect waits for the loop before it accepts an answer from a loop that is waiting for its
// registry.
const inspectTimeout = 250 * time.Millisecond

// inspection is a pending call of Inspect that accepts an answer during a wait for the registry.
type inspection func(w *RegistryWait)

// inspections passes pending calls of Inspect to a loop that is waiting for its registry.
type inspections chan inspection

// Inspect is like Ask but does not wait for the registry. While the registry does not answer, f receives the current
// state and, separately, the saved facts, so that callers do not mistake an unsaved decision for a fact.
func (c *Coordinator) Inspect(ctx context.Context, f func(s *Snapshot)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var claimed atomic.Bool // by the loop in either way, or by the caller when it gives up
	done := make(chan error, 1)
	go c.inbox.doSaved(ctx, func() { // the inbox may be full
		if claimed.CompareAndSwap(false, true) {
			f(&Snapshot{Core: c.core, Latest: c.latest, Facts: c.core.Record()})
			done <- nil
		}
	})
	waiting := inspection(func(w *RegistryWait) {
		if !claimed.CompareAndSwap(false, true) {
			return
		}
		s := Snapshot{Core: c.core, Latest: c.latest, Facts: &membership.JobRecord{}, RegistryWait: w}
		err := json.Unmarshal(c.records.text, s.Facts)
		if err == nil {
			f(&s)
		}
		done <- err
	})
	patience := time.NewTimer(inspectTimeout)
	defer patience.Stop()
	var offered inspections // nil until the patience is over
	for {
		select {
		case err := <-done:
			return err
		case <-patience.C:
			offered = c.records.calls
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

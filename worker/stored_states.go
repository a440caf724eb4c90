package worker

import (
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/proc/statestore"
)

// storedStates holds the save of a large state in the current clock. The update that refers to the state is built only
// after the save has ended, so that every process that has the update finds the state. It is not safe for concurrent
// use.
type storedStates struct {
	*statestore.States
	now  *statestore.Save // nil: no state, or one that travels with the update
	took time.Duration    // of the last save
}

// Take starts to save a state instead of the one in progress. Its parameters are those of Begin.
func (p *storedStates) Take(
	ctx context.Context, key slotstate.Key, clock perdure.Clock, n int64, write statestore.Source, over func(),
) error {
	s, err := p.Begin(ctx, key, clock, n, write, over)
	if err == nil {
		p.now = s
	}
	return err
}

// Packed returns the reference to this clock's state, for its update, or nil without a state. The save must have
// succeeded.
func (p *storedStates) Packed() []byte {
	if p.now == nil {
		return nil
	}
	return p.now.Ref.Pack(p.now.Clock)
}

// Ready reports whether the current clock need not wait for the store.
func (p *storedStates) Ready() bool {
	if p.now == nil {
		return true
	}
	ended, _ := p.now.Ended()
	return ended
}

// Failed returns the error of this clock's save, if it failed.
func (p *storedStates) Failed() error {
	if p.now == nil {
		return nil
	}
	_, err := p.now.Ended()
	return err
}

// Drop forgets the save in progress: no update will refer to it, or its update has been built.
func (p *storedStates) Drop() {
	if p.now != nil {
		p.now.Drop()
		p.now = nil
	}
}

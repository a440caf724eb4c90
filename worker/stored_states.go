package worker

import (
	"context"

	"github.com/perdure/perdure/internal/core/states"
)

// storedStates is what the program has given to be saved in the present clock, where it goes to the store: the update
// that refers to it is not built before it is there, so that whoever has the update finds it. It is for one
// goroutine at a time.
type storedStates struct {
	*stateStore
	now *stateSave // nil: nothing, or what travels with the update
}

// Take begins to save a state in the place of what was on its way, and returns what the update is to refer to.
func (p *storedStates) Take(ctx context.Context, of states.Key, ref states.Ref, state []byte, over func()) (
	r states.Ref, err error,
) {
	s, err := p.Begin(ctx, of, ref, state, over)
	if err == nil {
		p.now, r = s, s.Ref
	}
	return r, err
}

// Ready reports whether the present clock need not wait for the store.
func (p *storedStates) Ready() bool {
	if p.now == nil {
		return true
	}
	ended, _ := p.now.Ended()
	return ended
}

// Failed returns why what the program has saved in this clock is not saved.
func (p *storedStates) Failed() error {
	if p.now == nil {
		return nil
	}
	_, err := p.now.Ended()
	return err
}

// Drop forgets what is on its way: nobody will refer to it, or its update has it.
func (p *storedStates) Drop() {
	if p.now != nil {
		p.now.Drop()
		p.now = nil
	}
}

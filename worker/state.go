package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/states"
	"github.com/perdure/perdure/internal/data/store/savedstate"
	"github.com/perdure/perdure/internal/proc/saves"
)

// MaxState is how large a state may be that SaveState takes: 1 GiB.
const MaxState = savedstate.MaxBytes

// saving is what the program has given to be saved in the present clock, where it goes to the job's store. The
// update that refers to it is not built before it is there: so whoever has the update finds it.
type saving struct {
	*saves.Saves
	now *saves.Save // nil: nothing, or what travels with the update
}

// ready reports whether the present clock need not wait for the store.
func (s *saving) ready() bool {
	if s.now == nil {
		return true
	}
	ended, _ := s.now.Ended()
	return ended
}

// failed returns why what the program has saved in this clock is not saved.
func (s *saving) failed() error {
	if s.now == nil {
		return nil
	}
	if _, err := s.now.Ended(); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	return nil
}

// drop forgets what is on its way: nobody will refer to it, or its update has it.
func (s *saving) drop() {
	if s.now != nil {
		s.now.Drop()
		s.now = nil
	}
}

// SaveState gives what the program itself must keep: a position in the data, say, or a random
// state. It goes with the slot's next update, and is staged, ticked and saved with it: the
// slot's next process gets it from LoadState. It is copied. Up to 1 MiB travels with the update.
// What is larger, up to MaxState, is saved in the job's store while the program goes on
// computing, and Clock waits until it is there; it returns an error if it cannot be. Save again, then.
func (c *Client) SaveState(state []byte) error {
	if len(state) > MaxState {
		return fmt.Errorf("%w: saved state of %d bytes; at most %d are taken", perdure.ErrUsage, len(state), MaxState)
	}
	state = append([]byte{}, state...)
	packed := states.Pack(state)
	stores := len(packed) > c.cfg.StateBytes
	var ref states.Ref
	if stores {
		ref = savedstate.Ref(states.Key{Slot: c.slot}, state) // takes long, and so not under the lock
	}
	l := c.lock()
	defer c.mu.Unlock()
	if err := cmp.Or(l.asSlot(clocks), l.usable()); err != nil {
		return err
	}
	l.saving.drop()
	if !stores {
		l.out.SaveState(packed)
		return nil
	}
	of := states.Key{Slot: l.slot, Generation: l.generation, Incarnation: l.session.incarnation}
	over := func() {
		c.lock().waits.Wake()
		c.mu.Unlock()
		c.done.Done()
	}
	c.done.Add(1)
	s, err := l.saving.Begin(c.run, of, ref, state, over)
	if err != nil {
		c.done.Done()
		return err
	}
	l.saving.now = s
	l.out.SaveState(s.Ref.Pack())
	return nil
}

// looks is how often a state is asked for of which the store has nothing any more. The answer may have been that
// of a shard which did not know yet that the job has gone back.
const looks = 5

// LoadState returns what the slot's program had saved before the present clock; nil: nothing.
// The slice is the caller's. It may be what was saved some clocks before, under scar where rows
// were lost or the job goes on from another run, and under resend:C,partial after a worker and a
// server have died: a program to which that matters saves its clock, too.
func (c *Client) LoadState(ctx context.Context) ([]byte, error) {
	for try := 1; ; try++ {
		packed, err := c.savedState(ctx, try > 1)
		if err != nil {
			return nil, err
		}
		state, ref, err := states.Unpack(packed)
		if err == nil && ref != nil {
			state, err = c.saves.Load(ctx, *ref)
		}
		switch {
		case err == nil:
			return state, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case !errors.Is(err, fs.ErrNotExist) || try == looks:
			return nil, fmt.Errorf("worker: %w", err)
		}
	}
}

// savedState returns what was saved last, as it travels; after a while, if it is asked for again. The slice is the
// caller's.
func (c *Client) savedState(ctx context.Context, again bool) ([]byte, error) {
	l := c.lock()
	defer c.mu.Unlock()
	if again {
		if err := l.waits.Pause(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
	if err := cmp.Or(l.asSlot(clocks), l.usable()); err != nil {
		return nil, err
	}
	if saved := l.out.SavedState(); saved != nil { // the replica that would be asked may not have it yet
		return slices.Clone(saved), nil
	}
	call := l.reads.Load(l.shards[placement.Home(l.slot, len(l.shards))].rows, l.out.Clock())
	if err := l.await(ctx, call, l.usable); err != nil {
		return nil, err
	}
	defer call.Free()
	return call.State(), nil
}

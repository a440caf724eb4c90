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
	"github.com/perdure/perdure/internal/core/reads"
	"github.com/perdure/perdure/internal/core/states"
	"github.com/perdure/perdure/internal/data/store"
)

// MaxState is how large a state may be that SaveState takes: 1 GiB.
const MaxState = store.MaxStateBytes

// SaveState gives what the program itself must keep: a position in the data, say, or a random
// state. It goes with the slot's next update, and is staged, ticked and saved with it: the
// slot's next process gets it from LoadState. It is copied. Up to 1 MiB travels with the update.
// What is larger, up to MaxState, is saved in the job's store while the program goes on
// computing, and Clock waits until it is there; it returns an error if it cannot be. Save again, then.
func (c *Client) SaveState(state []byte) error {
	if len(state) > MaxState {
		return fmt.Errorf("%w: saved state of %d bytes; at most %d are taken", perdure.ErrUsage, len(state), MaxState)
	}
	stores, now := len(state) > c.cfg.StateBytes, c.Now()
	var packed []byte
	var ref states.Ref
	if stores { // either takes long, and so is not done under the lock
		state = append([]byte{}, state...)
		ref = store.StateRef(states.Key{Slot: c.slot}, state)
	} else {
		packed = states.Pack(state, now)
	}
	l := c.lock()
	defer c.mu.Unlock()
	if err := cmp.Or(l.asSlot(clocks), l.usable()); err != nil {
		return err
	}
	l.saving.Drop()
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
	s, err := l.saving.Take(c.run, of, ref, state, over)
	if err != nil {
		c.done.Done()
		return err
	}
	l.out.SaveState(s.Pack(now))
	return nil
}

// looks is how often a state is asked for of which the store has nothing any more. The answer may have been that
// of a shard which did not know yet that the job has gone back.
const looks = 5

// SavedState is what a slot's program had saved.
type SavedState struct {
	State []byte        // nil: nothing. It is the caller's
	Clock perdure.Clock // that it was saved in; -1: nothing was
	// Older says by how many clocks at most it is older than the last one that the slot had saved and that was
	// acknowledged; 0: it is that one.
	Older perdure.Clock
}

// LoadState returns what the slot's program had saved before the present clock; nil: nothing.
// The slice is the caller's. Where servers' deaths lose updates it may be of an earlier clock than the last one
// that was saved: LoadSaved says so.
func (c *Client) LoadState(ctx context.Context) ([]byte, error) {
	s, err := c.LoadSaved(ctx)
	return s.State, err
}

// LoadSaved is LoadState, and says to which clock the state belongs. It may be an earlier one than the last that
// was saved, under none, scar and chains that acknowledge early where a server's death took it, under scar where
// the job goes on from another run, and under resend:C,partial after a worker and a server have died. The run's
// result counts each state that was given and is older (states_lost).
func (c *Client) LoadSaved(ctx context.Context) (SavedState, error) {
	for try := 1; ; try++ {
		packed, others, err := c.savedState(ctx, try > 1)
		if err != nil {
			return SavedState{}, err
		}
		got, err := states.Unpack(packed)
		if err == nil && got.Ref != nil {
			got.State, err = c.saves.Load(ctx, *got.Ref)
		}
		switch {
		case err == nil:
			older := states.Older(got, others, c.Now())
			c.saves.Gave(older)
			return SavedState{got.State, got.Clock, older}, nil
		case ctx.Err() != nil:
			return SavedState{}, ctx.Err()
		case !errors.Is(err, fs.ErrNotExist) || try == looks:
			return SavedState{}, fmt.Errorf("worker: %w", err)
		}
	}
}

// savedState returns what was saved last, as it travels, and where shards may lose it, what the others have heard
// of it; after a while, if it is asked for again. The slices are the caller's.
func (c *Client) savedState(ctx context.Context, again bool) (packed []byte, others [][]byte, err error) {
	l := c.lock()
	defer c.mu.Unlock()
	if again {
		if err := l.waits.Pause(ctx, 100*time.Millisecond); err != nil {
			return nil, nil, err
		}
	}
	if err := cmp.Or(l.asSlot(clocks), l.usable()); err != nil {
		return nil, nil, err
	}
	if saved := l.out.SavedState(); saved != nil { // the replica that would be asked may not have it yet
		return slices.Clone(saved), nil, nil
	}
	home := placement.Home(l.slot, len(l.shards))
	from := []*reads.Shard{l.shards[home].rows}
	for i := range l.shards {
		if i != int(home) && l.traits.MayLose() {
			from = append(from, l.shards[i].rows)
		}
	}
	call := l.reads.Load(from, l.out.Clock())
	if err := l.await(ctx, call, l.usable); err != nil {
		return nil, nil, err
	}
	defer call.Free()
	all := call.Saved()
	l.out.Loaded(all[0])
	return all[0], all[1:], nil
}

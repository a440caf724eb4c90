package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/reads"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/store"
)

// MaxState is the max size of a slot state: 1 TiB.
const MaxState = store.MaxStateBytes

// SaveState saves state of the program itself, such as a position in the data or a random generator. The state belongs
// to the slot's next update, and is staged, ticked and saved with it: the slot's next process gets it from LoadState.
// SaveState copies state.
//
// Up to 1 MiB (Config.StateBytes) travels with the update. A larger state is saved in the job's store while the program
// computes, and Clock waits until it is there. If it cannot be saved, Clock returns an error: call SaveState again.
func (c *Client) SaveState(state []byte) error {
	if len(state) > c.cfg.StateBytes {
		write := store.WriteBytes(slices.Clone(state))
		return c.SaveStateFrom(int64(len(state)), func(_ context.Context, w io.Writer) error { return write(w) }, nil)
	}
	l := c.lock()
	defer c.mu.Unlock()
	if err := cmp.Or(l.requireSlot(clocks), l.usable()); err != nil {
		return err
	}
	l.saving.Drop()
	l.out.SaveState(slotstate.Pack(state, l.out.Clock()))
	return nil
}

// SaveStateFrom is like SaveState for a state that needs no copy in memory: write writes its n bytes into the job's
// store. Another goroutine calls write, and calls it again after a failed attempt; it must write the same bytes each
// time. Its context ends when the state is no longer needed. ended, unless nil, is called when write will not be called
// again, which is before Clock returns the next clock.
func (c *Client) SaveStateFrom(n int64, write func(ctx context.Context, w io.Writer) error, ended func()) error {
	if n < 0 || n > MaxState {
		return fmt.Errorf("%w: invalid state size of %d bytes; the limit is %d", perdure.ErrUsage, n,
			int64(MaxState))
	}
	l := c.lock()
	defer c.mu.Unlock()
	if err := cmp.Or(l.requireSlot(clocks), l.usable()); err != nil {
		return err
	}
	l.saving.Drop()
	of := slotstate.Key{Slot: l.slot, Generation: l.generation, Incarnation: l.session.incarnation}
	begun := time.Now()
	over := func() {
		if ended != nil {
			ended()
		}
		l := c.lock()
		l.saving.took = time.Since(begun)
		l.waits.Wake()
		c.mu.Unlock()
		c.done.Done()
	}
	c.done.Add(1)
	err := l.saving.Take(c.run, of, l.out.Clock(), n, write, over)
	if err != nil {
		c.done.Done()
	}
	return err
}

// maxLoadTries is how often LoadSaved retries a state that the store no longer has. The reference may have come from a
// shard that did not know yet about a rollback.
const maxLoadTries = 5

// SavedState is a state that a slot's program has saved.
type SavedState struct {
	State []byte        // nil: none was saved; the caller owns it
	Clock perdure.Clock // clock in which it was saved; -1: none was saved
	// Older is by how many clocks at most the state is older than the last acknowledged state of the slot; 0: it is
	// that state.
	Older perdure.Clock
}

// LoadState returns the state that the slot's program saved before the current clock; nil: none. The caller owns the
// slice. If servers die and updates are lost, the state may be older than the last one saved: LoadSaved reports that.
func (c *Client) LoadState(ctx context.Context) ([]byte, error) {
	s, err := c.LoadSaved(ctx)
	return s.State, err
}

// LoadSaved is like LoadState, and also returns the clock of the state. The state may be older than the last one saved
// in these cases: under none, scar and chains that acknowledge early, if a server's death lost it; under scar, if the
// job resumes from another run; and under resend:C,partial, after a worker and a server have died. The run's result
// counts such states in states_lost.
func (c *Client) LoadSaved(ctx context.Context) (SavedState, error) {
	return loadSaved(ctx, c, c.Slot())
}

// loadSaved returns the state that a slot's program saved before the current clock.
func loadSaved(ctx context.Context, c *Client, slot perdure.Slot) (SavedState, error) {
	for try := 1; ; try++ {
		packed, others, err := c.savedState(ctx, slot, try > 1)
		if err != nil {
			return SavedState{}, err
		}
		got, err := slotstate.Unpack(packed)
		if err == nil && got.Ref != nil {
			got.State, err = c.saves.Load(ctx, *got.Ref)
		}
		switch {
		case err == nil:
			older := slotstate.MaxAge(got, others, c.Now())
			if slot == c.Slot() {
				c.saves.RecordLoaded(older)
			}
			return SavedState{got.State, got.Clock, older}, nil
		case ctx.Err() != nil:
			return SavedState{}, ctx.Err()
		case !errors.Is(err, fs.ErrNotExist) || try == maxLoadTries:
			return SavedState{}, fmt.Errorf("worker: %w", err)
		}
	}
}

// savedState returns a slot's last saved state in packed form. If shards may lose states, it also returns the states
// that the other shards know of. If again is set it waits for a while first. The caller owns the slices.
func (c *Client) savedState(
	ctx context.Context, slot perdure.Slot, again bool,
) (packed []byte, others [][]byte, err error) {
	l := c.lock()
	defer c.mu.Unlock()
	if again {
		if err := l.waits.Pause(ctx, 100*time.Millisecond); err != nil {
			return nil, nil, err
		}
	}
	if err := cmp.Or(l.requireSlot(clocks), l.usable()); err != nil {
		return nil, nil, err
	}
	if slot < 0 || int(slot) >= len(l.view.Slots) {
		return nil, nil, fmt.Errorf("%w: slot %d does not exist; the job has %d slots", perdure.ErrUsage, slot,
			len(l.view.Slots))
	}
	if saved := l.out.SavedState(); saved != nil && slot == l.slot { // the replica may not have it yet
		return slices.Clone(saved), nil, nil
	}
	home := placement.HomeShard(slot, len(l.shards))
	from := []*reads.Shard{l.shards[home].rows}
	for i := range l.shards {
		if i != int(home) && l.traits.MayLoseUpdates() {
			from = append(from, l.shards[i].rows)
		}
	}
	call := l.reads.Load(slot, from, l.out.Clock())
	if err := l.await(ctx, call, l.usable); err != nil {
		return nil, nil, err
	}
	defer call.Free()
	all := call.Saved()
	if slot == l.slot {
		l.out.Loaded(all[0])
	}
	return all[0], all[1:], nil
}

package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/store"
)

// Draft is the state of a slot's program between two clocks, in the job's store. A process that has to end saves it, so
// that the slot's next process, on any machine, need not repeat the work since the last update. The program itself
// determines whether a draft continues the current clock: drafts of earlier clocks remain until a later one replaces
// them. All methods work after the job has ended, and return an error if this machine cannot reach the store.
type Draft struct{ c *Client }

// NewDraft returns access to the draft of a client's slot.
func NewDraft(c *Client) Draft { return Draft{c} }

// Save replaces the draft and returns once the store has it. write writes its n bytes, as in [Client.SaveStateFrom].
func (d Draft) Save(ctx context.Context, n int64, write stateSource) error {
	if err := d.c.saves.Put(ctx, slotstate.Draft(d.c.Slot()), n, write); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	return nil
}

// Load returns the draft; nil: there is none, or it is damaged. The caller owns the slice.
func (d Draft) Load(ctx context.Context) (state []byte, err error) {
	name := slotstate.Draft(d.c.Slot()).Name()
	err = d.c.saves.retry(ctx, "read", d.c.Slot(), func(in store.Store) error {
		n, err := store.UnreferencedStateSize(in, name)
		if err != nil || n < 0 {
			return err
		}
		state = make([]byte, n)
		return store.GetUnreferencedState(in, name, state)
	})
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, store.ErrCorrupt):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("worker: %w", err)
	}
	return state, nil
}

// Delete deletes the draft.
func (d Draft) Delete(ctx context.Context) error {
	err := d.c.saves.retry(ctx, "delete", d.c.Slot(), func(in store.Store) error {
		return in.Delete(slotstate.Draft(d.c.Slot()).Name())
	})
	if err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	return nil
}

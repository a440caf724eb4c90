package worker

import (
	"context"
	"io"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/proc/statestore"
)

// Draft is the state of a slot's program between two clocks, in the job's store. A process that has to end saves it, so
// that the slot's next process, on any machine, need not repeat the work since the last update. The program itself
// determines whether a draft continues the current clock: drafts of earlier clocks remain until a later one replaces
// them. All methods work after the job has ended, and return an error if this machine cannot reach the store.
type Draft struct {
	in   *statestore.States
	slot perdure.Slot
}

// Draft returns access to the draft of the slot.
func (s SharedState) Draft() Draft { return Draft{&s.c.saves, s.c.slot} }

// Save replaces the draft and returns once the store has it. write writes its n bytes, as in [Client.SaveStateFrom].
func (d Draft) Save(ctx context.Context, n int64, write func(ctx context.Context, w io.Writer) error) error {
	return d.in.Put(ctx, slotstate.Draft(d.slot), n, write)
}

// Load returns the draft; nil: it does not exist, or is damaged. The caller owns the slice.
func (d Draft) Load(ctx context.Context) ([]byte, error) { return d.in.LoadDraft(ctx, d.slot) }

// Delete deletes the draft.
func (d Draft) Delete(ctx context.Context) error { return d.in.DeleteDraft(ctx, d.slot) }

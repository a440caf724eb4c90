package reach

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/proc/control"
)

// namePatience is how long the clock of a change may take to be named: a slot whose
// process has just died says where it stands once its next one has come.
const namePatience = 30 * time.Second

// AwaitChange waits until the clock of a change that was asked for is named, and returns the
// job's view with it.
func AwaitChange(ctx context.Context, client *control.Client, before words.View) (v words.View, err error) {
	ctx, cancel := context.WithTimeout(ctx, namePatience)
	defer cancel()
	for {
		v, err = client.View(ctx)
		switch {
		case err != nil && !errors.Is(err,
			control.ErrUnreachable): // a coordinator that is being replaced goes on with it
			return v, err
		case err == nil && v.Roster > before.Roster:
			return v, nil
		case err == nil && !v.Pause:
			return v, fmt.Errorf("%w: nobody joins or leaves: the clock is over, or the job ends before",
				perdure.ErrRefused)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return v, fmt.Errorf("the workers have not all said where they stand within %v; the change is made once "+
				"they have: see perdure status", namePatience)
		}
	}
}

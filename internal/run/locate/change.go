package locate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/proc/control"
)

// nameTimeout is how long the coordinator may take to choose the clock of a change. A slot whose process has just died
// reports its clock once the next process has started.
const nameTimeout = 30 * time.Second

// AwaitChange waits until the clock of a requested change is chosen, and returns the job's view with it.
func AwaitChange(ctx context.Context, client *control.Client, before protocol.View) (v protocol.View, err error) {
	ctx, cancel := context.WithTimeout(ctx, nameTimeout)
	defer cancel()
	for {
		v, err = client.View(ctx)
		switch {
		case err != nil && !errors.Is(err,
			control.ErrUnreachable): // the next coordinator continues the change
			return v, err
		case err == nil && v.Roster > before.Roster:
			return v, nil
		case err == nil && !v.Pause:
			return v, fmt.Errorf("%w: no worker will join or leave: the clock is already over, or the job ends "+
				"before it",
				perdure.ErrRefused)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return v, fmt.Errorf("not all workers have reported their clock within %v; the change takes effect once "+
				"they have: see perdure status", nameTimeout)
		}
	}
}

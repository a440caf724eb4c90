package main

import (
	"errors"
	"fmt"

	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/runs"
)

// printEnded shows how the run ended, if err is that its coordinator does not answer and the run is over. Otherwise it
// returns an error that explains the state.
func (t *target) printEnded(err error, asJSON bool) error {
	if t.Run == "" || !errors.Is(err, control.ErrUnreachable) {
		return explainUnreachable(err)
	}
	holder, alive := rundir.CheckEnded(t.Run)
	if alive != nil {
		if errors.Is(alive, rundir.ErrRunning) {
			return fmt.Errorf("%w; the run is still active (%s): its coordinator is being replaced, or the run is "+
				"about to end; try again", err, holder)
		}
		return alive
	}
	r, err := runs.One(t.Run)
	if err != nil {
		return err
	}
	return r.Show(stdout, asJSON)
}

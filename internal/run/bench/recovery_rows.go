package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/proc/control"
)

// This file measures the cost of saving rows individually. Jobs train a large table under none and under scar in turn.
// In every window, each selector saves as many bytes as the table has. minRowsWindow is the minimum window.
const minRowsWindow = 250 * time.Millisecond

// rowsWindow returns the window in which as many bytes are saved as mb MB of rows have: 10 s for 500 MB.
func rowsWindow(mb int) time.Duration {
	return max(minRowsWindow, time.Duration(float64(mb)/saveMBPerS*float64(time.Second)))
}

// pace is the speed of a job in a window.
type pace struct {
	perSecond float64
	longest   time.Duration // clock
}

// allRowSaves measures the cost of saving rows individually during training.
func (r *recoveryRun) allRowSaves(ctx context.Context) error {
	mb := r.MB
	if mb == 0 {
		mb = saveMB
	}
	fmt.Fprintf(r.out, "\n%d MB of rows saved individually, an eighth at a time; in %v as many bytes are saved as "+
		"all rows have: share of the clocks lost compared with none in the same round (min to max); MB saved in that "+
		"time; how long shards pause to save an eighth, and the ratio to copying it in memory; by how much the "+
		"longest clock grows\n",
		mb, rowsWindow(mb))
	for _, selector := range []perdure.Selector{
		perdure.SelectPriority, perdure.SelectRound, perdure.SelectRandom, perdure.SelectUsed,
	} {
		res := r.line("scar:C,1/8,"+string(selector), r.Servers, r.Workers, mb)
		err := r.repeat(res, "rows chosen by "+string(selector), (*RecoveryResult).rowsLine,
			func(int) (sample, error) { return r.rowsRound(ctx, selector, mb) })
		if err != nil {
			return err
		}
	}
	return nil
}

// rowsRound trains under none and then under scar. Under scar it first waits until each row has been saved. It
// measures the clocks lost, relative to a job that saves nothing; the MB saved in a window; the total pause of the
// shards while an eighth of the rows is chosen and copied; the longest clock beyond that of the other job, which
// includes the load of writing on cores and disk; and the time to copy the bytes of one save in memory.
func (r *recoveryRun) rowsRound(ctx context.Context, selector perdure.Selector, mb int) (c sample, err error) {
	var none, saving pace
	var saved, stood float64 // MB in a window, and seconds for an eighth of the rows
	window := rowsWindow(mb)
	err = r.withJob(ctx, recoverNone, mb, func(ctx context.Context, j *recoveryJob) (err error) {
		none, err = j.pace(ctx, window/5, window)
		return err
	})
	if err != nil {
		return c, err
	}
	strategy := perdure.Recovery{
		Kind: perdure.RecoverScar, Share: perdure.DefaultShare, Selector: selector,
		Every: max(1, perdure.Clock(none.perSecond/float64(r.Workers)*window.Seconds())),
	}
	err = r.withJob(ctx, strategy, mb, func(ctx context.Context, j *recoveryJob) error {
		if err := pause(ctx, window); err != nil {
			return err
		}
		before, err := j.savedRows(ctx)
		if err != nil {
			return err
		}
		after := before
		for after.Bytes == before.Bytes { // on a busy machine a window may contain no save
			if saving, err = j.pace(ctx, 0, window); err != nil {
				return err
			}
			if after, err = j.savedRows(ctx); err != nil {
				return err
			}
		}
		saved = float64(after.Bytes-before.Bytes) / 1e6
		stood = (after.PausedSeconds - before.PausedSeconds) * perdure.DefaultShare * float64(mb) / saved
		return nil
	})
	longer := milliseconds(max(0, saving.longest-none.longest))
	whole := milliseconds(copyTime(max(1, int(float64(mb)*perdure.DefaultShare))))
	return sample{
		"rows.mb": saved, "rows.lost": 1 - saving.perSecond/none.perSecond,
		"rows.stood_ms": 1e3 * stood, "rows.stood_of_copy": 1e3 * stood / whole,
		"rows.pause_ms": longer, "rows.pause_of_copy": longer / whole, "rows.copy_ms": whole,
	}, err
}

// pace trains for the time warm and then for a window. On a busy machine it repeats the window until a clock ends.
func (j *recoveryJob) pace(ctx context.Context, warm, window time.Duration) (p pace, err error) {
	if _, _, err := j.await(ctx, "training", isRecovered); err != nil {
		return p, err
	}
	if err := pause(ctx, warm); err != nil {
		return p, err
	}
	j.clocks.takeLaps()
	start := time.Now()
	var laps []lap
	for len(laps) == 0 {
		if err := pause(ctx, window); err != nil {
			return p, err
		}
		laps = j.clocks.takeLaps()
	}
	end := time.Now()
	return pace{perSecond(laps, start, end), longest(laps, start, func(int) bool { return true })}, nil
}

// savedRows returns the statistics of rows saved so far.
func (j *recoveryJob) savedRows(ctx context.Context) (all protocol.RowSaving, err error) {
	_, s, err := j.await(ctx, "training", func(s *control.Status, v *protocol.View) bool {
		return s.Saving != nil && s.Saving.Rows != nil
	})
	if err != nil {
		return all, err
	}
	return *s.Saving.Rows, nil
}

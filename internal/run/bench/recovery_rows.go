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

// rowsSample is the result of one round for a selector.
type rowsSample struct {
	lost   float64       // clocks lost, as a share of those of a job that saves nothing
	mb     float64       // saved in a window
	paused time.Duration // total pause of the shards while an eighth is chosen and copied
	pause  time.Duration // the longest clock, minus the longest without saving
	copy   time.Duration // the time to copy the bytes of one save in memory
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
		var rounds []rowsSample
		for i := range r.Rounds {
			r.progress("rows chosen by %s: round %d of %d", selector, i+1, r.Rounds)
			c, err := r.rowsRound(ctx, selector, mb)
			if err != nil {
				return err
			}
			rounds = append(rounds, c)
		}
		res := r.rowsResult(selector, mb, rounds)
		r.progress("")
		fmt.Fprintln(r.out, res.RowsLine())
		r.results.saves = append(r.results.saves, res)
	}
	return nil
}

// rowsRound trains under none and then under scar. Under scar it first waits until each row has been saved.
func (r *recoveryRun) rowsRound(ctx context.Context, selector perdure.Selector, mb int) (c rowsSample, err error) {
	var none, saving pace
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
		c.mb = float64(after.Bytes-before.Bytes) / 1e6
		stood := (after.PausedSeconds - before.PausedSeconds) * perdure.DefaultShare * float64(mb) / c.mb
		c.paused = time.Duration(stood * float64(time.Second))
		return nil
	})
	c.lost = 1 - saving.perSecond/none.perSecond
	c.pause = max(0, saving.longest-none.longest)
	c.copy = copyTime(max(1, int(float64(mb)*perdure.DefaultShare)))
	return c, err
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

// rowsResult summarizes the rounds.
func (r *recoveryRun) rowsResult(selector perdure.Selector, mb int, rounds []rowsSample) RecoveryResult {
	lost := spreadOf(rounds, func(c *rowsSample) float64 { return c.lost })
	middle := func(what func(c *rowsSample) float64) float64 { return spreadOf(rounds, what).Median }
	return RecoveryResult{
		Recovery: "scar:C,1/8," + string(selector), Rounds: r.Rounds, Servers: r.Servers, Workers: r.Workers,
		Shards: r.Shards, MB: mb,
		Rows: &rowCosts{
			Lost: lost.Median, LostMin: lost.Min, LostMax: lost.Max,
			MB:          middle(func(c *rowsSample) float64 { return c.mb }),
			StoodMs:     middle(func(c *rowsSample) float64 { return milliseconds(c.paused) }),
			StoodOfCopy: middle(func(c *rowsSample) float64 { return float64(c.paused) / float64(c.copy) }),
			PauseMs:     middle(func(c *rowsSample) float64 { return milliseconds(c.pause) }),
			CopyMs:      middle(func(c *rowsSample) float64 { return milliseconds(c.copy) }),
			PauseOfCopy: middle(func(c *rowsSample) float64 { return float64(c.pause) / float64(c.copy) }),
		},
	}
}

// RowsLine formats the result of saving rows individually.
func (r *RecoveryResult) RowsLine() string {
	c := r.Rows
	return fmt.Sprintf("%-21s  %.1f %% (%.1f to %.1f)  %.0f MB  paused %.1f ms, %.2f of a copy's %.1f ms; longest "+
		"clock +%.1f ms",
		r.Recovery, 100*c.Lost, 100*c.LostMin, 100*c.LostMax, c.MB, c.StoodMs, c.StoodOfCopy, c.CopyMs, c.PauseMs)
}

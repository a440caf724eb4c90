package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/settings"
)

// This file measures the cost of checkpoints. A job trains a large table, reaches a cut at which all of it must be
// written, and trains for as long again. Then the same amount is written to a plain file while the job trains.
const (
	saveMB        = 500  // default of --mb
	saveMBPerS    = 50.0 // 500 MB every 10 s: determines the time observed before and after the cut
	minSaveWindow = time.Second
	saveTries     = 3 // copies in memory and to a plain file; the median counts
	rawChunkBytes = 1 << 20
	saveAround    = time.Second // before the cut and after the checkpoint is durable, to measure the training speed
	saveWarming   = 500 * time.Millisecond
)

// allSaves measures the cost of checkpoints that are written during training, and of those for which training pauses.
func (r *recoveryRun) allSaves(ctx context.Context) error {
	mb := r.MB
	if mb == 0 {
		mb = saveMB
	}
	window := max(minSaveWindow, time.Duration(float64(mb)/saveMBPerS*float64(time.Second)))
	fmt.Fprintf(r.out, "\na checkpoint of %d MB in %v of training: clocks/s meanwhile relative to before (min to "+
		"max), and the share of clocks lost until it is durable; the longest pause until it is durable (and in an "+
		"equal time before), and the ratio to copying as much in memory; MB/s, and the ratio to a plain file written "+
		"in the same run\n", mb, window)
	for _, async := range []bool{true, false} {
		name := "checkpoint:C"
		if async {
			name += ",async"
		}
		err := r.repeat(r.line(name, r.Servers, r.Workers, mb), "saving under "+name, (*RecoveryResult).saveLine,
			func(int) (sample, error) { return r.saveRound(ctx, async, mb, window) })
		if err != nil {
			return err
		}
	}
	return nil
}

// saveRound runs one round for a table of mb MB. A job without checkpoints first shows how long a clock takes. A second
// job then writes its first checkpoint, in the background if async is true, once about window has passed. saveRound
// returns the second job's figures.
func (r *recoveryRun) saveRound(
	ctx context.Context,
	async bool,
	mb int,
	window time.Duration,
) (s sample, err error) {
	var clock float64 // duration of a clock in seconds
	err = r.withJob(ctx, recoverNone, mb, func(ctx context.Context, j *recoveryJob) error {
		for j.reached(1).IsZero() {
			if err := pause(ctx, pollInterval); err != nil {
				return err
			}
		}
		if err := pause(ctx, saveWarming); err != nil {
			return err
		}
		j.clocks.takeLaps()
		err := pause(ctx, minSaveWindow)
		clock = float64(r.Workers) * minSaveWindow.Seconds() / float64(max(1, len(j.clocks.takeLaps())))
		return err
	})
	if err != nil {
		return s, err
	}
	every := max(2, perdure.Clock((window+saveWarming).Seconds()/clock))
	strategy := perdure.Recovery{Kind: perdure.RecoverCheckpoint, Every: every, Async: async}
	err = r.withJob(ctx, strategy, mb, func(ctx context.Context, j *recoveryJob) (err error) {
		s, err = j.measureSave(ctx, every, mb, window, filepath.Join(r.dir, "raw"))
		return err
	})
	return s, err
}

// withJob trains in a job while f runs.
func (r *recoveryRun) withJob(
	ctx context.Context, strategy perdure.Recovery, mb int, f func(context.Context, *recoveryJob) error,
) error {
	s, err := r.settings(strategy)
	if err != nil {
		return err
	}
	return r.inJob(ctx, s, func(ctx context.Context, j *recoveryJob) error {
		j.work(ctx, mb)
		return f(ctx, j)
	})
}

// inJob opens a job with settings s in a directory of its own, runs f, closes the job, and removes the directory.
func (r *recoveryRun) inJob(
	ctx context.Context, s settings.Run, f func(context.Context, *recoveryJob) error,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.jobs++
	j, err := openRecoveryJob(ctx, cancel, s, filepath.Join(r.dir, fmt.Sprint("job-", r.jobs)))
	if err != nil {
		return err
	}
	err = f(ctx, j)
	if ctx.Err() != nil {
		err = context.Cause(ctx) // the cause, instead of its consequences
	}
	return errors.Join(err, j.close(), os.RemoveAll(j.Dir().Path()))
}

// measureSave waits until the first checkpoint is durable, and until the end of the window. It measures the rate of
// clocks after the cut, relative to before; the clocks lost until the checkpoint is durable, relative to the window;
// the longest pause of training until then, in as much time before the cut, and relative to a copy of as much in
// memory; the speed of writing until it is durable, and that of a plain file while the same job trains.
func (j *recoveryJob) measureSave(
	ctx context.Context, every perdure.Clock, mb int, window time.Duration, rawFile string,
) (s sample, err error) {
	var durable time.Time
	for durable.IsZero() {
		if err := pause(ctx, pollInterval); err != nil {
			return s, err
		}
		for _, e := range j.watch.since(time.Time{}) {
			if e.Kind == "checkpoint" && durable.IsZero() {
				durable = time.Unix(0, e.UnixNs)
			}
		}
	}
	began, cut := j.reached(1), j.reached(every)
	if cut.IsZero() {
		return s, fmt.Errorf("cannot measure the checkpoint: it was durable before all workers had finished "+
			"clock %d", every)
	}
	if err := pause(ctx, time.Until(cut.Add(window))); err != nil {
		return s, err
	}
	laps := j.clocks.takeLaps()
	if from := cut.Add(-window); began.Before(from) {
		began = from
	}
	before := perSecond(laps, began, cut)
	if before == 0 {
		return s, fmt.Errorf("no clock ended in the %v before the checkpoint: the machine is too busy; "+
			"choose a smaller --mb", cut.Sub(began).Round(time.Millisecond))
	}
	perClock := time.Duration(float64(j.Settings().Job.Slots) / before * float64(time.Second))
	took := durable.Sub(cut)
	around := (perSecond(laps, cut.Add(-saveAround), cut) + perSecond(laps, durable, durable.Add(saveAround))) / 2
	lost := (1 - perSecond(laps, cut, durable)/around) * took.Seconds() / window.Seconds()
	longer := milliseconds(max(0, longestBegun(laps, cut, durable)-perClock))
	calm := milliseconds(max(0, longestEnded(laps, cut.Add(-took), cut)-perClock))
	var copies []time.Duration
	var raws []float64
	for range saveTries {
		raw, err := writeRaw(rawFile, mb)
		if err != nil {
			return s, err
		}
		raws, copies = append(raws, raw), append(copies, copyTime(mb))
	}
	whole, speed, raw := milliseconds(Median(copies)), float64(mb)/took.Seconds(), Median(raws)
	return sample{
		"save.train_ratio": perSecond(laps, cut, cut.Add(window)) / before, "save.lost": lost,
		"save.pause_ms": longer, "save.calm_ms": calm, "save.copy_ms": whole, "save.pause_of_copy": longer / whole,
		"save.mb_per_s": speed, "save.raw_mb_per_s": raw, "save.of_raw": speed / raw,
	}, nil
}

// longestBegun returns the duration of the longest lap that began before to and ended after from. Of a lap that began
// before from, only the part after from counts.
func longestBegun(laps []lap, from, to time.Time) time.Duration {
	started := slices.DeleteFunc(slices.Clone(laps), func(l lap) bool { return l.from.After(to) })
	return longest(started, from, func(int) bool { return true })
}

// longestEnded returns the duration of the longest lap that ended between from and to. Of a lap that began before from,
// only the part after from counts.
func longestEnded(laps []lap, from, to time.Time) time.Duration {
	ended := slices.DeleteFunc(slices.Clone(laps), func(l lap) bool { return l.to.After(to) })
	return longest(ended, from, func(int) bool { return true })
}

// reached returns when the last slot finished its n-th clock.
func (j *recoveryJob) reached(n perdure.Clock) (at time.Time) {
	j.clocks.mu.Lock()
	defer j.clocks.mu.Unlock()
	ended := map[int]perdure.Clock{}
	for _, l := range j.clocks.laps {
		if ended[l.number]++; ended[l.number] == n && l.to.After(at) {
			at = l.to
		}
	}
	return at
}

// writeRaw writes mb million bytes to a new file, in pieces of rawChunkBytes, and syncs it. It returns the speed in
// MB/s and removes the file.
func writeRaw(file string, mb int) (mbPerS float64, err error) {
	f, err := os.Create(file)
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	defer os.Remove(file)
	defer f.Close()
	piece := slices.Repeat([]byte{1, 2, 3, 4}, rawChunkBytes/4)
	start := time.Now()
	for left := mb * 1e6; left > 0 && err == nil; left -= len(piece) {
		_, err = f.Write(piece[:min(left, len(piece))])
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	return float64(mb) / time.Since(start).Seconds(), nil
}

// copyTime returns how long it takes to copy mb million bytes in memory. Both arrays are written beforehand, so their
// pages are already mapped.
func copyTime(mb int) time.Duration {
	from, to := slices.Repeat([]byte{1}, mb*1e6), slices.Repeat([]byte{2}, mb*1e6)
	start := time.Now()
	copy(to, from)
	return time.Since(start)
}

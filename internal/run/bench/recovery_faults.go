package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/locate"
)

// RecoveryResult is one line of the results: a strategy and a failure. Times are in milliseconds since the failure.
// Values that were not measured are null.
type RecoveryResult struct {
	Recovery string `json:"recovery"`
	Trained  string `json:"train_workload"` // workload for the training speed
	Fault    string `json:"fault"`          // "": faults were not measured
	Rounds   int    `json:"rounds"`
	Servers  int    `json:"servers"`
	Workers  int    `json:"workers"`
	Shards   int    `json:"shards"`
	MB       int    `json:"mb"`

	// until the coordinator noticed or, for the coordinator itself, its parent; null: no need to notice
	DetectedMsMedian *float64 `json:"detected_ms_median"`
	// The time for which an affected shard was unavailable: the longest wait of a read of it, or the longest time
	// without the end of a clock, whichever is longer.
	ServingAgainMsMedian *float64 `json:"serving_again_ms_median"`
	ServingAgainMsMax    *float64 `json:"serving_again_ms_max"`
	LongestGetMsMedian   *float64 `json:"longest_get_ms_median"` // of an affected shard
	LongestGetMsMax      *float64 `json:"longest_get_ms_max"`
	LongestClockMsMedian *float64 `json:"longest_clock_ms_median"` // from one end of a clock to the next
	LongestClockMsMax    *float64 `json:"longest_clock_ms_max"`

	TrainRatio    *float64 `json:"train_ratio"` // training speed, relative to none
	TrainRatioMin *float64 `json:"train_ratio_min"`
	TrainRatioMax *float64 `json:"train_ratio_max"`
	PushRatio     *float64 `json:"push_ratio"` // speed of pushes of 4 MiB, relative to none
	PushRatioMin  *float64 `json:"push_ratio_min"`
	PushRatioMax  *float64 `json:"push_ratio_max"`

	// For servers that joined chains: GB (10⁹ bytes of values) copied per second, and reads and clocks meanwhile,
	// relative to before.
	CatchUpGBPerS     *float64 `json:"catch_up_gb_per_s"`
	CatchUpReadRatio  *float64 `json:"catch_up_read_ratio"`
	CatchUpClockRatio *float64 `json:"catch_up_clock_ratio"`
	// The same for a plain copy of as many bytes from this process to another while the same job trains, and the
	// servers' speed relative to it.
	CatchUpRawGBPerS     *float64 `json:"catch_up_raw_gb_per_s"`
	CatchUpRawReadRatio  *float64 `json:"catch_up_raw_read_ratio"`
	CatchUpRawClockRatio *float64 `json:"catch_up_raw_clock_ratio"`
	CatchUpOfRaw         *float64 `json:"catch_up_of_raw"`

	Save *saveCosts `json:"save"`
	Rows *rowCosts  `json:"rows"`

	Drain *drainCosts `json:"drain"`

	// For the shards of a killed server under stateless: the time until all serve again with ReplayMB of updates to
	// read, and with none; the speed of reading, from the difference of the two (null if some round had none); and the
	// speed of a reader that discards the updates.
	ReplayServingMs    *float64 `json:"replay_serving_ms"`
	ReplayServingMsMin *float64 `json:"replay_serving_ms_min"`
	ReplayServingMsMax *float64 `json:"replay_serving_ms_max"`
	ReplayEmptyMs      *float64 `json:"replay_empty_ms"`
	ReplayEmptyMsMin   *float64 `json:"replay_empty_ms_min"`
	ReplayEmptyMsMax   *float64 `json:"replay_empty_ms_max"`
	ReplayMB           *float64 `json:"replay_mb"`
	ReplayMBPerS       *float64 `json:"replay_mb_per_s"`
	ReplayMBPerSMin    *float64 `json:"replay_mb_per_s_min"`
	ReplayMBPerSMax    *float64 `json:"replay_mb_per_s_max"`
	ReplayBareMBPerS   *float64 `json:"replay_bare_mb_per_s"`
	ReplayOfBare       *float64 `json:"replay_of_bare"`
}

// saveCosts measures a first checkpoint of all MB: the rate of clocks after the cut, relative to before; the clocks
// lost until the checkpoint is durable, relative to the window; the longest pause of training until then, in as much
// time before the cut, and relative to a copy of as much in memory; the speed of writing until it is durable, and that
// of a plain file while the same job trains.
type saveCosts struct {
	TrainRatio    float64 `json:"train_ratio"`
	TrainRatioMin float64 `json:"train_ratio_min"`
	TrainRatioMax float64 `json:"train_ratio_max"`
	Lost          float64 `json:"lost"`
	LostMin       float64 `json:"lost_min"`
	LostMax       float64 `json:"lost_max"`
	PauseMs       float64 `json:"pause_ms"`
	CalmMs        float64 `json:"calm_ms"`
	CopyMs        float64 `json:"copy_ms"`
	PauseOfCopy   float64 `json:"pause_of_copy"`
	MBPerS        float64 `json:"mb_per_s"`
	RawMBPerS     float64 `json:"raw_mb_per_s"`
	OfRaw         float64 `json:"of_raw"`
}

// rowCosts measures rows that are saved individually, as many bytes per window as all rows have: the clocks lost,
// relative to a job that saves nothing; the MB saved in that time; the total pause of the shards per eighth of the
// rows; the longest clock beyond that of the other job, which includes the load of writing on cores and disk; and the
// time to copy an eighth of the rows.
type rowCosts struct {
	Lost        float64 `json:"lost"`
	LostMin     float64 `json:"lost_min"`
	LostMax     float64 `json:"lost_max"`
	MB          float64 `json:"mb"`
	StoodMs     float64 `json:"stood_ms"`
	StoodOfCopy float64 `json:"stood_of_copy"`
	PauseMs     float64 `json:"pause_ms"`
	CopyMs      float64 `json:"copy_ms"`
	PauseOfCopy float64 `json:"pause_of_copy"`
}

// quietPeriod is how long a job is observed before a failure and after the recovery.
const quietPeriod = 250 * time.Millisecond

// outage is the result of one round.
type outage struct {
	detected   time.Duration // below 0: not reported
	get, clock time.Duration
	catchUp    catchUp
	raw        catchUp      // a plain copy of as much, afterwards
	drained    *drainSample // nil: no server was asked to hand over
}

func (r *recoveryRun) allFaults(ctx context.Context) error {
	fmt.Fprintf(r.out, "\nmilliseconds: median (maximum); the longest read of an affected shard, and the longest "+
		"time between the ends of two clocks\n")
	fmt.Fprintln(r.out, strings.TrimRight(fmt.Sprintf(faultColumns, "recovery", "fault", "noticed", "serves again",
		"longest read", "longest clock", r.joinHeading()), " "))
	for _, strategy := range r.strategies {
		for _, f := range r.faults {
			if !f.applies(strategy) {
				continue
			}
			res, err := r.measureFault(ctx, strategy, &f)
			if err != nil {
				return err
			}
			r.progress("")
			fmt.Fprintln(r.out, res.Line())
			r.results.faulty = append(r.results.faulty, res)
		}
	}
	return nil
}

// measureFault runs all rounds of a failure on a job of its own.
func (r *recoveryRun) measureFault(
	ctx context.Context, strategy perdure.Recovery, f *failure,
) (res RecoveryResult, err error) {
	r.progress("%s %s: starting", strategy, f.name)
	err = r.withJob(ctx, strategy, r.MB, func(ctx context.Context, j *recoveryJob) error {
		if r.Snapshot {
			j.rawDir = r.dir
		}
		rng := rand.New(rand.NewPCG(r.Seed, uint64(r.jobs)))
		var rounds []outage
		for i := range r.Rounds {
			r.progress("%s %s: round %d of %d", strategy, f.name, i+1, r.Rounds)
			o, err := j.round(ctx, f, rng.IntN)
			if err != nil {
				return err
			}
			rounds = append(rounds, o)
		}
		res = r.faultResult(strategy, f, rounds)
		return nil
	})
	return res, err
}

// round injects a failure when the job is sound, and waits until it is sound again.
func (j *recoveryJob) round(ctx context.Context, f *failure, draw func(n int) int) (o outage, err error) {
	if _, _, err = j.await(ctx, f.name, isRecovered); err != nil {
		return o, err
	}
	j.gets.takeLaps()
	j.clocks.takeLaps()
	if err := pause(ctx, quietPeriod); err != nil {
		return o, err
	}
	view, status, err := j.await(ctx, f.name, isRecovered)
	if err != nil {
		return o, err
	}
	target, affected := f.victim(&view, j.Settings().Job.Servers, draw)
	over, from := j.recoveredAfter(&status, target), time.Now()
	j.Job().AddFault(supervisor.Fault{Kind: f.kind, Target: target}) // when the first clock begins, which is now
	_, _, err = j.await(ctx, f.name, func(s *control.Status, v *protocol.View) bool {
		return over(s) && isRecovered(s, v)
	})
	if err == nil {
		err = pause(ctx, quietPeriod)
	}
	if err != nil {
		return o, err
	}
	sent := j.watch.since(from)
	at := slices.IndexFunc(sent, func(e wire.Event) bool { return e.Kind == "fault" })
	if at < 0 {
		return o, fmt.Errorf("bench: the failure %s of %s was not injected", f.name, target)
	}
	struck := time.Unix(0, sent[at].UnixNs)
	gets, clocks := j.gets.takeLaps(), j.clocks.takeLaps()
	o = outage{
		detected: j.detected(sent[at:], target, struck),
		get: longest(gets, struck, func(shard int) bool {
			return slices.Contains(affected, perdure.ShardID(shard))
		}),
		clock:   longest(clocks, struck, func(int) bool { return true }),
		catchUp: newCatchUp(sent[at:], j.shardBytes(), gets, clocks, struck),
	}
	if j.rawDir == "" {
		return o, nil
	}
	if f.kind == supervisor.FaultTerm {
		if o.drained, err = j.measureDrain(ctx, serverOf(&status, target), sent[at:], struck); err != nil {
			return o, err
		}
	}
	if o.catchUp.bytes > 0 {
		o.raw, err = j.copyRaw(ctx, o.catchUp.bytes)
	}
	return o, err
}

// recoveredAfter returns a condition for the end of a failure, in addition to a sound job: the target has a new
// process. The log does not appear in the status; for it the parent must report that it serves, and every slot must
// then have finished another clock.
func (j *recoveryJob) recoveredAfter(status *control.Status, target supervisor.Target) func(s *control.Status) bool {
	before, failures, clock := locate.ProcessOf(status, target), len(j.Job().Timeline()), status.Clock
	if target.Role == supervisor.RoleLog {
		return func(s *control.Status) bool {
			sent := j.Job().Timeline()
			if len(sent) == failures || sent[len(sent)-1].Serving == nil {
				clock = s.Clock
				return false
			}
			return s.Clock > clock+1
		}
	}
	return func(s *control.Status) bool {
		now := locate.ProcessOf(s, target)
		return now.PID != before.PID || now.Incarnation != before.Incarnation
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// detected returns the time until the failure was detected, or -1 if no event reports it.
func (j *recoveryJob) detected(sent []wire.Event, t supervisor.Target, struck time.Time) time.Duration {
	if t.Role == wire.RoleCoordinator || t.Role == supervisor.RoleLog {
		failures := j.Job().Timeline() // its parent detects it
		if last := failures[len(failures)-1]; last.Detected != nil {
			return *last.Detected
		}
		return -1
	}
	for _, e := range sent {
		if e.Target == t.String() && (e.Kind == "detected" || e.Kind == "suspected") {
			return time.Unix(0, e.UnixNs).Sub(struck)
		}
	}
	return -1
}

// faultResult summarizes the rounds.
func (r *recoveryRun) faultResult(strategy perdure.Recovery, f *failure, rounds []outage) RecoveryResult {
	res := r.blank(strategy)
	res.Fault = f.name
	var detected, serving, gets, clocks []float64
	for _, o := range rounds {
		if o.detected >= 0 {
			detected = append(detected, milliseconds(o.detected))
		}
		gets, clocks = append(gets, milliseconds(o.get)), append(clocks, milliseconds(o.clock))
		serving = append(serving, milliseconds(max(o.get, o.clock)))
	}
	res.DetectedMsMedian, _ = medianAndMax(detected)
	res.ServingAgainMsMedian, res.ServingAgainMsMax = medianAndMax(serving)
	res.LongestGetMsMedian, res.LongestGetMsMax = medianAndMax(gets)
	res.LongestClockMsMedian, res.LongestClockMsMax = medianAndMax(clocks)
	if r.Snapshot {
		res.addCopies(rounds)
		res.addDrains(rounds)
	}
	return res
}

const faultColumns = "%-21s  %-16s  %8s  %-18s  %-18s  %-18s  %s"

// Line formats the result.
func (r *RecoveryResult) Line() string {
	noticed := "-"
	if r.DetectedMsMedian != nil {
		noticed = strconv.FormatFloat(*r.DetectedMsMedian, 'f', 1, 64)
	}
	pair := func(middle, most *float64) string { return fmt.Sprintf("%.1f (%.1f)", *middle, *most) }
	return strings.TrimRight(fmt.Sprintf(faultColumns, r.Recovery, r.Fault, noticed,
		pair(r.ServingAgainMsMedian, r.ServingAgainMsMax),
		pair(r.LongestGetMsMedian, r.LongestGetMsMax), pair(r.LongestClockMsMedian, r.LongestClockMsMax), r.joining()),
		" ") + r.drain()
}

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
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/reach"
)

// RecoveryResult is one line of the results: a strategy and what fails under it.
// Times are in milliseconds since the failure. What was not measured is null.
type RecoveryResult struct {
	Recovery string `json:"recovery"`
	Trained  string `json:"train_workload"` // what the speed of training was measured with
	Fault    string `json:"fault"`          // "": faults were not measured
	Rounds   int    `json:"rounds"`
	Servers  int    `json:"servers"`
	Workers  int    `json:"workers"`
	Shards   int    `json:"shards"`
	MB       int    `json:"mb"`

	// until the coordinator, or of the coordinator its parent, noticed; null: it need not notice
	DetectedMsMedian *float64 `json:"detected_ms_median"`
	// How long a shard that was hit did not serve: the longest that a read of it
	// waited, or that no clock of the training ended, whichever is longer.
	ServingAgainMsMedian *float64 `json:"serving_again_ms_median"`
	ServingAgainMsMax    *float64 `json:"serving_again_ms_max"`
	LongestGetMsMedian   *float64 `json:"longest_get_ms_median"` // of a shard that was hit
	LongestGetMsMax      *float64 `json:"longest_get_ms_max"`
	LongestClockMsMedian *float64 `json:"longest_clock_ms_median"` // from one end of a clock to the next
	LongestClockMsMax    *float64 `json:"longest_clock_ms_max"`

	TrainRatio    *float64 `json:"train_ratio"` // speed of training, of that under none
	TrainRatioMin *float64 `json:"train_ratio_min"`
	TrainRatioMax *float64 `json:"train_ratio_max"`
	PushRatio     *float64 `json:"push_ratio"` // speed of pushes of 4 MiB, of that under none
	PushRatioMin  *float64 `json:"push_ratio_min"`
	PushRatioMax  *float64 `json:"push_ratio_max"`

	// Of servers that joined chains: GB (10⁹ bytes of values) that they copied in a
	// second, and reads of rows and clocks meanwhile, of those in a second before.
	CatchUpGBPerS     *float64 `json:"catch_up_gb_per_s"`
	CatchUpReadRatio  *float64 `json:"catch_up_read_ratio"`
	CatchUpClockRatio *float64 `json:"catch_up_clock_ratio"`
	// The same of a plain copy of as many bytes from this process to another, while the
	// same job trained and was read; and how much of its speed the servers had in a round.
	CatchUpRawGBPerS     *float64 `json:"catch_up_raw_gb_per_s"`
	CatchUpRawReadRatio  *float64 `json:"catch_up_raw_read_ratio"`
	CatchUpRawClockRatio *float64 `json:"catch_up_raw_clock_ratio"`
	CatchUpOfRaw         *float64 `json:"catch_up_of_raw"`

	Save *saveCosts `json:"save"`
	Rows *rowCosts  `json:"rows"`

	Drain *drainCosts `json:"drain"`

	// Of a killed server's shards under stateless: until all serve again with ReplayMB of
	// updates to read, and with none; how fast these were read in the time between the two
	// (null: in some round there was none), and how fast a reader has them that throws them away.
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

// saveCosts are of a first checkpoint, of all MB: clocks in a second after the cut, of those before, and
// how many were lost until it was durable, of those of as long a time; the longest pause of training until then,
// in as much time before the cut, and how long a copy of as much in memory takes; how fast it was
// written until it was durable, and how fast a plain file is
// while the same job trains.
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

// rowCosts are of rows that are saved by themselves, as many bytes in 10 s as all rows have: clocks lost, of
// those of a job that saves nothing; how much was saved in that time; for how long shards stood for
// an eighth of the rows, all together; the longest clock beyond that other job's, in which is also
// what writing takes of cores and disk; and how long a copy of an eighth of the rows takes.
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

// calm is how long a job is watched before a failure, and after it is over.
const calm = 250 * time.Millisecond

// outage is what one round measured.
type outage struct {
	detected   time.Duration // below 0: nobody told
	get, clock time.Duration
	catchUp    catchUp
	raw        catchUp  // a plain copy of as much, afterwards
	drained    *drained // nil: nobody was to hand over
}

func (r *recoveryRun) allFaults(ctx context.Context) error {
	fmt.Fprintf(r.out, "\nmilliseconds: median (most); a read of a shard that was hit, and the time between two "+
		"ends of clocks, at their longest\n")
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
			r.got.faulty = append(r.got.faulty, res)
		}
	}
	return nil
}

// measureFault takes a job of its own through all rounds of a failure.
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

// round makes something fail once the job is sound, and watches until it is again.
func (j *recoveryJob) round(ctx context.Context, f *failure, draw func(n int) int) (o outage, err error) {
	if _, _, err = j.await(ctx, f.name, sound); err != nil {
		return o, err
	}
	j.gets.rewind()
	j.clocks.rewind()
	if err := pause(ctx, calm); err != nil {
		return o, err
	}
	view, status, err := j.await(ctx, f.name, sound)
	if err != nil {
		return o, err
	}
	target, affected := f.victim(&view, j.Settings().Job.Servers, draw)
	over, from := j.overAfter(&status, target), time.Now()
	j.Job().AddFault(supervisor.Fault{Kind: f.kind, Target: target}) // when the first clock begins: now
	_, _, err = j.await(ctx, f.name, func(s *control.Status, v *words.View) bool {
		return over(s) && sound(s, v)
	})
	if err == nil {
		err = pause(ctx, calm)
	}
	if err != nil {
		return o, err
	}
	told := j.watch.since(from)
	at := slices.IndexFunc(told, func(e wire.Event) bool { return e.Kind == "fault" })
	if at < 0 {
		return o, fmt.Errorf("bench: the failure %s of %s was not carried out", f.name, target)
	}
	struck := time.Unix(0, told[at].UnixNs)
	gets, clocks := j.gets.rewind(), j.clocks.rewind()
	o = outage{
		detected: j.detected(told[at:], target, struck),
		get: longest(gets, struck, func(shard int) bool {
			return slices.Contains(affected, perdure.ShardID(shard))
		}),
		clock:   longest(clocks, struck, func(int) bool { return true }),
		catchUp: newCatchUp(told[at:], j.shardBytes(), gets, clocks, struck),
	}
	if j.rawDir == "" {
		return o, nil
	}
	if f.kind == supervisor.FaultTerm {
		if o.drained, err = j.drainOf(ctx, serverOf(&status, target), told[at:], struck); err != nil {
			return o, err
		}
	}
	if o.catchUp.bytes > 0 {
		o.raw, err = j.copyRaw(ctx, o.catchUp.bytes)
	}
	return o, err
}

// overAfter returns what says that a failure of a target is over, beside that the job is
// sound: that it has another process, or, where no status speaks of it, that its parent
// says so and every slot has ended a clock that it began since.
func (j *recoveryJob) overAfter(status *control.Status, target supervisor.Target) func(s *control.Status) bool {
	before, failures, clock := reach.ProcessOf(status, target), len(j.Job().Timeline()), status.Clock
	if target.Role == supervisor.RoleLog {
		return func(s *control.Status) bool {
			told := j.Job().Timeline()
			if len(told) == failures || told[len(told)-1].Serving == nil {
				clock = s.Clock
				return false
			}
			return s.Clock > clock+1
		}
	}
	return func(s *control.Status) bool {
		now := reach.ProcessOf(s, target)
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

// detected is how long it took until somebody noticed; below 0: nobody told.
func (j *recoveryJob) detected(told []wire.Event, t supervisor.Target, struck time.Time) time.Duration {
	if t.Role == wire.RoleCoordinator || t.Role == supervisor.RoleLog {
		failures := j.Job().Timeline() // its parent notices
		if last := failures[len(failures)-1]; last.Detected != nil {
			return *last.Detected
		}
		return -1
	}
	for _, e := range told {
		if e.Target == t.String() && (e.Kind == "detected" || e.Kind == "suspected") {
			return time.Unix(0, e.UnixNs).Sub(struck)
		}
	}
	return -1
}

// faultResult sums rounds up.
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

// Line is the result as people read it.
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

package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/locate"
)

// quietPeriod is how long a job is observed before a failure and after the recovery.
const quietPeriod = 250 * time.Millisecond

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
			if err := r.measureFault(ctx, strategy, &f); err != nil {
				return err
			}
		}
	}
	return nil
}

// measureFault runs all rounds of a failure on a job of its own.
func (r *recoveryRun) measureFault(ctx context.Context, strategy perdure.Recovery, f *failure) error {
	r.progress("%s %s: starting", strategy, f.name)
	return r.withJob(ctx, strategy, r.MB, func(ctx context.Context, j *recoveryJob) error {
		if r.Snapshot {
			j.rawDir = r.dir
		}
		rng := rand.New(rand.NewPCG(r.Seed, uint64(r.jobs)))
		res := r.blank(strategy)
		res.Fault = f.name
		return r.repeat(res, fmt.Sprintf("%s %s", strategy, f.name), (*RecoveryResult).faultLine,
			func(int) (sample, error) { return j.round(ctx, f, rng.IntN) })
	})
}

// round injects a failure when the job is sound, and waits until it is sound again.
func (j *recoveryJob) round(ctx context.Context, f *failure, draw func(n int) int) (o sample, err error) {
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
	get := longest(gets, struck, func(shard int) bool { return slices.Contains(affected, perdure.ShardID(shard)) })
	clock := longest(clocks, struck, func(int) bool { return true })
	o = sample{
		"longest_get_ms": milliseconds(get), "longest_clock_ms": milliseconds(clock),
		"serving_again_ms": milliseconds(max(get, clock)),
	}
	if after := j.detected(sent[at:], target, struck); after >= 0 {
		o["detected_ms"] = milliseconds(after)
	}
	if j.rawDir == "" {
		return o, nil
	}
	if f.kind == supervisor.FaultTerm {
		if err = j.measureDrain(ctx, o, locate.ProcessOf(&status, target), sent[at:], struck); err != nil {
			return o, err
		}
	}
	if bytes := o.addCatchUp(sent[at:], j.shardBytes(), gets, clocks, struck); bytes > 0 {
		err = j.copyRaw(ctx, o, bytes)
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

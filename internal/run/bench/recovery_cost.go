package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/perdure/perdure"
)

var recoverNone = perdure.Recovery{Kind: perdure.RecoverNone}

// trainRatios trains under each strategy and none, in a different order in every round, and compares each speed with
// that of none in the same round.
func (r *recoveryRun) trainRatios(ctx context.Context) error {
	fmt.Fprintf(r.out, "\n%s, batch %d, %d clocks: samples/s, median of the rounds; ratio to none in the same round, "+
		"median (min to max)\n", r.Workload, r.Batch, r.Clocks)
	all := r.againstNone()
	speeds := map[perdure.Recovery][]float64{}
	for round := range r.Rounds {
		for i := range all {
			strategy := all[(round+i)%len(all)]
			r.progress("training under %s: round %d of %d", strategy, round+1, r.Rounds)
			seconds, err := trainProgram(ctx, "", r.Workload,
				filepath.Join(r.dir, fmt.Sprintf("train-%d-%d", round, i)),
				"--workers", fmt.Sprint(r.Workers), "--servers", fmt.Sprint(r.Servers),
				"--shards", fmt.Sprint(r.Shards), "--consistency", r.Consistency,
				"--recovery", strategy.String(), "--clocks", fmt.Sprint(r.Clocks),
				"--batch", fmt.Sprint(r.Batch))
			if err != nil {
				return err
			}
			speeds[strategy] = append(speeds[strategy], float64(r.Batch*r.Workers)*float64(r.Clocks)/seconds)
		}
	}
	r.progress("")
	for _, strategy := range r.strategies {
		fmt.Fprintf(r.out, "%-21s  %10.0f samples/s  %s\n", strategy, Median(speeds[strategy]),
			r.compareSpeeds("train_ratio", strategy, speeds))
	}
	return nil
}

// againstNone returns the strategies to measure, and none.
func (r *recoveryRun) againstNone() []perdure.Recovery {
	if slices.Contains(r.strategies, recoverNone) {
		return r.strategies
	}
	return append([]perdure.Recovery{recoverNone}, r.strategies...)
}

// compareSpeeds records the speeds of a strategy relative to those of none, round by round, and returns their spread.
func (r *recoveryRun) compareSpeeds(
	figure string, strategy perdure.Recovery, speeds map[perdure.Recovery][]float64,
) spread {
	var parts []float64
	for round, speed := range speeds[strategy] {
		parts = append(parts, speed/speeds[recoverNone][round])
		r.results.ratios[strategy] = append(r.results.ratios[strategy], sample{figure: parts[round]})
	}
	return newSpread(parts)
}

const (
	pushBlock  = "4MiB"
	pushBudget = 50 * time.Millisecond // for the pushes of one turn under one strategy
	pushTurns  = 6                     // turns of each strategy in a round, so that other load affects both
)

// pushRatios pushes blocks under each strategy and under none. Both jobs run all the time, but only one is used at a
// time.
func (r *recoveryRun) pushRatios(ctx context.Context) error {
	fmt.Fprintf(r.out, "\npushes of %s, asp: GB/s, median of the rounds; ratio to none in the same round, median "+
		"(min to max)\n", pushBlock)
	for _, strategy := range r.strategies {
		r.progress("pushing under %s", strategy)
		speeds, err := r.pushAgainstNone(ctx, strategy)
		if err != nil {
			return err
		}
		r.progress("")
		fmt.Fprintf(r.out, "%-21s  %10.3f GB/s       %s\n", strategy, Median(speeds[strategy]),
			r.compareSpeeds("push_ratio", strategy, speeds))
	}
	return nil
}

func (r *recoveryRun) pushAgainstNone(
	ctx context.Context, strategy perdure.Recovery,
) (speeds map[perdure.Recovery][]float64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	sides := []perdure.Recovery{recoverNone}
	if strategy != recoverNone {
		sides = append(sides, strategy)
	}
	pushers := map[perdure.Recovery]*pusher{}
	defer func() {
		if ctx.Err() != nil {
			err = context.Cause(ctx) // the cause, instead of its consequences
		}
		for _, p := range pushers {
			err = errors.Join(err, p.job.Close())
		}
	}()
	for _, side := range sides {
		if pushers[side], err = r.startPusher(ctx, cancel, side); err != nil {
			delete(pushers, side)
			return nil, err
		}
	}
	speeds = map[perdure.Recovery][]float64{}
	for range r.Rounds {
		done := make([]roundWork, len(sides))
		for turn := range pushTurns * len(sides) {
			at := turn % len(sides)
			s, err := pushers[sides[at]].push(ctx)
			if err != nil {
				return nil, err
			}
			done[at].Ops, done[at].Took = done[at].Ops+s.Ops, done[at].Took+s.Took
		}
		for i, side := range sides {
			speeds[side] = append(speeds[side], done[i].GBPerSecond(pushers[side].measured.Size.Bytes))
		}
	}
	for _, p := range pushers {
		if err := errors.Join(p.job.Undisturbed(), p.table.Verify(ctx)); err != nil {
			return nil, err
		}
	}
	return speeds, nil
}

// pushedBlock returns the size of the blocks to push.
func pushedBlock() moveSize {
	return moveSizes[slices.IndexFunc(moveSizes, func(s moveSize) bool { return s.Name == pushBlock })]
}

// pushTestbed returns a bed with a table of such a block and a single connection.
func pushTestbed(shards int) movesTestbed {
	m := measurement{
		Op: "push", Rule: perdure.RuleAdd, Size: pushedBlock(), Conns: 1, Socket: "tcp",
		Shards: shards,
	}
	return movesTestbed{
		Conns: m.Conns, Shards: m.Shards, Socket: m.Socket, Size: m.Size, Rule: m.Rule, Lines: []measurement{m},
	}
}

// pusher is a job to push blocks to.
type pusher struct {
	job      *movesJob
	table    *movedTable
	measured measurement
}

// startPusher starts a job and warms it up.
func (r *recoveryRun) startPusher(
	ctx context.Context, cancel context.CancelCauseFunc, strategy perdure.Recovery,
) (p *pusher, err error) {
	bed := pushTestbed(max(largeShards, r.Servers))
	bed.Servers, bed.Recovery = r.Servers, strategy.String()
	m := bed.Lines[0]
	r.jobs++
	job, err := startMovesJob(ctx, cancel, filepath.Join(r.dir, fmt.Sprint("job-", r.jobs)), &bed, r.Version)
	if err != nil {
		return nil, err
	}
	p = &pusher{job: job, measured: m}
	if p.table, err = makeTable(ctx, job.Client, &bed); err == nil {
		_, err = p.push(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, job.Close())
	}
	return p, nil
}

// push pushes for the time of one turn.
func (p *pusher) push(ctx context.Context) (roundWork, error) {
	o := p.table.Operation(ctx, &p.measured)
	var laps []time.Duration
	return o.Repeat(ctx, pushBudget, &laps)
}

// blank returns a result of a strategy without a failure.
func (r *recoveryRun) blank(strategy perdure.Recovery) RecoveryResult {
	res := r.line(strategy.String(), r.Servers, r.Workers, r.MB)
	res.Trained, res.samples = r.Workload, slices.Clone(r.results.ratios[strategy])
	return res
}

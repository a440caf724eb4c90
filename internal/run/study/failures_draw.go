package study

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/supervisor"
)

// How the time between two failures is distributed: of a machine that does not age; of one that does, or that is
// rather taken when it is new; and, by clocks, of one that fails in each clock with the same probability.
const (
	lawExponential = "exponential"
	lawWeibull     = "weibull"
	lawGeometric   = "geometric"
)

// faultDraw draws the times between failures.
type faultDraw struct {
	Law        string
	Mean       time.Duration // of Exponential
	Scale      time.Duration // of Weibull
	Shape      float64       // of Weibull: below 1 young machines fail more, above 1 old ones
	MeanClocks float64       // of Geometric
	// OfJob has one draw for the whole job, whose failures hit one machine each, of those that are there;
	// else each machine has draws of its own.
	OfJob bool
	Who   string        // servers, workers or machines
	How   string        // kill, term or freeze
	Away  time.Duration // until the machine is back; 0: at once
	Until time.Duration // 0: as long as the job runs
}

// mostFaults bounds the faults of one run, far beyond use: a mean that was mistyped is told, and not tried.
const mostFaults = 10_000

// clockTime is as far as a draw got: in seconds, or in clocks.
type clockTime = float64

func (d *faultDraw) faults(job faultJob) (all []supervisor.Fault, err error) {
	end, err := d.check(job)
	if err != nil {
		return nil, err
	}
	targets, err := targetsOf(d.Who, job)
	if err != nil {
		return nil, err
	}
	kind, err := failureKind(d.How)
	if err != nil {
		return nil, err
	}
	fail := func(t supervisor.Target, at clockTime) error {
		if len(all) == mostFaults {
			return fmt.Errorf("%w: the plan has more than %d failures in a run; make the time between two longer",
				perdure.ErrUsage, mostFaults)
		}
		f := supervisor.Fault{Kind: kind, Target: t, For: d.Away}
		if d.Law == lawGeometric {
			f.When = supervisor.When{ByClock: true, Clock: perdure.Clock(at)}
		} else {
			f.When = supervisor.When{Since: wholeSeconds(at)}
		}
		all = append(all, f)
		return nil
	}
	if d.OfJob {
		return all, d.ofJob(job, targets, end, fail)
	}
	for i, t := range targets {
		r := rand.New(rand.NewPCG(job.Seed, uint64(i)))
		for at := d.next(r); at < end; at += d.away() + d.next(r) {
			if err := fail(t, at); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// ofJob has one draw for all machines. A failure hits one that is there; where none is, it hits nobody.
func (d *faultDraw) ofJob(
	job faultJob, targets []supervisor.Target, end clockTime, fail func(supervisor.Target, clockTime) error,
) error {
	r := rand.New(rand.NewPCG(job.Seed, math.MaxUint64))
	back := make([]clockTime, len(targets))
	for at := d.next(r); at < end; at += d.next(r) {
		var there []int
		for i := range targets {
			if back[i] <= at {
				there = append(there, i)
			}
		}
		if len(there) == 0 {
			continue
		}
		i := there[r.IntN(len(there))]
		back[i] = at + d.away()
		if err := fail(targets[i], at); err != nil {
			return err
		}
	}
	return nil
}

// away is for how long a machine that failed cannot fail again: of clocks that is not known, and one at least.
func (d *faultDraw) away() clockTime {
	if d.Law == lawGeometric {
		return 0
	}
	return d.Away.Seconds()
}

// next draws the time to the next failure.
func (d *faultDraw) next(r *rand.Rand) clockTime {
	switch d.Law {
	case lawWeibull:
		return d.Scale.Seconds() * math.Pow(r.ExpFloat64(), 1/d.Shape)
	case lawGeometric:
		if d.MeanClocks == 1 {
			return 1
		}
		// The clocks to the first failure, when each clock has one with probability 1/mean.
		return 1 + math.Floor(-r.ExpFloat64()/math.Log1p(-1/d.MeanClocks))
	}
	return d.Mean.Seconds() * r.ExpFloat64()
}

// check says what is wrong, and until when is drawn.
func (d *faultDraw) check(job faultJob) (end clockTime, err error) {
	wrong := func(text string) (clockTime, error) { return 0, fmt.Errorf("%w: draw: %s", perdure.ErrUsage, text) }
	switch {
	case d.Away < 0 || d.Until < 0:
		return wrong("away and until are times of 0 or more")
	case d.Law == lawExponential && d.Mean <= 0:
		return wrong("exponential needs mean, the time between two failures, for example mean: 60s")
	case d.Law == lawWeibull && (d.Scale <= 0 || !(d.Shape > 0) || math.IsInf(d.Shape, 0)):
		return wrong("weibull needs scale, a time, and shape, a number above 0, for example scale: 60s and shape: 0.7")
	case d.Law == lawGeometric && (!(d.MeanClocks >= 1) || math.IsInf(d.MeanClocks, 0)):
		return wrong("geometric needs mean-clocks, the clocks between two failures, at least 1, for example 100")
	case d.Law == lawGeometric && d.Until != 0:
		return wrong("geometric is by clocks, and until is a time; leave it out")
	case d.Law == lawGeometric:
		return clockTime(job.Clocks), nil
	case d.Law != lawExponential && d.Law != lawWeibull:
		return wrong(fmt.Sprintf("%s; choose exponential, weibull or geometric", d.Law))
	case d.Until > 0:
		return d.Until.Seconds(), nil
	case job.Time > 0:
		return job.Time.Seconds(), nil
	}
	return wrong("the job does not say how long it runs; add until to the plan, for example until: 60s, or have the " +
		"job run until time:60s")
}

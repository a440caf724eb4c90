package study

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/supervisor"
)

// Distributions of the time between two failures. Machines with exponential failures do not age. Weibull describes
// machines that fail more often with age, or when they are new. Geometric counts clocks: each clock fails with the same
// probability.
const (
	lawExponential = "exponential"
	lawWeibull     = "weibull"
	lawGeometric   = "geometric"
)

// faultDraw draws the times between failures.
type faultDraw struct {
	Law        string
	Mean       time.Duration // of exponential
	Scale      time.Duration // of Weibull
	Shape      float64       // of Weibull: below 1 young machines fail more often, above 1 old ones
	MeanClocks float64       // of geometric
	// OfJob draws failures once for the whole job; each failure hits one of the machines that are up. Otherwise
	// failures are drawn for each machine separately.
	OfJob bool
	Who   string        // servers, workers or machines
	How   string        // kill, term or freeze
	Away  time.Duration // time until the machine is back; 0: immediately
	Until time.Duration // 0: as long as the job runs
}

// maxFaults limits the faults of one run. It is far above any sensible number and catches a mistyped mean.
const maxFaults = 10_000

// clockTime is a position in a run, in seconds or clocks.
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
		if len(all) == maxFaults {
			return fmt.Errorf("%w: the plan has more than %d failures in a run; increase the time between failures",
				perdure.ErrUsage, maxFaults)
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

// ofJob draws failures for the whole job. A failure hits one of the machines that are up, or none if all are down.
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

// away returns how long a failed machine cannot fail again. For geometric failures it is 0, because the duration of a
// clock is not known.
func (d *faultDraw) away() clockTime {
	if d.Law == lawGeometric {
		return 0
	}
	return d.Away.Seconds()
}

// next draws the time until the next failure.
func (d *faultDraw) next(r *rand.Rand) clockTime {
	switch d.Law {
	case lawWeibull:
		return d.Scale.Seconds() * math.Pow(r.ExpFloat64(), 1/d.Shape)
	case lawGeometric:
		if d.MeanClocks == 1 {
			return 1
		}
		// The number of clocks until the first failure, with probability 1/mean at each clock.
		return 1 + math.Floor(-r.ExpFloat64()/math.Log1p(-1/d.MeanClocks))
	}
	return d.Mean.Seconds() * r.ExpFloat64()
}

// check returns an error if the settings are invalid, and otherwise the end of the time in which failures occur.
func (d *faultDraw) check(job faultJob) (end clockTime, err error) {
	wrong := func(text string) (clockTime, error) { return 0, fmt.Errorf("%w: draw: %s", perdure.ErrUsage, text) }
	switch {
	case d.Away < 0 || d.Until < 0:
		return wrong("away and until must not be negative")
	case d.Law == lawExponential && d.Mean <= 0:
		return wrong("exponential needs mean, the mean time between failures, for example mean: 60s")
	case d.Law == lawWeibull && (d.Scale <= 0 || !(d.Shape > 0) || math.IsInf(d.Shape, 0)):
		return wrong("weibull needs scale, a time, and shape, a number above 0, for example scale: 60s and shape: 0.7")
	case d.Law == lawGeometric && (!(d.MeanClocks >= 1) || math.IsInf(d.MeanClocks, 0)):
		return wrong("geometric needs mean-clocks, the mean clocks between failures, at least 1, for example 100")
	case d.Law == lawGeometric && d.Until != 0:
		return wrong("geometric counts clocks, but until is a time; remove until")
	case d.Law == lawGeometric:
		return clockTime(job.Clocks), nil
	case d.Law != lawExponential && d.Law != lawWeibull:
		return wrong(fmt.Sprintf("%s; choose exponential, weibull or geometric", d.Law))
	case d.Until > 0:
		return d.Until.Seconds(), nil
	case job.Time > 0:
		return job.Time.Seconds(), nil
	}
	return wrong("the job has no time limit; add until to the plan, for example until: 60s, or set until: time:60s " +
		"in the job")
}

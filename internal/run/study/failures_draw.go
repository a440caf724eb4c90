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
// machines that fail more often with age, or when they are new.
const (
	lawExponential = "exponential"
	lawWeibull     = "weibull"
)

// faultDraw draws the times between failures.
type faultDraw struct {
	Law   string
	Mean  time.Duration // of exponential
	Scale time.Duration // of Weibull
	Shape float64       // of Weibull: below 1 young machines fail more often, above 1 old ones
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
	fail := func(t supervisor.Target, at float64) error {
		if len(all) == maxFaults {
			return perdure.Usagef("the plan has more than %d failures in a run; increase the time between failures",
				maxFaults)
		}
		when := supervisor.When{Since: wholeSeconds(at)}
		all = append(all, supervisor.Fault{Kind: kind, Target: t, When: when, For: d.Away})
		return nil
	}
	if d.OfJob {
		return all, d.ofJob(job, targets, end, fail)
	}
	for i, t := range targets {
		r := rand.New(rand.NewPCG(job.Seed, uint64(i)))
		for at := d.next(r); at < end; at += d.Away.Seconds() + d.next(r) {
			if err := fail(t, at); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// ofJob draws failures for the whole job. A failure hits one of the machines that are up, or none if all are down.
func (d *faultDraw) ofJob(
	job faultJob, targets []supervisor.Target, end float64, fail func(supervisor.Target, float64) error,
) error {
	r := rand.New(rand.NewPCG(job.Seed, math.MaxUint64))
	back := make([]float64, len(targets))
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
		back[i] = at + d.Away.Seconds()
		if err := fail(targets[i], at); err != nil {
			return err
		}
	}
	return nil
}

// next draws the time until the next failure, in seconds.
func (d *faultDraw) next(r *rand.Rand) float64 {
	if d.Law == lawWeibull {
		return d.Scale.Seconds() * math.Pow(r.ExpFloat64(), 1/d.Shape)
	}
	return d.Mean.Seconds() * r.ExpFloat64()
}

// check returns an error if the settings are invalid, and otherwise the end of the time in which failures occur.
func (d *faultDraw) check(job faultJob) (end float64, err error) {
	wrong := func(text string) (float64, error) { return 0, perdure.Usagef("draw: %s", text) }
	switch {
	case d.Away < 0 || d.Until < 0:
		return wrong("away and until must not be negative")
	case d.Law == lawExponential && d.Mean <= 0:
		return wrong("exponential needs mean, the mean time between failures, for example mean: 60s")
	case d.Law == lawWeibull && (d.Scale <= 0 || !(d.Shape > 0) || math.IsInf(d.Shape, 0)):
		return wrong("weibull needs scale, a time, and shape, a number above 0, for example scale: 60s and shape: 0.7")
	case d.Law != lawExponential && d.Law != lawWeibull:
		return wrong(fmt.Sprintf("%s; choose exponential or weibull", d.Law))
	case d.Until > 0:
		return d.Until.Seconds(), nil
	case job.Time > 0:
		return job.Time.Seconds(), nil
	}
	return wrong("the job has no time limit; add until to the plan, for example until: 60s, or set until: time:60s " +
		"in the job")
}

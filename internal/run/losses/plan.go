// Package losses says what the death of some servers costs a training in iterations, by strategy: it trains an
// undisturbed twin in memory (package twin), loses servers in many forks of it, each at a clock that is drawn, and
// counts by how many clocks later each comes to the twin's loss for good (package itercost; Qiao, Aragam, Zhang and
// Xing, ICML 2019).
//
// A study is a function of its plan. What it tells of real servers it tries with real ones: see repeat.go.
package losses

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/twin"
)

// Plan is what is tried.
type Plan struct {
	Run        settings.Run // of the twins; its clocks are those that ε is found in
	Strategies []perdure.Recovery
	Lost       []float64 // parts of the servers, in (0, 1]
	Twins      int       // undisturbed runs, each with a seed of its own, from the run's on
	Trials     int       // failures of each twin
	Mean       float64   // of the clock of a failure, drawn from a geometric distribution
	Strike     string    // StrikeBetween or StrikeAmid
	Measure    string    // MeasureTrain or MeasureTest; "": as fits the workload
	Sample     int       // examples of the test set that a model is judged on, where the workload can
	Parallel   int
}

// What a model is judged by, at every clock.
const (
	MeasureTrain = "train" // the loss on what the clock trains on: for workloads whose clocks take all examples
	MeasureTest  = "test"  // the loss on examples that are not trained on
)

// When a failure strikes.
const (
	StrikeBetween = "between" // two clocks: the next one is computed with the rows that came back, as the paper has it
	StrikeAmid    = "amid"    // a clock: all have read, and what they add is applied to the rows that came back
)

// ε is what the undisturbed twin has from epsilonAt of its clocks on; disturbed runs go on for beyond of them, and are
// censored if they do not come to ε. A failure is at latestAt of them at the latest.
const (
	epsilonAt = 0.9
	beyond    = 1.3
	latestAt  = 0.8
)

// Check says what cannot be tried.
func (p *Plan) Check() error {
	if err := twin.Check(&p.Run); err != nil {
		return err
	}
	saves := false
	for _, r := range p.Strategies {
		job := p.Run.Job
		job.Recovery = r
		rows := recovery.RoundsOf(r)
		switch {
		case rows.Timed() || r.Auto:
			return fmt.Errorf("%w: --recovery %s; when it saves depends on time: write a number of clocks",
				perdure.ErrUsage, r)
		case !rows.Any() && (r.Kind != perdure.RecoverCheckpoint || r.Every < 1):
			return fmt.Errorf("%w: --recovery %s; what is tried is checkpoint:C, which all go back to, and "+
				"scar:C,R,SELECTOR", perdure.ErrUsage, r)
		}
		if err := recovery.Check(&job); err != nil {
			return err
		}
		saves = saves || rows.Any()
	}
	switch {
	case !saves:
		return fmt.Errorf("%w: no strategy of those that are tried saves rows by themselves; add --recovery "+
			"scar:C,R,SELECTOR", perdure.ErrUsage)
	case p.Run.Job.Clocks < 10:
		return fmt.Errorf("%w: --clocks %d; a twin needs 10 clocks at least", perdure.ErrUsage, p.Run.Job.Clocks)
	case p.Twins < 1 || p.Trials < 1 || p.Twins*p.Trials > 1e6:
		return fmt.Errorf("%w: %d twins with %d failures each; choose 1 of both at least", perdure.ErrUsage, p.Twins,
			p.Trials)
	case !(p.Mean >= 1):
		return fmt.Errorf("%w: --mean-clocks %g; choose 1 or more", perdure.ErrUsage, p.Mean)
	case p.Sample < 1:
		return fmt.Errorf("%w: --sample %d; choose 1 or more examples", perdure.ErrUsage, p.Sample)
	case p.Strike != StrikeBetween && p.Strike != StrikeAmid:
		return fmt.Errorf("%w: --strike %s; choose between or amid", perdure.ErrUsage, p.Strike)
	case !slices.Contains([]string{"", MeasureTrain, MeasureTest}, p.Measure):
		return fmt.Errorf("%w: --measure %s; choose train or test", perdure.ErrUsage, p.Measure)
	}
	for _, part := range p.Lost {
		if !(part > 0 && part <= 1) {
			return fmt.Errorf("%w: --lost %g; choose a part of the servers above 0, of 1 at most", perdure.ErrUsage,
				part)
		}
	}
	return nil
}

// measure is what a model is judged by.
func (p *Plan) measure() string {
	switch {
	case p.Measure != "":
		return p.Measure
	case p.Run.Params.Batch > 0:
		return MeasureTest // a batch is another one in each clock
	}
	return MeasureTrain
}

// failure is one that is tried under every strategy.
type failure struct {
	clock   perdure.Clock
	servers []int // in the order in which they die
}

// failures draws those of a twin.
func (p *Plan) failures(seed uint64) (all []failure) {
	rng := rand.New(rand.NewPCG(seed, 0x5ca7))
	last := perdure.Clock(latestAt * float64(p.Run.Job.Clocks))
	for len(all) < p.Trials {
		// The number of clocks until one that fails, each with probability 1/Mean.
		n := 1.0
		if p.Mean > 1 {
			n = 1 + math.Floor(math.Log(1-rng.Float64())/math.Log(1-1/p.Mean))
		}
		servers := rng.Perm(p.Run.Job.Servers)
		if n <= float64(last) {
			all = append(all, failure{perdure.Clock(n), servers})
		}
	}
	return all
}

// dead are the servers that die where a part of them does: one at least.
func (f *failure) dead(part float64) []int {
	return f.servers[:max(1, int(math.Round(part*float64(len(f.servers)))))]
}

// shards are those that these servers have.
func shards(job *perdure.JobSpec, servers []int) (all []int) {
	for shard, server := range placement.Assign(job.Shards, job.Servers) {
		if slices.Contains(servers, server) {
			all = append(all, shard)
		}
	}
	return all
}

// of is the run of a seed under a strategy.
func (p *Plan) of(seed uint64, r perdure.Recovery) settings.Run {
	s := p.Run
	s.Job.Seed, s.Params.Seed, s.Job.Recovery = seed, seed, r
	return s
}

// saving are the strategies that save rows by themselves.
func (p *Plan) saving() (all []perdure.Recovery) {
	for _, r := range p.Strategies {
		if recovery.RoundsOf(r).Any() {
			all = append(all, r)
		}
	}
	return all
}

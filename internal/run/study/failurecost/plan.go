// Package failurecost measures how many iterations a training loses when servers die, for each recovery strategy. It
// trains an undisturbed twin in memory (Training). It then loses servers in many forks of the twin, at random clocks,
// and counts how many clocks later each fork permanently reaches the twin's loss (package itercost; Qiao, Aragam, Zhang
// and Xing, ICML 2019).
//
// The result is a function of the plan. Trials in memory are validated with real servers: see repeat.go.
package failurecost

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/run/settings"
)

// Plan defines the trials of a study.
type Plan struct {
	Options
	Run  settings.Run // of the twins; ε is determined from its clocks
	Arms []Arm        // strategies are compared with the first one
	Lost []float64    // parts of the servers, in (0, 1]
}

// Measures of a model, evaluated at every clock.
const (
	MeasureTrain    = "train"    // loss on the data of the clock: for workloads whose clocks use all examples
	MeasureTest     = "test"     // loss on test examples
	MeasureDistance = "distance" // ‖x − x*‖, where x* is the model after training bestAfter times as long
)

// Precision in which rows are saved. Full checkpoints are always exact.
const (
	SavedWhole = "float32"
	SavedHalf  = "bfloat16" // rows are rounded to 8 bits of precision
)

// What a failure destroys.
const (
	LoseServers = "servers" // all shards of a server, which are neighbours
	LoseShards  = "shards"  // any shards, as if they were placed at random
)

// When a failure strikes.
const (
	StrikeBetween = "between" // between two clocks: the next one is computed with the restored rows, as in the paper
	StrikeWithin  = "amid"    // within a clock: slots have read their rows; their updates go to the restored rows
)

// Fractions and multiples of a twin's clocks. ε is the highest loss of the undisturbed twin after epsilonAt of its
// clocks. Disturbed runs last beyond times as long and are censored if they do not reach ε. Failures occur before
// latestAt. x* is found after bestAfter times as many clocks.
const (
	epsilonAt = 0.9
	beyond    = 1.3
	latestAt  = 0.8
	bestAfter = 10
)

// Check returns an error if the plan cannot be run.
func (p *Plan) Check() error {
	if err := checkTraining(&p.Run); err != nil {
		return err
	}
	if err := p.checkAsync(); err != nil {
		return err
	}
	forks := false
	for i := range p.Arms {
		if err := p.checkArm(&p.Arms[i]); err != nil {
			return err
		}
		forks = forks || !p.Arms[i].rollsBack()
	}
	switch {
	case !forks:
		return perdure.Usagef("every strategy in the comparison rolls back all shards; add --recovery " +
			"scar:C,R,SELECTOR")
	case p.Run.Job.Clocks < 10:
		return perdure.Usagef("invalid --clocks %d; a twin needs at least 10 clocks", p.Run.Job.Clocks)
	case p.Twins < 1 || p.Trials < 1 || p.Twins*p.Trials > 1e6:
		return perdure.Usagef("invalid number of twins %d or trials %d; choose at least 1 of each, and at most 1e6 "+
			"trials in all", p.Twins, p.Trials)
	case p.Failures < 1 || p.Failures > int(latestAt*float64(p.Run.Job.Clocks))/2:
		return perdure.Usagef("invalid --failures %d; choose at least 1, and few enough for each to strike in a "+
			"different clock; the run has %d clocks", p.Failures, p.Run.Job.Clocks)
	case !(p.MeanClocks >= 1):
		return perdure.Usagef("invalid --mean-clocks %g; choose 1 or more", p.MeanClocks)
	case p.Sample < 1:
		return perdure.Usagef("invalid --sample %d; choose 1 or more examples", p.Sample)
	case p.Smooth < 1 || p.Smooth > int(p.Run.Job.Clocks)/2:
		return perdure.Usagef("invalid --smooth %d; choose at least 1 clock, and at most half of %d", p.Smooth,
			p.Run.Job.Clocks)
	case p.Smooth > 1 && p.measure() == MeasureDistance:
		return perdure.Usagef("--smooth %d does not work with --measure distance, whose bounds apply to single "+
			"clocks; remove one of the two", p.Smooth)
	case p.Lose != LoseServers && p.Lose != LoseShards:
		return perdure.Usagef("invalid --lose %s; choose servers or shards", p.Lose)
	case p.Strike != StrikeBetween && p.Strike != StrikeWithin:
		return perdure.Usagef("invalid --strike %s; choose between or amid", p.Strike)
	case p.SavedAs != SavedWhole && p.SavedAs != SavedHalf:
		return perdure.Usagef("invalid --saved-as %s; choose float32 or bfloat16", p.SavedAs)
	case !slices.Contains([]string{"", MeasureTrain, MeasureTest, MeasureDistance}, p.Measure):
		return perdure.Usagef("invalid --measure %s; choose train, test or distance", p.Measure)
	}
	for _, part := range p.Lost {
		if !(part > 0 && part <= 1) {
			return perdure.Usagef("invalid --lost %g; choose a fraction of the servers, above 0 and at most 1", part)
		}
	}
	return nil
}

// checkAsync rejects settings that do not work under models in which slots do not run each clock together.
func (p *Plan) checkAsync() error {
	c := p.Run.Job.Consistency
	var what string
	switch {
	case c.Kind == perdure.BSP:
		return nil
	case p.has((*Arm).rollsBack):
		what = "--recovery checkpoint:C; repeated clocks give different results: compare with scar:C,1"
	case p.has(func(a *Arm) bool { return a.Kind == ByStaleReads }):
		what = "--perturb stale:CLOCKS; reads are stale anyway"
	case p.Strike != StrikeBetween:
		what = "--strike " + p.Strike + "; failures within a clock need bsp"
	case p.measure() == MeasureDistance:
		what = "--measure distance; bounds are known only under bsp"
	default:
		return nil
	}
	return perdure.Usagef("--consistency %s does not work with %s", c, what)
}

// checkArm returns an error if the arm cannot be run.
func (p *Plan) checkArm(a *Arm) error {
	if a.Kind != ByDeath {
		return nil
	}
	job := p.Run.Job
	job.Recovery = a.Recovery
	switch rows := recovery.RoundsOf(a.Recovery); {
	case rows.Timed() || a.Recovery.Auto:
		return perdure.Usagef("invalid --recovery %s: its save interval depends on time; choose a number of clocks",
			a.Text)
	case !a.saves() && !a.resetsRows() && (!a.rollsBack() || a.Recovery.Every < 1):
		return perdure.Usagef("invalid --recovery %s; choose checkpoint:C, which rolls back all shards, "+
			"scar:C,R,SELECTOR or none", a.Text)
	}
	return recovery.Check(&job)
}

// measure returns the measure of the plan, or the default for its workload.
func (p *Plan) measure() string {
	switch {
	case p.Measure != "":
		return p.Measure
	case p.Run.Params.Batch > 0:
		return MeasureTest // every clock has a different batch
	}
	return MeasureTrain
}

// Failure is one failure of a trial.
type Failure struct {
	Clock   perdure.Clock `json:"clock"`
	Servers []int         `json:"servers"` // that died; null for lost shards and perturbations
	Shards  []int         `json:"shards,omitempty"`
	Norm    float64       `json:"norm"` // ‖δ‖, how far the rows moved; 0 after a rollback to one clock
}

// drawFailures draws the failures of all trials of a twin, each trial in the order of clocks. Servers and Shards list
// all servers or shards in the random order in which they are lost.
func (p *Plan) drawFailures(seed uint64) (all [][]Failure) {
	rng := rand.New(rand.NewPCG(seed, 0x5ca7))
	last := perdure.Clock(latestAt * float64(p.Run.Job.Clocks))
	for len(all) < p.Trials {
		var of []Failure
		for len(of) < p.Failures {
			// The number of clocks until the first failure, with probability 1/Mean at each clock.
			n := 1.0
			if p.MeanClocks > 1 {
				n = 1 + math.Floor(math.Log(1-rng.Float64())/math.Log(1-1/p.MeanClocks))
			}
			f := Failure{Clock: perdure.Clock(n)}
			if p.Lose == LoseShards {
				f.Shards = rng.Perm(p.Run.Job.Shards)
			} else {
				f.Servers = rng.Perm(p.Run.Job.Servers)
			}
			same := func(o Failure) bool { return o.Clock == f.Clock }
			if n <= float64(last) && !slices.ContainsFunc(of, same) {
				of = append(of, f)
			}
		}
		slices.SortFunc(of, func(a, b Failure) int { return cmp.Compare(a.Clock, b.Clock) })
		all = append(all, of)
	}
	return all
}

// reducedTo returns the failures reduced to a part of the servers or shards, at least one each.
func reducedTo(failures []Failure, part float64) (all []Failure) {
	some := func(all []int) []int {
		if all == nil {
			return nil
		}
		return all[:max(1, int(math.Round(part*float64(len(all)))))]
	}
	for _, f := range failures {
		all = append(all, Failure{Clock: f.Clock, Servers: some(f.Servers), Shards: some(f.Shards)})
	}
	return all
}

// lost returns the shards that a failure destroys.
func (f *Failure) lost(job *perdure.JobSpec) (all []int) {
	if f.Shards != nil {
		return f.Shards
	}
	for shard, server := range placement.Assign(job.Shards, job.Servers) {
		if slices.Contains(f.Servers, server) {
			all = append(all, shard)
		}
	}
	return all
}

// runSettings returns the run with a seed, under a strategy.
func (p *Plan) runSettings(seed uint64, r perdure.Recovery) settings.Run {
	s := p.Run
	s.Job.Seed, s.Params.Seed, s.Job.Recovery = seed, seed, r
	return s
}

// passes returns the strategies under which a twin is trained to get the rows that they save. If no strategy saves
// rows, it returns none.
func (p *Plan) passes() (all []perdure.Recovery) {
	for i := range p.Arms {
		if p.Arms[i].saves() {
			all = append(all, p.Arms[i].Recovery)
		}
	}
	if len(all) == 0 {
		all = []perdure.Recovery{{Kind: perdure.RecoverNone}}
	}
	return all
}

// has reports whether an arm satisfies which.
func (p *Plan) has(which func(*Arm) bool) bool {
	return slices.ContainsFunc(p.Arms, func(a Arm) bool { return which(&a) })
}

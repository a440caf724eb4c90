// Package failurecost measures what the death of some servers costs a training in iterations, by strategy: it trains an
// undisturbed twin in memory (Training), loses servers in many forks of it, each at a clock that is drawn, and
// counts by how many clocks later each comes to the twin's loss for good (package itercost; Qiao, Aragam, Zhang and
// Xing, ICML 2019).
//
// A study is a function of its plan. What it tells of real servers it tries with real ones: see repeat.go.
package failurecost

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/run/settings"
)

// Plan is what is tried.
type Plan struct {
	Run      settings.Run // of the twins; its clocks are those that ε is found in
	Arms     []Arm        // what is tried; strategies are compared with the first one
	Lost     []float64    // parts of the servers, in (0, 1]
	Lose     string       // LoseServers or LoseShards
	Twins    int          // undisturbed runs, each with a seed of its own, from the run's on
	Trials   int          // forks of each twin
	Failures int          // in each fork
	Mean     float64      // of the clock of a failure, drawn from a geometric distribution
	Strike   string       // StrikeBetween or StrikeAmid
	SavedAs  string       // SavedWhole or SavedHalf
	Measure  string       // one of those below; "": as fits the workload
	Smooth   int          // clocks whose mean a model is judged by
	Sample   int          // examples of the test set that a model is judged on, where the workload can
	Parallel int
}

// What a model is judged by, at every clock.
const (
	MeasureTrain    = "train"    // the loss on what the clock trains on: for workloads whose clocks take all examples
	MeasureTest     = "test"     // the loss on examples that are not trained on
	MeasureDistance = "distance" // ‖x − x*‖, x* being what a twin that trains bestAfter times as long comes to
)

// As what rows are saved one by one. Full checkpoints, which all go back to, are as they were.
const (
	SavedWhole = "float32"
	SavedHalf  = "bfloat16" // what comes back was rounded to 8 bits of precision
)

// What a failure takes.
const (
	LoseServers = "servers" // with the shards that they have, which are neighbours
	LoseShards  = "shards"  // any, as if they lay anyhow on servers
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
	bestAfter = 10
)

// checkTraining says what cannot be tried.
func (p *Plan) Check() error {
	if err := checkTraining(&p.Run); err != nil {
		return err
	}
	if err := p.checkLoose(); err != nil {
		return err
	}
	forks := false
	for i := range p.Arms {
		if err := p.checkArm(&p.Arms[i]); err != nil {
			return err
		}
		forks = forks || !p.Arms[i].whole()
	}
	switch {
	case !forks:
		return fmt.Errorf("%w: under the strategies that are tried all go back; add --recovery scar:C,R,SELECTOR",
			perdure.ErrUsage)
	case p.Run.Job.Clocks < 10:
		return fmt.Errorf("%w: --clocks %d; a twin needs 10 clocks at least", perdure.ErrUsage, p.Run.Job.Clocks)
	case p.Twins < 1 || p.Trials < 1 || p.Twins*p.Trials > 1e6:
		return fmt.Errorf("%w: %d twins with %d failures each; choose 1 of both at least", perdure.ErrUsage, p.Twins,
			p.Trials)
	case p.Failures < 1 || p.Failures > int(latestAt*float64(p.Run.Job.Clocks))/2:
		return fmt.Errorf("%w: --failures %d; choose 1 at least, and so few that they are in different clocks of %d",
			perdure.ErrUsage, p.Failures, p.Run.Job.Clocks)
	case !(p.Mean >= 1):
		return fmt.Errorf("%w: --mean-clocks %g; choose 1 or more", perdure.ErrUsage, p.Mean)
	case p.Sample < 1:
		return fmt.Errorf("%w: --sample %d; choose 1 or more examples", perdure.ErrUsage, p.Sample)
	case p.Smooth < 1 || p.Smooth > int(p.Run.Job.Clocks)/2:
		return fmt.Errorf("%w: --smooth %d; choose 1 clock at least, and half of %d at most", perdure.ErrUsage,
			p.Smooth, p.Run.Job.Clocks)
	case p.Smooth > 1 && p.measure() == MeasureDistance:
		return fmt.Errorf("%w: --smooth %d with --measure distance; bounds are of each clock: leave one out",
			perdure.ErrUsage, p.Smooth)
	case p.Lose != LoseServers && p.Lose != LoseShards:
		return fmt.Errorf("%w: --lose %s; choose servers or shards", perdure.ErrUsage, p.Lose)
	case p.Strike != StrikeBetween && p.Strike != StrikeAmid:
		return fmt.Errorf("%w: --strike %s; choose between or amid", perdure.ErrUsage, p.Strike)
	case p.SavedAs != SavedWhole && p.SavedAs != SavedHalf:
		return fmt.Errorf("%w: --saved-as %s; choose float32 or bfloat16", perdure.ErrUsage, p.SavedAs)
	case !slices.Contains([]string{"", MeasureTrain, MeasureTest, MeasureDistance}, p.Measure):
		return fmt.Errorf("%w: --measure %s; choose train, test or distance", perdure.ErrUsage, p.Measure)
	}
	for _, part := range p.Lost {
		if !(part > 0 && part <= 1) {
			return fmt.Errorf("%w: --lost %g; choose a part of the servers above 0, of 1 at most", perdure.ErrUsage,
				part)
		}
	}
	return nil
}

// checkLoose says what cannot be tried under a model under which slots do not do a clock together.
func (p *Plan) checkLoose() error {
	c := p.Run.Job.Consistency
	var what string
	switch {
	case c.Kind == perdure.BSP:
		return nil
	case p.has((*Arm).whole):
		what = "--recovery checkpoint:C; what is done again is not the same there: compare with scar:C,1"
	case p.has(func(a *Arm) bool { return a.How == ByStaleReads }):
		what = "--perturb stale:CLOCKS; reads are stale there anyhow"
	case p.Strike != StrikeBetween:
		what = "--strike " + p.Strike + "; a clock has no middle there"
	case p.measure() == MeasureDistance:
		what = "--measure distance; bounds are of bsp"
	default:
		return nil
	}
	return fmt.Errorf("%w: --consistency %s with %s", perdure.ErrUsage, c, what)
}

// checkArm says of an arm why it cannot be tried.
func (p *Plan) checkArm(a *Arm) error {
	if a.How != ByDeath {
		return nil
	}
	job := p.Run.Job
	job.Recovery = a.Recovery
	switch rows := recovery.RoundsOf(a.Recovery); {
	case rows.Timed() || a.Recovery.Auto:
		return fmt.Errorf("%w: --recovery %s; when it saves depends on time: write a number of clocks",
			perdure.ErrUsage, a.Text)
	case !a.saves() && !a.initial() && (!a.whole() || a.Recovery.Every < 1):
		return fmt.Errorf("%w: --recovery %s; what is tried is checkpoint:C, which all go back to, scar:C,R,SELECTOR "+
			"and none", perdure.ErrUsage, a.Text)
	}
	return recovery.Check(&job)
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

// Failure is one of a trial.
type Failure struct {
	Clock   perdure.Clock `json:"clock"`
	Servers []int         `json:"servers"` // that died; null: shards were lost, or rows perturbed otherwise
	Shards  []int         `json:"shards,omitempty"`
	Norm    float64       `json:"norm"` // ‖δ‖ of what it did to the rows; 0: all went back to one clock
}

// failures draws those of a twin: for each of its trials, in the order of their clocks. Servers are all there are, in
// the order in which they die, and so are shards.
func (p *Plan) failures(seed uint64) (all [][]Failure) {
	rng := rand.New(rand.NewPCG(seed, 0x5ca7))
	last := perdure.Clock(latestAt * float64(p.Run.Job.Clocks))
	for len(all) < p.Trials {
		var of []Failure
		for len(of) < p.Failures {
			// The number of clocks until one that fails, each with probability 1/Mean.
			n := 1.0
			if p.Mean > 1 {
				n = 1 + math.Floor(math.Log(1-rng.Float64())/math.Log(1-1/p.Mean))
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

// dead are the failures where a part of the servers dies in each, or a part of the shards: one at least.
func dead(failures []Failure, part float64) (all []Failure) {
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

// lost are the shards that a failure takes.
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

// of is the run of a seed under a strategy.
func (p *Plan) of(seed uint64, r perdure.Recovery) settings.Run {
	s := p.Run
	s.Job.Seed, s.Params.Seed, s.Job.Recovery = seed, seed, r
	return s
}

// passes are the strategies under which a twin is trained, for what they save; none, if none saves rows.
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

// has reports whether an arm is tried.
func (p *Plan) has(which func(*Arm) bool) bool {
	return slices.ContainsFunc(p.Arms, func(a Arm) bool { return which(&a) })
}

package failurecost

import (
	"context"
	"fmt"
	"io"
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/itercost"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/run/workload"
)

// twin is a twin: its series of losses, and everything needed to fork it.
type twin struct {
	seed     uint64
	failures [][]Failure // of each trial
	losses   []float64   // by clock
	epsilon  float64
	reach    itercost.Reach
	rate     float64 // typical factor by which a clock multiplies the distance; NaN if unknown
	initial  rows    // initial rows
	best     rows    // x*, or the nearest known rows; nil if not needed
	at       map[perdure.Clock]*Training
	saved    map[string]map[perdure.Clock]rows // by strategy and clock: rows as last saved
	bytes    map[string]int64                  // written until the last failure, by strategy
}

// rows holds the rows of all shards, by table.
type rows [][]*table.Part

// executor runs a plan.
type executor struct {
	*Plan
	horizon perdure.Clock
	crews   chan SlotWorkloads
	lead    perdure.Clock // clocks from the start of a fork to its first failure, to rebuild the slots' memory
}

// Execute runs all trials and reports its progress to screen.
func (p *Plan) Execute(ctx context.Context, screen io.Writer) (*Result, error) {
	c := &executor{Plan: p, horizon: perdure.Clock(beyond * float64(p.Run.Job.Clocks))}
	r := &Result{
		Schema: Schema, Measure: p.measure(), Workload: p.Run.Job.Workload, Clocks: p.Run.Job.Clocks, Strike: p.Strike,
		SavedAs: p.SavedAs, Lose: p.Lose, Smooth: p.Smooth,
	}
	for i := range p.Twins {
		seed := p.Run.Job.Seed + uint64(i)
		if err := c.open(seed); err != nil {
			return nil, err
		}
		u, err := c.train(ctx, seed)
		if err != nil {
			return nil, err
		}
		trials, err := c.fork(ctx, u)
		if err != nil {
			return nil, err
		}
		r.addTwin(u, trials)
		fmt.Fprintf(screen, "%d/%d  twin of seed %d: ε %.6g at clock %d, %d trials\n", i+1, p.Twins, seed, u.epsilon,
			u.reach.Clock, len(trials))
	}
	return r, r.sum()
}

// open creates the crews for a seed. The seed determines their training data.
func (c *executor) open(seed uint64) error {
	s := c.runSettings(seed, c.passes()[0])
	c.crews = make(chan SlotWorkloads, max(1, c.Parallel))
	for range cap(c.crews) {
		crew, err := NewSlotWorkloads(&s)
		if err != nil {
			return err
		}
		if some, can := crew[0].(workload.SampledEvaluator); can {
			some.Sample(c.Sample)
		}
		c.crews <- crew
		c.lead = crew.Memory()
	}
	return nil
}

// start returns the clock at which the fork of a trial starts.
func (c *executor) start(failures []Failure) perdure.Clock { return max(0, failures[0].Clock-c.lead) }

// step runs one clock of a training and returns the measure of its model before that clock. If lose is not nil, it is
// called between Compute and Apply.
func (c *executor) step(ctx context.Context, u *twin, t *Training, lose func() error) (
	loss float64, err error,
) {
	switch c.measure() {
	case MeasureTest:
		e, err := t.Evaluate(ctx)
		if err != nil {
			return 0, err
		}
		loss = e.Loss
	case MeasureDistance:
		loss = distance(t, u.best)
	}
	var train float64
	if lose == nil {
		train, err = t.Advance(ctx)
	} else if train, err = t.Compute(ctx); err == nil {
		if err = lose(); err == nil {
			err = t.Apply()
		}
	}
	if c.measure() == MeasureTrain {
		loss = train
	}
	return loss, err
}

// train trains a twin and keeps a copy at each clock at which a fork starts. It then trains the twin again under each
// other strategy, to get the rows that it saves.
func (c *executor) train(ctx context.Context, seed uint64) (*twin, error) {
	u := &twin{
		seed: seed, failures: c.drawFailures(seed), at: map[perdure.Clock]*Training{}, rate: math.NaN(),
		saved: map[string]map[perdure.Clock]rows{}, bytes: map[string]int64{},
	}
	crew := <-c.crews
	defer func() { c.crews <- crew }()
	if c.measure() == MeasureDistance {
		if err := c.findBest(ctx, u, crew); err != nil {
			return nil, err
		}
	}
	for i := range c.passes() {
		if err := c.pass(ctx, u, i, crew); err != nil {
			return nil, err
		}
	}
	if err := c.findEpsilon(u); err != nil {
		return nil, err
	}
	if c.measure() == MeasureDistance {
		u.rate = rateOf(u.losses[:u.reach.Clock+1])
	}
	return u, nil
}

// pass trains a twin under a strategy. Only the first pass records the series of losses and runs until the horizon.
func (c *executor) pass(ctx context.Context, u *twin, n int, crew SlotWorkloads) error {
	r := c.passes()[n]
	s := c.runSettings(u.seed, r)
	t, err := NewTraining(&s, crew)
	if err != nil {
		return err
	}
	first, starts, last := c.clocks(u)
	laid := map[perdure.Clock]rows{}
	u.saved[r.String()] = laid
	for t.Clock < c.horizon {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if first[t.Clock] && c.Failures == 1 && r.Kind != perdure.RecoverNone {
			if err := saveCopies(t, laid); err != nil {
				return err
			}
		}
		if starts[t.Clock] && n == 0 {
			if u.at[t.Clock], err = t.Copy(crew); err != nil {
				return err
			}
		}
		if t.Clock == last && r.Kind != perdure.RecoverNone {
			u.bytes[r.String()] = t.Saved()
		}
		if t.Clock == last && n > 0 {
			return nil // the first pass recorded the series
		}
		loss, err := c.step(ctx, u, t, nil)
		if err != nil {
			return err
		}
		if n == 0 {
			u.losses = append(u.losses, loss)
			if err := c.countWhole(u, t, last); err != nil {
				return err
			}
		}
	}
	if n == 0 && u.best == nil && c.has(func(a *Arm) bool { return a.Kind == ByRandom || a.Kind == ByAdversary }) {
		u.initial, u.best = initial(t), rowsOf(t)
	}
	return nil
}

// clocks returns the clocks of the trials' first failures, the clocks at which forks start, and the clock of the last
// failure.
func (c *executor) clocks(u *twin) (first, starts map[perdure.Clock]bool, last perdure.Clock) {
	first, starts = map[perdure.Clock]bool{}, map[perdure.Clock]bool{}
	for _, of := range u.failures {
		first[of[0].Clock], starts[c.start(of)], last = true, true, max(last, of[len(of)-1].Clock)
	}
	return first, starts, last
}

// countWhole counts the bytes of whole checkpoints that are due at the clock that the twin has finished.
func (c *executor) countWhole(u *twin, t *Training, last perdure.Clock) error {
	for i := range c.Arms {
		if a := &c.Arms[i]; a.rollsBack() && t.Clock <= last && t.Clock%a.Recovery.Every == 0 {
			n, err := t.Size()
			if err != nil {
				return err
			}
			u.bytes[a.Text] += n
		}
	}
	return nil
}

// saveCopies stores the rows of all shards as last saved.
func saveCopies(t *Training, laid map[perdure.Clock]rows) error {
	for shard := range t.Job.Shards {
		parts, err := t.SavedRows(shard)
		if err != nil {
			return err
		}
		laid[t.Clock] = append(laid[t.Clock], parts)
	}
	return nil
}

// findEpsilon determines ε: the maximum loss of the twin from the fraction epsilonAt of its clocks on. If the loss only
// falls, that is its loss at that point.
func (c *executor) findEpsilon(u *twin) (err error) {
	losses := smooth(u.losses, c.Smooth)
	u.epsilon = math.Inf(-1)
	for _, v := range losses[int(epsilonAt*float64(c.Run.Job.Clocks)):] {
		u.epsilon = max(u.epsilon, v)
	}
	if math.IsNaN(u.epsilon) || math.IsInf(u.epsilon, 0) {
		return perdure.Usagef("the undisturbed run with seed %d diverges: its loss is not finite; choose a smaller "+
			"learning rate", u.seed)
	}
	u.reach, err = itercost.Kappa(losses, u.epsilon)
	return err
}

// smooth returns for each clock the mean of the last n losses, or of all losses if there are fewer. The loss of
// minibatches fluctuates more than it falls per clock. Without smoothing, a run that lags only slightly can stay above
// ε until the next peak is over.
func smooth(losses []float64, n int) []float64 {
	if n == 1 {
		return losses
	}
	all := make([]float64, len(losses))
	for i := range losses {
		sum := 0.0
		for _, v := range losses[max(0, i+1-n) : i+1] {
			sum += v
		}
		all[i] = sum / float64(min(n, i+1))
	}
	return all
}

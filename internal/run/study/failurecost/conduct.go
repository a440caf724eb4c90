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

// undisturbed is a twin: its series, and all that is needed to fork it.
type undisturbed struct {
	seed     uint64
	failures [][]Failure // of each trial
	losses   []float64   // by clock
	epsilon  float64
	reach    itercost.Reach
	rate     float64 // of distances, typical; NaN: it is not known
	begin    rows    // what it began with
	best     rows    // x*, or what comes nearest to it; nil: nobody asks
	at       map[perdure.Clock]*Training
	laid     map[string]map[perdure.Clock]rows // by strategy and clock: as they were saved last
	bytes    map[string]int64                  // that were written until the last failure
}

// rows are those of all shards, by table.
type rows [][]*table.Part

// conductor tries what is planned.
type conductor struct {
	*Plan
	horizon perdure.Clock
	crews   chan Crew
	lead    perdure.Clock // clocks that a fork begins before its first failure, so that its slots know what they would
}

// Conduct tries all, and says now and then how far it is.
func (p *Plan) Conduct(ctx context.Context, screen io.Writer) (*Result, error) {
	c := &conductor{Plan: p, horizon: perdure.Clock(beyond * float64(p.Run.Job.Clocks))}
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
		r.take(u, trials)
		fmt.Fprintf(screen, "%d/%d  twin of seed %d: ε %.6g at clock %d, %d trials\n", i+1, p.Twins, seed, u.epsilon,
			u.reach.Clock, len(trials))
	}
	return r, r.sum()
}

// open makes the crews of a seed, which draws what they train on.
func (c *conductor) open(seed uint64) error {
	s := c.of(seed, c.passes()[0])
	c.crews = make(chan Crew, max(1, c.Parallel))
	for range cap(c.crews) {
		crew, err := NewCrew(&s)
		if err != nil {
			return err
		}
		if some, can := crew[0].(workload.Sampled); can {
			some.Sample(c.Sample)
		}
		c.crews <- crew
		c.lead = crew.Memory()
	}
	return nil
}

// start is the clock at which the fork of a trial begins.
func (c *conductor) start(failures []Failure) perdure.Clock { return max(0, failures[0].Clock-c.lead) }

// step does a clock of a training, and returns how far its model was before; lose, if not nil, comes in the middle of
// it.
func (c *conductor) step(ctx context.Context, u *undisturbed, t *Training, lose func() error) (
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

// train trains a twin, and keeps it at each clock at which a fork begins; and again under each strategy, for
// what is saved.
func (c *conductor) train(ctx context.Context, seed uint64) (*undisturbed, error) {
	u := &undisturbed{
		seed: seed, failures: c.failures(seed), at: map[perdure.Clock]*Training{}, rate: math.NaN(),
		laid: map[string]map[perdure.Clock]rows{}, bytes: map[string]int64{},
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
	if err := c.find(u); err != nil {
		return nil, err
	}
	if c.measure() == MeasureDistance {
		u.rate = rateOf(u.losses[:u.reach.Clock+1])
	}
	return u, nil
}

// pass trains a twin under a strategy. The first pass has the series, too, and goes on until the horizon.
func (c *conductor) pass(ctx context.Context, u *undisturbed, n int, crew Crew) error {
	r := c.passes()[n]
	s := c.of(u.seed, r)
	t, err := NewTraining(&s, crew)
	if err != nil {
		return err
	}
	first, starts, last := c.clocks(u)
	laid := map[perdure.Clock]rows{}
	u.laid[r.String()] = laid
	for t.Clock < c.horizon {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if first[t.Clock] && c.Failures == 1 && r.Kind != perdure.RecoverNone {
			if err := keep(t, laid); err != nil {
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
			return nil // the series is known
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
	if n == 0 && u.best == nil && c.has(func(a *Arm) bool { return a.How == ByRandom || a.How == ByAdversary }) {
		u.begin, u.best = initial(t), rowsOf(t)
	}
	return nil
}

// clocks are those at which trials fail first, those at which forks begin, and the last at which one fails.
func (c *conductor) clocks(u *undisturbed) (first, starts map[perdure.Clock]bool, last perdure.Clock) {
	first, starts = map[perdure.Clock]bool{}, map[perdure.Clock]bool{}
	for _, of := range u.failures {
		first[of[0].Clock], starts[c.start(of)], last = true, true, max(last, of[len(of)-1].Clock)
	}
	return first, starts, last
}

// countWhole counts what whole checkpoints write, where one is due by the clock that a twin has done.
func (c *conductor) countWhole(u *undisturbed, t *Training, last perdure.Clock) error {
	for i := range c.Arms {
		if a := &c.Arms[i]; a.whole() && t.Clock <= last && t.Clock%a.Recovery.Every == 0 {
			n, err := t.Size()
			if err != nil {
				return err
			}
			u.bytes[a.Text] += n
		}
	}
	return nil
}

// keep keeps the rows of all shards as they were saved last.
func keep(t *Training, laid map[perdure.Clock]rows) error {
	for shard := range t.Job.Shards {
		parts, err := t.Lay(shard)
		if err != nil {
			return err
		}
		laid[t.Clock] = append(laid[t.Clock], parts)
	}
	return nil
}

// find finds ε: the most that the twin's loss is from epsilonAt of its clocks on, which is what it has there where its
// loss only falls.
func (c *conductor) find(u *undisturbed) (err error) {
	losses := smooth(u.losses, c.Smooth)
	u.epsilon = math.Inf(-1)
	for _, v := range losses[int(epsilonAt*float64(c.Run.Job.Clocks)):] {
		u.epsilon = max(u.epsilon, v)
	}
	if math.IsNaN(u.epsilon) || math.IsInf(u.epsilon, 0) {
		return fmt.Errorf("%w: the undisturbed run of seed %d diverges: its loss is no number; choose a smaller rate",
			perdure.ErrUsage, u.seed)
	}
	u.reach, err = itercost.Kappa(itercost.EachClock(losses), u.epsilon)
	return err
}

// smooth is of each clock the mean of the last n, of as many as there are at the beginning. Losses of minibatches go up
// and down by more than they fall, and a run that is hardly behind is above ε until the next peak is over.
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

package losses

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/run/twin"
	"github.com/perdure/perdure/itercost"
	"github.com/perdure/perdure/workload"
)

// Trial is one failure under one strategy.
type Trial struct {
	Strategy string        `json:"strategy"`
	Lost     float64       `json:"lost"` // part of the servers
	Seed     uint64        `json:"seed"` // of the twin
	Clock    perdure.Clock `json:"clock"`
	Servers  []int         `json:"servers"`  // that died
	Cost     int           `json:"cost"`     // in clocks; of a censored trial, at least that
	Censored bool          `json:"censored"` // the run did not come to ε
	Norm     float64       `json:"norm"`     // ‖δ‖ of the rows that came back; 0: all went back to one clock
}

// undisturbed is a twin: its series, and all that is needed to fork it.
type undisturbed struct {
	seed     uint64
	failures []failure
	losses   []float64 // by clock
	epsilon  float64
	reach    itercost.Reach
	at       map[perdure.Clock]*twin.Training
	laid     map[string]map[perdure.Clock][][]*table.Part // by strategy, clock and shard: rows as they were saved last
	bytes    map[string]int64                             // that were written until the last failure
}

// conductor tries what is planned.
type conductor struct {
	*Plan
	horizon perdure.Clock
	crews   chan twin.Crew
}

// Conduct tries all, and says now and then how far it is.
func (p *Plan) Conduct(ctx context.Context, screen io.Writer) (*Result, error) {
	c := &conductor{Plan: p, horizon: perdure.Clock(beyond * float64(p.Run.Job.Clocks))}
	r := &Result{
		Schema: Schema, Measure: p.measure(), Workload: p.Run.Job.Workload, Clocks: p.Run.Job.Clocks, Strike: p.Strike,
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
		r.take(p, u, trials)
		fmt.Fprintf(screen, "%d/%d  twin of seed %d: ε %.6g at clock %d, %d trials\n", i+1, p.Twins, seed, u.epsilon,
			u.reach.Clock, len(trials))
	}
	return r, r.sum()
}

// open makes the crews of a seed, which draws what they train on.
func (c *conductor) open(seed uint64) error {
	s := c.of(seed, c.saving()[0])
	c.crews = make(chan twin.Crew, max(1, c.Parallel))
	for range cap(c.crews) {
		crew, err := twin.NewCrew(&s)
		if err != nil {
			return err
		}
		if some, can := crew[0].(workload.Sampled); can {
			some.Sample(c.Sample)
		}
		c.crews <- crew
	}
	return nil
}

// step does a clock of a training, and returns the loss that its model had before; lose, if not nil, comes in the
// middle of it.
func (c *conductor) step(ctx context.Context, t *twin.Training, lose func() error) (loss float64, err error) {
	if c.measure() == MeasureTest {
		e, err := t.Evaluate(ctx)
		if err != nil {
			return 0, err
		}
		loss = e.Loss
	}
	train, err := t.Compute(ctx)
	if err != nil {
		return 0, err
	}
	if c.measure() == MeasureTrain {
		loss = train
	}
	if lose != nil {
		if err := lose(); err != nil {
			return 0, err
		}
	}
	return loss, t.Apply()
}

// train trains a twin, and keeps it at each clock of a failure; and again under each strategy, for what is saved.
func (c *conductor) train(ctx context.Context, seed uint64) (*undisturbed, error) {
	u := &undisturbed{
		seed: seed, failures: c.failures(seed), at: map[perdure.Clock]*twin.Training{},
		laid: map[string]map[perdure.Clock][][]*table.Part{}, bytes: map[string]int64{},
	}
	crew := <-c.crews
	defer func() { c.crews <- crew }()
	last := perdure.Clock(0)
	fails := map[perdure.Clock]bool{}
	for _, f := range u.failures {
		fails[f.clock], last = true, max(last, f.clock)
	}
	for i, r := range c.saving() {
		s := c.of(seed, r)
		t, err := twin.New(&s, crew)
		if err != nil {
			return nil, err
		}
		laid := map[perdure.Clock][][]*table.Part{}
		u.laid[r.String()] = laid
		for end := c.horizon; t.Clock < end; {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if fails[t.Clock] {
				if err := keep(t, laid); err != nil {
					return nil, err
				}
				if i == 0 {
					of, err := t.Copy(crew)
					if err != nil {
						return nil, err
					}
					u.at[t.Clock] = of
				}
			}
			if t.Clock == last {
				u.bytes[r.String()] = t.Saved()
				if i > 0 {
					break // the series is known
				}
			}
			loss, err := c.step(ctx, t, nil)
			if err != nil {
				return nil, err
			}
			if i == 0 {
				u.losses = append(u.losses, loss)
			}
		}
	}
	return u, u.find(c.Run.Job.Clocks)
}

// keep keeps the rows of all shards as they were saved last.
func keep(t *twin.Training, laid map[perdure.Clock][][]*table.Part) error {
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
func (u *undisturbed) find(clocks perdure.Clock) (err error) {
	u.epsilon = math.Inf(-1)
	for _, v := range u.losses[int(epsilonAt*float64(clocks)):] {
		u.epsilon = max(u.epsilon, v)
	}
	if math.IsNaN(u.epsilon) || math.IsInf(u.epsilon, 0) {
		return fmt.Errorf("%w: the undisturbed run of seed %d diverges: its loss is no number; choose a smaller rate",
			perdure.ErrUsage, u.seed)
	}
	u.reach, err = itercost.Kappa(itercost.EachClock(u.losses), u.epsilon)
	return err
}

// fork tries all failures of a twin.
func (c *conductor) fork(ctx context.Context, u *undisturbed) (all []Trial, err error) {
	for _, r := range c.Strategies {
		for _, part := range c.Lost {
			for _, f := range u.failures {
				all = append(all, Trial{
					Strategy: r.String(), Lost: part, Seed: u.seed, Clock: f.clock, Servers: f.dead(part),
				})
			}
		}
	}
	errs := make([]error, len(all))
	var running sync.WaitGroup
	for i := range all {
		tr := &all[i]
		r, err := perdure.ParseRecovery(tr.Strategy)
		if err != nil {
			return nil, err
		}
		if !recovery.RoundsOf(r).Any() {
			tr.Cost = int(tr.Clock % r.Every) // under bsp these clocks are done again, to the same bits
			continue
		}
		if ctx.Err() != nil {
			break
		}
		crew := <-c.crews
		running.Go(func() {
			defer func() { c.crews <- crew }()
			errs[i] = c.try(ctx, u, tr, crew)
		})
	}
	running.Wait()
	return all, errors.Join(append(errs, context.Cause(ctx))...)
}

// try loses the servers of a trial, and goes on until the horizon.
func (c *conductor) try(ctx context.Context, u *undisturbed, tr *Trial, crew twin.Crew) error {
	t, err := c.lose(ctx, u, tr, crew)
	if err != nil {
		return err
	}
	losses := append([]float64{}, u.losses[:t.Clock]...)
	for t.Clock < c.horizon {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		loss, err := c.step(ctx, t, nil)
		switch {
		case errors.Is(err, perdure.ErrNonFinite) || err == nil && (math.IsNaN(loss) || math.IsInf(loss, 0)):
			tr.Cost, tr.Censored = max(0, int(t.Clock)-u.reach.Clock), true // it diverged
			return nil
		case err != nil:
			return err
		}
		losses = append(losses, loss)
	}
	reach, err := itercost.Kappa(itercost.EachClock(losses), u.epsilon)
	if err != nil {
		return err
	}
	cost, err := itercost.Iota(reach, u.reach)
	tr.Cost, tr.Censored = cost.Clocks, cost.Censored
	return err
}

// lose forks a twin at the clock of a trial, and has its servers die before that clock, or in it.
func (c *conductor) lose(ctx context.Context, u *undisturbed, tr *Trial, crew twin.Crew) (*twin.Training, error) {
	t, err := u.at[tr.Clock].Copy(crew)
	if err != nil {
		return nil, err
	}
	saved, squares := u.laid[tr.Strategy][tr.Clock], 0.0
	die := func() error {
		for _, shard := range shards(t.Job, tr.Servers) {
			parts, err := twin.CopyParts(saved[shard], t.Job.Seed)
			if err != nil {
				return err
			}
			squares += gap(t.Parts(shard), parts)
			t.Put(shard, parts)
		}
		return nil
	}
	if c.Strike == StrikeBetween {
		err = die()
	} else {
		_, err = c.step(ctx, t, die)
	}
	tr.Norm = math.Sqrt(squares)
	return t, err
}

// gap is the square of the distance between rows of dense tables.
func gap(a, b []*table.Part) (squares float64) {
	for n, p := range a {
		if p.Spec.Sparse || p.Spec.Distance == perdure.DistanceNone {
			continue // sparse rows have other places; what has no distance is no part of the model
		}
		for at := 0; at < p.Stored(); {
			x := p.Values(at, p.Stored()-at)
			y := b[n].Values(at, p.Stored()-at)
			squares += table.Gap(x, y)
			at += len(x) / p.Spec.Dim
		}
	}
	return squares
}

package failurecost

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/itercost"
	"github.com/perdure/perdure/internal/data/table"
)

// Trial is one fork of a twin, with its failures.
type Trial struct {
	Strategy    string    `json:"strategy"` // or the perturbation
	Lost        float64   `json:"lost"`     // part of the servers; 0 if none dies
	Seed        uint64    `json:"seed"`     // of the twin
	Failures    []Failure `json:"failures"`
	Cost        int       `json:"cost"`     // in clocks; a lower bound if censored
	Censored    bool      `json:"censored"` // the run did not reach ε
	Bound       *int      `json:"bound,omitempty"`
	SimpleBound *float64  `json:"neat,omitempty"` // simplified form of the bound

	arm *Arm
}

// trials returns the trials to run for a twin.
func (c *executor) trials(u *twin) (all []Trial) {
	for i := range c.Arms {
		a := &c.Arms[i]
		of := Trial{Strategy: a.Text, Seed: u.seed, arm: a, Failures: []Failure{}}
		switch a.Kind {
		case ByStaleReads:
			all = append(all, of) // a single trial, because nothing is random
		case ByDeath:
			for _, of.Lost = range c.Lost {
				for _, failures := range u.failures {
					of.Failures = reducedTo(failures, of.Lost)
					all = append(all, of)
				}
			}
		default:
			for _, failures := range u.failures {
				of.Failures = nil
				for _, f := range failures {
					of.Failures = append(of.Failures, Failure{Clock: f.Clock})
				}
				all = append(all, of)
			}
		}
	}
	return all
}

// fork runs all trials of a twin.
func (c *executor) fork(ctx context.Context, u *twin) ([]Trial, error) {
	all := c.trials(u)
	errs := make([]error, len(all))
	var running sync.WaitGroup
	for i := range all {
		tr := &all[i]
		if tr.arm.rollsBack() {
			tr.Cost = redone(tr)
			continue
		}
		if ctx.Err() != nil {
			break
		}
		crew := <-c.crews
		running.Go(func() {
			defer func() { c.crews <- crew }()
			errs[i] = c.runTrial(ctx, u, tr, crew)
		})
	}
	running.Wait()
	return all, errors.Join(append(errs, context.Cause(ctx))...)
}

// redone returns how many clocks are repeated if all shards roll back to a checkpoint. Under bsp the repeated clocks
// give the same bits. Failure clocks count all clocks computed, including repeated ones.
func redone(tr *Trial) (clocks int) {
	for _, f := range tr.Failures {
		clocks += (int(f.Clock) - clocks) % int(tr.arm.Recovery.Every)
	}
	return clocks
}

// runTrial disturbs a fork of a twin as the trial specifies, and records the cost.
func (c *executor) runTrial(ctx context.Context, u *twin, tr *Trial, crew SlotWorkloads) error {
	// A trial with several failures must save rows between them.
	t, err := c.begin(ctx, u, tr, crew, tr.arm.saves() && len(tr.Failures) > 1)
	if err != nil {
		return err
	}
	losses, err := c.disturb(ctx, u, tr, t)
	if err != nil {
		return err
	}
	if t.Clock < c.horizon { // diverged
		tr.Cost, tr.Censored = max(0, int(t.Clock)-u.reach.Clock), true
		return nil
	}
	reach, err := itercost.Kappa(smooth(losses, c.Smooth), u.epsilon)
	if err != nil {
		return err
	}
	cost, err := itercost.Iota(reach, u.reach)
	if err != nil {
		return err
	}
	tr.Cost, tr.Censored = cost.Clocks, cost.Censored
	if c.measure() != MeasureDistance || tr.arm.Kind == ByStaleReads {
		return nil
	}
	return u.setBounds(tr, losses, c.Strike)
}

// begin returns the training of a trial, at or before its first failure. It is a fork of the twin or, if saves is set,
// a training from the first clock on that saves rows.
func (c *executor) begin(ctx context.Context, u *twin, tr *Trial, crew SlotWorkloads, saves bool) (
	*Training, error,
) {
	if !saves && tr.arm.Kind != ByStaleReads {
		return u.at[c.start(tr.Failures)].Copy(crew)
	}
	r := perdure.Recovery{Kind: perdure.RecoverNone}
	if saves {
		r = tr.arm.Recovery
	}
	s := c.runSettings(u.seed, r)
	t, err := NewTraining(&s, crew)
	if err != nil {
		return nil, err
	}
	if !saves {
		t.Stale = int(tr.arm.Size)
		return t, nil
	}
	for t.Clock < tr.Failures[0].Clock {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if _, err := t.Advance(ctx); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// disturb trains until the horizon, applies the trial's failures, and returns the series of losses, including those of
// the twin before the fork. It returns early if the training diverges.
func (c *executor) disturb(ctx context.Context, u *twin, tr *Trial, t *Training) ([]float64, error) {
	left := tr.Failures
	losses := append([]float64{}, u.losses[:t.Clock]...)
	for t.Clock < c.horizon {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var strike func() error
		if len(left) > 0 && left[0].Clock == t.Clock {
			f := &left[0]
			strike, left = func() error { return c.strike(u, tr, f, t) }, left[1:]
			if c.Strike == StrikeBetween {
				if err := strike(); err != nil {
					return nil, err
				}
				strike = nil
			}
		}
		loss, err := c.step(ctx, u, t, strike)
		switch {
		case errors.Is(err, perdure.ErrNonFinite) || err == nil && (math.IsNaN(loss) || math.IsInf(loss, 0)):
			return losses, nil
		case err != nil:
			return nil, err
		}
		losses = append(losses, loss)
	}
	return losses, nil
}

// strike applies a failure of a trial to a training, and records the distance by which it moves the rows.
func (c *executor) strike(u *twin, tr *Trial, f *Failure, t *Training) error {
	if tr.arm.Kind != ByDeath {
		f.Norm = u.perturb(tr.arm, f.Clock, t)
		return nil
	}
	squares := 0.0
	for _, shard := range f.lost(t.Job) {
		before := t.Parts(shard)
		if err := c.restore(u, tr, t, shard); err != nil {
			return err
		}
		if c.SavedAs == SavedHalf {
			halve(t.Parts(shard))
		}
		squares += squaredDistance(before, t.Parts(shard))
	}
	f.Norm = math.Sqrt(squares)
	return nil
}

// restore replaces the rows of a shard by those that the strategy recovers.
func (c *executor) restore(u *twin, tr *Trial, t *Training, shard int) error {
	switch {
	case tr.arm.resetsRows():
		t.SetRows(shard, t.Initial(shard))
		return nil
	case t.Saves():
		return t.Lose([]int{shard})
	}
	parts, err := copyParts(u.saved[tr.Strategy][t.Clock][shard], t.Job.Seed)
	if err == nil {
		t.SetRows(shard, parts)
	}
	return err
}

// halve rounds values to bfloat16, to nearest with ties to even.
func halve(parts []*table.Part) {
	for _, p := range parts {
		for _, piece := range p.Image().Planes[0] {
			for i, v := range piece {
				bits := math.Float32bits(v)
				if v == v { // NaN stays NaN
					bits += 0x7fff + bits>>16&1
				}
				piece[i] = math.Float32frombits(bits &^ 0xffff)
			}
		}
	}
}

// perturb moves the rows of a training as the arm specifies, and returns the distance.
func (u *twin) perturb(a *Arm, clock perdure.Clock, t *Training) float64 {
	rng := rand.New(rand.NewPCG(u.seed, uint64(clock)<<8|0x9e))
	if a.Kind == ByReset {
		return reset(t, a.Size, rng)
	}
	// The direction: random, or from x* to the current model.
	var way [][]float32
	squares := 0.0
	each(t, func(shard, n, piece int, values []float32) {
		d := make([]float32, len(values))
		for i := range d {
			if a.Kind == ByRandom {
				d[i] = float32(rng.NormFloat64())
			} else {
				d[i] = values[i] - u.best[shard][n].Image().Planes[0][piece][i]
			}
			squares += float64(d[i]) * float64(d[i])
		}
		way = append(way, d)
	})
	if squares == 0 { // the model is x* itself, so there is no direction
		return 0
	}
	norm := a.Size * modelDistance(u.initial, u.best)
	scale, next := float32(norm/math.Sqrt(squares)), 0
	each(t, func(_, _, _ int, values []float32) {
		for i, d := range way[next] {
			values[i] += scale * d
		}
		next++
	})
	return norm
}

// each calls do for all values that count for the distance. do may change them in place.
func each(t *Training, do func(shard, n, piece int, values []float32)) {
	for shard := range t.Job.Shards {
		for n, p := range t.Parts(shard) {
			if !countsForDistance(p) {
				continue
			}
			for piece, values := range p.Image().Planes[0] {
				do(shard, n, piece, values)
			}
		}
	}
}

// reset resets each row of the dense tables to its initial values with probability part, and returns the distance
// moved.
func reset(t *Training, part float64, rng *rand.Rand) float64 {
	squares := 0.0
	for shard := range t.Job.Shards {
		first := t.Initial(shard)
		for n, p := range t.Parts(shard) {
			if !countsForDistance(p) {
				continue
			}
			dim := p.Spec.Dim
			for piece, values := range p.Image().Planes[0] {
				from := first[n].Image().Planes[0][piece]
				for at := 0; at < len(values); at += dim {
					if rng.Float64() < part {
						squares += table.SquaredDistance(values[at:at+dim], from[at:at+dim])
						copy(values[at:at+dim], from[at:at+dim])
					}
				}
			}
		}
	}
	return math.Sqrt(squares)
}

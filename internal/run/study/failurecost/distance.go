package failurecost

import (
	"context"
	"fmt"
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/itercost"
	"github.com/perdure/perdure/internal/data/table"
)

// rowsOf are the rows of a training, which goes on with them.
func rowsOf(t *Training) (all rows) {
	for shard := range t.Job.Shards {
		all = append(all, t.Parts(shard))
	}
	return all
}

// initial are the rows that a training began with.
func initial(t *Training) (all rows) {
	for shard := range t.Job.Shards {
		all = append(all, t.Initial(shard))
	}
	return all
}

// between is the distance between two models.
func between(a, b rows) float64 {
	squares := 0.0
	for shard := range a {
		squares += gap(a[shard], b[shard])
	}
	return math.Sqrt(squares)
}

func distance(t *Training, from rows) float64 { return between(rowsOf(t), from) }

// far reports whether a table is a part of the model whose distance counts: sparse rows have other places, and what has
// no distance is no part of the model.
func far(p *table.Part) bool { return !p.Spec.Sparse && p.Spec.Distance != perdure.DistanceNone }

// gap is the square of the distance between rows of dense tables.
func gap(a, b []*table.Part) (squares float64) {
	for n, p := range a {
		if !far(p) {
			continue
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

// findBest finds x*: what a twin comes to that trains for much longer.
func (c *conductor) findBest(ctx context.Context, u *undisturbed, crew Crew) error {
	s := c.of(u.seed, perdure.Recovery{Kind: perdure.RecoverNone})
	t, err := NewTraining(&s, crew)
	if err != nil {
		return err
	}
	for t.Clock < bestAfter*c.Run.Job.Clocks {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, err := t.Advance(ctx); err != nil {
			return err
		}
	}
	u.begin, u.best = initial(t), rowsOf(t)
	if !(between(u.begin, u.best) > 0) {
		return fmt.Errorf("%w: --measure distance, and no dense table of %s changes that counts as distance; choose "+
			"train or test", perdure.ErrUsage, c.Run.Job.Workload)
	}
	return nil
}

// rateOf is c, by which a clock typically multiplies the distance; NaN: it does not fall.
func rateOf(distances []float64) float64 {
	r, err := itercost.Bootstrap{Seed: 1, Draws: 1}.Rate(itercost.EachClock(distances))
	if err != nil {
		return math.NaN()
	}
	return r.C
}

// worst is the largest factor between two neighbours of a series of distances, but for those between which a failure
// struck.
func worst(distances []float64, failed map[int]bool) (c float64) {
	for i := 1; i < len(distances); i++ {
		if !failed[i] {
			c = max(c, distances[i]/distances[i-1])
		}
	}
	return c
}

// bind finds the bounds of what a trial cost: κ of the disturbed run can be no later where each clock, of its twin and
// of itself, takes the model nearer to x* by the factor c at least. And the neat form, of the rate that is typical of
// the twin, which is no bound of all trainings.
func (u *undisturbed) bind(tr *Trial, distances []float64, strike string) error {
	if tr.Censored {
		return nil
	}
	start := between(u.begin, u.best)
	var all []itercost.Perturbation
	failed := map[int]bool{}
	for _, f := range tr.Failures {
		// What strikes amid a clock is added to what that clock came to: the next one begins with it.
		at := int(f.Clock)
		if strike == StrikeAmid {
			at++
		}
		failed[at] = true
		all = append(all, itercost.Perturbation{Clock: at, Norm: f.Norm})
	}
	c := max(worst(u.losses[:u.reach.Clock+1], nil), worst(distances[:u.reach.Clock+tr.Cost+1], failed))
	if c < 1 {
		b, err := itercost.NewBound(c, start, all)
		if err != nil {
			return err
		}
		most, err := b.Cost(u.epsilon, u.reach)
		if err != nil {
			return err
		}
		most++ // for rounding
		tr.Bound = &most
	}
	if u.rate > 0 && u.rate < 1 {
		b, err := itercost.NewBound(u.rate, start, all)
		if err != nil {
			return err
		}
		neat := b.NeatCost()
		tr.Neat = &neat
	}
	return nil
}

package failurecost

import (
	"context"
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/itercost"
	"github.com/perdure/perdure/internal/data/table"
)

// rowsOf returns the rows of a training. They are not copied.
func rowsOf(t *Training) (all rows) {
	for shard := range t.Job.Shards {
		all = append(all, t.Parts(shard))
	}
	return all
}

// initial returns the rows that a training started with.
func initial(t *Training) (all rows) {
	for shard := range t.Job.Shards {
		all = append(all, t.Initial(shard))
	}
	return all
}

// modelDistance returns the distance between two models.
func modelDistance(a, b rows) float64 {
	squares := 0.0
	for shard := range a {
		squares += squaredDistance(a[shard], b[shard])
	}
	return math.Sqrt(squares)
}

func distance(t *Training, from rows) float64 { return modelDistance(rowsOf(t), from) }

// countsForDistance reports whether a table counts for the distance. Sparse tables do not, because the positions of
// their rows differ between models, nor do tables that are not part of the model.
func countsForDistance(p *table.Part) bool {
	return !p.Spec.Sparse && p.Spec.Distance != perdure.DistanceNone
}

// squaredDistance returns the squared distance between the rows of dense tables.
func squaredDistance(a, b []*table.Part) (squares float64) {
	for n, p := range a {
		if !countsForDistance(p) {
			continue
		}
		for at := 0; at < p.Stored(); {
			x := p.Values(at, p.Stored()-at)
			y := b[n].Values(at, p.Stored()-at)
			squares += table.SquaredDistance(x, y)
			at += len(x) / p.Spec.Dim
		}
	}
	return squares
}

// findBest approximates x* by the rows of a twin that trains bestAfter times as long.
func (c *executor) findBest(ctx context.Context, u *twin, crew SlotWorkloads) error {
	s := c.runSettings(u.seed, perdure.Recovery{Kind: perdure.RecoverNone})
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
	u.initial, u.best = initial(t), rowsOf(t)
	if !(modelDistance(u.initial, u.best) > 0) {
		return perdure.Usagef("--measure distance needs a dense table that training changes and the distance "+
			"includes, but %s has none; choose train or test", c.Run.Job.Workload)
	}
	return nil
}

// rateOf returns c, the factor by which a clock typically multiplies the distance, or NaN if the distance does not
// fall.
func rateOf(distances []float64) float64 {
	c, err := itercost.Rate(distances)
	if err != nil {
		return math.NaN()
	}
	return c
}

// worst returns the largest ratio of two successive distances, except where a failure struck between them.
func worst(distances []float64, failed map[int]bool) (c float64) {
	for i := 1; i < len(distances); i++ {
		if !failed[i] {
			c = max(c, distances[i]/distances[i-1])
		}
	}
	return c
}

// setBounds computes the bounds of a trial's cost. Bound assumes that every clock of the twin and of the trial
// multiplies the distance to x* by at most c; κ of the disturbed run can then be no later. SimpleBound is the
// simplified form with the typical rate of the twin. It does not bound every training.
func (u *twin) setBounds(tr *Trial, distances []float64, strike string) error {
	if tr.Censored {
		return nil
	}
	start := modelDistance(u.initial, u.best)
	var all []itercost.Perturbation
	failed := map[int]bool{}
	for _, f := range tr.Failures {
		// With StrikeWithin the failure affects the result of its own clock, so the next clock starts with it.
		at := int(f.Clock)
		if strike == StrikeWithin {
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
		tr.Bound = new(most + 1) // allow for rounding
	}
	if u.rate > 0 && u.rate < 1 {
		b, err := itercost.NewBound(u.rate, start, all)
		if err != nil {
			return err
		}
		tr.SimpleBound = new(b.SimpleCost())
	}
	return nil
}

// Package mf predicts ratings by matrix factorisation: a user's rating of an item
// is m + s·(u·v), with the mean m and the standard deviation s of the training
// ratings, and a row of Rank values for each user and for each item, trained by
// stochastic gradient descent. Through s, rates and L2 mean the same whatever
// the ratings' scale is.
//
// The loss of one rating r is ½e² + ½·L2·(|u|² + |v|²) with the error
// e = (r - m)/s - u·v, and its step at the rate η, both rows at once,
//
//	u ← (1 - η·L2)·u + η·e·v
//	v ← (1 - η·L2)·v + η·e·u
//
// so that rows are the more held back the more ratings they have. What is shown
// as a loss is the mean of (s·e)² alone, and as RMSE its root: both are in the
// ratings' own units.
//
// A slot has the training ratings of a run of users, all slots about equally
// many. It goes through them pass by pass, every rating once in each; a clock
// does 1/round(1/ClockFraction) of a pass. The ratings of a clock are drawn
// anew in each pass by (seed, slot, pass), and gone through in order of users,
// which keeps a user's row in the first-level cache. With WholeUsers a clock has
// all ratings of the next users and goes through these in rounds, each with a
// part of the ratings that is drawn likewise.
//
// The solver als minimises the same loss by alternating least squares, of each row
// at once: see alternating.go.
//
// [Open] makes it a workload over two tables: a clock reads the rows that its
// ratings need, trains copies of them rating by rating, and adds what changed.
// [Plain] is the same computation without tables, on one thread: the reference
// for speed and for what can be reached. Each gives the same bits on every run; the two
// differ in the last ones, unless Plain.Rounded is set.
package mf

import (
	"fmt"
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
)

// Options of a model.
type Options struct {
	Seed          uint64  // of the order of the ratings
	Slots         int     // at least 1
	Rank          int     // values in a row, 1 to MaxRank
	L2            float64 // at least 0
	ClockFraction float64 // above 0, at most 1
	WholeUsers    bool
	Implicit      float64 // of als: 0, or what makes values counts of what was seen
}

// MaxRank bounds the rank: far beyond use.
const MaxRank = 4096

// maxClocksPerPass is what the least ClockFraction comes to.
const maxClocksPerPass = 50_000

// factors are the data, and what a prediction is.
type factors struct {
	data    *dataset.Ratings
	options Options
	stride  int // values that a row takes here: Rank, made up to a multiple of 8 by zeros

	ratingMean, ratingDeviation float64 // of ratings
	mean, scale                 float32 // a rating's target is (rating - mean)·scale: the same, and its inverse
}

func newFactors(data *dataset.Ratings, o Options) (*factors, error) {
	switch {
	case o.Rank < 1 || o.Rank > MaxRank:
		return nil, fmt.Errorf("%w: mf: rank %d; choose 1 to %d", perdure.ErrUsage, o.Rank, MaxRank)
	case !(o.L2 >= 0) || o.L2 > math.MaxFloat32:
		return nil, fmt.Errorf("%w: mf: l2 %v is not a finite number ≥ 0", perdure.ErrUsage, o.L2)
	case !(o.ClockFraction*maxClocksPerPass >= 1) || o.ClockFraction > 1:
		return nil, fmt.Errorf("%w: mf: clock fraction %v; choose %g to 1", perdure.ErrUsage, o.ClockFraction,
			1.0/maxClocksPerPass)
	}
	f := &factors{data: data, options: o, stride: (o.Rank + 7) &^ 7}
	f.setScale(data.Mean, data.Deviation)
	return f, nil
}

// setScale says what a prediction of 0 means, and one of 1.
func (f *factors) setScale(mean, deviation float64) {
	f.ratingMean, f.ratingDeviation, f.mean, f.scale = mean, deviation, float32(mean), float32(1/deviation)
}

// clocksPerSide is how many clocks go through the data once.
func (f *factors) clocksPerSide() int { return int(math.Round(1 / f.options.ClockFraction)) }

// model is also the order in which slots go through the data, and the step of SGD.
type model struct {
	*factors
	*order
}

func newModel(data *dataset.Ratings, o Options) (*model, error) {
	f, err := newFactors(data, o)
	if err != nil {
		return nil, err
	}
	m := &model{factors: f}
	return m, m.setSlots(o.Slots)
}

// setSlots shares the ratings out among the slots that there are from now on. It does nothing if
// they are already.
func (m *model) setSlots(slots int) error {
	switch {
	case m.order != nil && slots == len(m.slots):
		return nil
	case slots < 1:
		return fmt.Errorf("%w: mf: %d workers; choose at least 1", perdure.ErrUsage, slots)
	}
	o := &m.options
	clocks := m.clocksPerSide()
	next := newOrder(&m.data.Train, m.data.Users, o.Seed, slots, clocks, o.WholeUsers)
	for slot := range next.slots {
		if n := next.slots[slot].ratings(); n < clocks {
			return fmt.Errorf("%w: mf: worker %d of %d would have %d ratings for the %d clocks of a pass; choose "+
				"fewer workers or a larger clock fraction", perdure.ErrUsage, slot, slots, n, clocks)
		}
	}
	o.Slots, m.order = slots, next
	return nil
}

// sample is one rating to train on: the places of its rows among those at hand, and
// what u·v should be.
type sample struct {
	user, item int32
	target     float32
}

// train does the steps of a clock, in order, on rows of stride values, and
// returns the sum of the squared errors, each before its step.
func (m *model) train(jobs []sample, users, items []float32, rate float32) (squares float64) {
	keep := 1 - float32(rate*float32(m.options.L2))
	for i := range jobs {
		j := &jobs[i]
		u := users[int(j.user)*m.stride:][:m.stride]
		v := items[int(j.item)*m.stride:][:m.stride]
		e := float64(step(u, v, j.target, rate, keep))
		squares += float64(e * e)
	}
	return squares
}

// squaredErrors adds the squared errors of a split's ratings from the at-th on by
// users below end, and returns where the next user's begin. Row 0 of users is
// that of the user first.
func (f *factors) squaredErrors(
	squares float64, s *dataset.RatingSplit, at int, first, end int32, users, items []float32,
) (float64, int) {
	for ; at < s.Len() && s.User[at] < end; at++ {
		u := users[int(s.User[at]-first)*f.stride:][:f.stride]
		v := items[int(s.Item[at])*f.stride:][:f.stride]
		e := float64(f.target(s.Value[at]) - dot(u, v))
		squares += float64(e * e)
	}
	return squares, at
}

// target is what u·v should be for a rating.
func (f *factors) target(rating float32) float32 { return float32(rating-f.mean) * f.scale }

// loss is the mean squared error, in squares of the ratings' units, of as many
// ratings as the squares were summed of.
func (f *factors) loss(squares float64, ratings int) float64 {
	return f.ratingDeviation * f.ratingDeviation * squares / float64(ratings)
}

// widen copies rows of Rank values to rows of stride values, whose other values
// stay zeros.
func (f *factors) widen(wide, rows []float32) {
	rank := f.options.Rank
	for at, i := 0, 0; i < len(rows); at, i = at+f.stride, i+rank {
		copy(wide[at:at+rank], rows[i:i+rank])
		clear(wide[at+rank : at+f.stride])
	}
}

// Package mf trains matrix factorisations that predict ratings. The predicted rating of an item by a user is m +
// s·(u·v): m and s are the mean and the standard deviation of the training ratings, and u and v are rows of Rank values
// for the user and the item. Stochastic gradient descent trains the rows. Because of s, rates and L2 have the same
// meaning for every scale of ratings.
//
// The loss of one rating r is ½e² + ½·L2·(|u|² + |v|²) with the error e = (r - m)/s - u·v. A step at the rate η changes
// both rows simultaneously:
//
//	u ← (1 - η·L2)·u + η·e·v
//	v ← (1 - η·L2)·v + η·e·u
//
// Rows with more ratings are therefore regularised more. The reported loss is only the mean of (s·e)², and the RMSE is
// its root: both are in units of the ratings.
//
// A slot processes the training ratings of consecutive users; all slots have about the same number of ratings. In each
// pass it uses every rating once, and a clock does 1/round(1/ClockFraction) of a pass. (seed, slot, pass) determines
// which ratings a clock draws. Within the clock they are in order of users, which keeps a user's row in the L1 cache.
// With WholeUsers, a clock has all ratings of the next users. It processes them in rounds, each with a random part of
// the ratings.
//
// The solver als minimises the same loss by alternating least squares, one complete row at a time: see alternating.go.
//
// [Open] returns a workload with two tables. A clock reads the rows that its ratings need, trains copies of them rating
// by rating, and adds the changes. [Plain] is the same computation on one thread without tables: the baseline for speed
// and for the reachable loss. Each gives the same bits on every run. The two differ in the last bits, unless
// Plain.Rounded is set.
package mf

import (
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/run/workload/api"
)

// Options configures a model.
type Options struct {
	Seed  uint64 // determines the order of the ratings
	Slots int    // at least 1
	api.Factors
}

// MaxRank is the max rank. It is far above practical values.
const MaxRank = 4096

// maxClocksPerPass is the number of clocks per pass at the smallest ClockFraction.
const maxClocksPerPass = 50_000

// factors holds the data and the scale of predictions.
type factors struct {
	data    *dataset.Ratings
	options Options
	stride  int // values per row in memory: Rank, padded with zeros to a multiple of 8

	ratingMean, ratingDeviation float64 // of the ratings
	mean, scale                 float32 // ratingMean and 1/ratingDeviation: targets are (rating - mean)·scale
}

func newFactors(data *dataset.Ratings, o Options) (*factors, error) {
	switch {
	case o.Rank < 1 || o.Rank > MaxRank:
		return nil, perdure.Usagef("mf: invalid rank %d; choose 1 to %d", o.Rank, MaxRank)
	case !(o.L2 >= 0) || o.L2 > math.MaxFloat32:
		return nil, perdure.Usagef("mf: l2 %v is not a finite number ≥ 0", o.L2)
	case !(o.ClockFraction*maxClocksPerPass >= 1) || o.ClockFraction > 1:
		return nil, perdure.Usagef("mf: invalid clock fraction %v; choose %g to 1", o.ClockFraction,
			1.0/maxClocksPerPass)
	}
	f := &factors{data: data, options: o, stride: (o.Rank + 7) &^ 7}
	f.setScale(data.Mean, data.Deviation)
	return f, nil
}

// setScale sets the ratings that predictions of 0 and 1 stand for.
func (f *factors) setScale(mean, deviation float64) {
	f.ratingMean, f.ratingDeviation, f.mean, f.scale = mean, deviation, float32(mean), float32(1/deviation)
}

// clocksPerSide returns the number of clocks that process the data once.
func (f *factors) clocksPerSide() int { return int(math.Round(1 / f.options.ClockFraction)) }

// model adds the order in which slots process the data, and the step of SGD.
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

// setSlots distributes the ratings among the given number of slots. It does nothing if the number is unchanged.
func (m *model) setSlots(slots int) error {
	switch {
	case m.order != nil && slots == len(m.slots):
		return nil
	case slots < 1:
		return perdure.Usagef("mf: invalid number of workers %d; choose at least 1", slots)
	}
	o := &m.options
	clocks := m.clocksPerSide()
	next := newOrder(&m.data.Train, m.data.Users, o.Seed, slots, clocks, o.WholeUsers)
	for slot := range next.slots {
		if n := next.slots[slot].ratings(); n < clocks {
			return perdure.Usagef("mf: worker %d of %d would have %d ratings for the %d clocks of a pass; choose "+
				"fewer workers or a larger clock fraction", slot, slots, n, clocks)
		}
	}
	o.Slots, m.order = slots, next
	return nil
}

// sample is one rating to train on: the indexes of its rows among the rows read, and the target of u·v.
type sample struct {
	user, item int32
	target     float32
}

// train performs the steps of a clock, in order, on rows of stride values. It returns the sum of the squared errors,
// each before its step.
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

// squaredErrors adds the squared errors of a split's ratings, starting at index at, by users below end. It returns the
// index of the next user's first rating. Row 0 of users belongs to the user first.
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

// target returns the value that u·v should have for a rating.
func (f *factors) target(rating float32) float32 { return float32(rating-f.mean) * f.scale }

// loss converts a sum of squared errors over a number of ratings to the mean, in squares of the ratings' units.
func (f *factors) loss(squares float64, ratings int) float64 {
	return f.ratingDeviation * f.ratingDeviation * squares / float64(ratings)
}

// widen copies rows of Rank values to rows of stride values. The padding stays zero.
func (f *factors) widen(wide, rows []float32) {
	rank := f.options.Rank
	for at, i := 0, 0; i < len(rows); at, i = at+f.stride, i+rank {
		copy(wide[at:at+rank], rows[i:i+rank])
		clear(wide[at+rank : at+f.stride])
	}
}

package mf

import (
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/data/table"
)

// PlainAlternating trains by alternating least squares on one thread without tables. It is the baseline for speed. A
// bsp job computes the same bits with any number of workers. It is not safe for concurrent use.
type PlainAlternating struct {
	a            *alternating
	now          perdure.Clock
	users, items []float32 // rows of Rank values
}

// NewPlainAlternating returns a trainer at clock 0. Its initial rows are those of a job with the same seed.
func NewPlainAlternating(data *dataset.Ratings, o Options) (*PlainAlternating, error) {
	a, err := newAlternating(data, o)
	if err != nil {
		return nil, err
	}
	p := &PlainAlternating{a: a}
	for i, to := range []*[]float32{&p.users, &p.items} {
		spec := a.Tables()[i]
		part := table.New(spec, perdure.TableID(i), o.Seed, 0, int(spec.Rows))
		if *to, err = part.Run(0, part.Rows); err != nil {
			return nil, err
		}
	}
	for i := range a.given.place {
		a.given.place[i] = int32(i)
	}
	return p, nil
}

// Run trains for a number of clocks. It returns the number of ratings processed and the root of their mean squared
// error.
func (p *PlainAlternating) Run(clocks perdure.Clock) (ratings int, trainRMSE float64, err error) {
	squares := 0.0
	for range clocks {
		s, part, of := p.a.sideOf(p.now)
		own, from := p.users, p.items
		if s.table == Items {
			own, from = p.items, p.users
		}
		p.a.given.got = from
		first, end := s.cut(part, of), s.cut(part+1, of)
		e, err := p.a.solveRows(s, first, end, p.a.given)
		if err != nil {
			return ratings, 0, err
		}
		copy(own[first*p.a.options.Rank:], p.a.own)
		squares, ratings = squares+e, ratings+s.starts[end]-s.starts[first]
		p.now++
	}
	return ratings, math.Sqrt(p.a.loss(squares, ratings)), nil
}

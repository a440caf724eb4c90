package mf

import (
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/data/table"
)

// Plain trains on one thread without tables. Data, order and step are those of a workload with one slot. It is not safe
// for concurrent use.
type Plain struct {
	// Rounded makes the end of each clock round as tables do: they store old + (new - old), where the plain loop stores
	// new. A job with one slot then computes the same bits.
	Rounded bool

	m            *model
	rate         func(perdure.Clock) float32
	now          perdure.Clock
	users, items []float32 // rows of stride values
	samples      []sample
	before       []float32 // if Rounded: the rows at the start of the clock
}

// NewPlain returns a trainer at clock 0. Its initial rows are those of a job with the same seed. Slots must be 1.
func NewPlain(data *dataset.Ratings, o Options, rate func(perdure.Clock) float32) (*Plain, error) {
	m, err := newModel(data, o)
	if err != nil {
		return nil, err
	}
	p := &Plain{m: m, rate: rate}
	for i, rows := range []*[]float32{&p.users, &p.items} {
		spec := m.tables()[i]
		part := table.New(spec, perdure.TableID(i), o.Seed, 0, int(spec.Rows))
		values, err := part.Run(0, int(spec.Rows))
		if err != nil {
			return nil, err
		}
		*rows = make([]float32, int(spec.Rows)*m.stride)
		m.widen(*rows, values)
	}
	return p, nil
}

// Run trains for a number of clocks. It returns the number of ratings processed and the root of their mean squared
// error, each measured before its step.
func (p *Plain) Run(clocks perdure.Clock) (ratings int, trainRMSE float64) {
	squares := 0.0
	for range clocks {
		split := &p.m.data.Train
		p.samples = p.samples[:0]
		for _, i := range p.m.clock(split, 0, p.now) {
			p.samples = append(p.samples, sample{split.User[i], split.Item[i], p.m.target(split.Value[i])})
		}
		if p.Rounded {
			p.before = append(append(p.before[:0], p.users...), p.items...)
		}
		squares += p.m.train(p.samples, p.users, p.items, p.rate(p.now))
		ratings += len(p.samples)
		if p.Rounded {
			round(p.users, p.before)
			round(p.items, p.before[len(p.users):])
		}
		p.now++
	}
	return ratings, math.Sqrt(p.m.loss(squares, ratings))
}

func round(rows, before []float32) {
	for i, v := range rows {
		rows[i] = before[i] + float32(v-before[i])
	}
}

package workload

import "github.com/perdure/perdure/internal/run/workload/api"

// PlainQuadratic descends into a bowl on one thread without tables: the reference for speed. A job of one worker under
// bsp gives the same bits. It is not for concurrent use.
type PlainQuadratic struct {
	*quadratic
	rate float32
}

// NewPlainQuadratic returns a descent at clock 0, by plain gradient descent.
func NewPlainQuadratic(p api.Params) (*PlainQuadratic, error) {
	w, err := openQuadratic(p)
	if err != nil {
		return nil, err
	}
	opened := w.(*quadratic)
	return &PlainQuadratic{quadratic: opened, rate: opened.params.Rule.RateAt(0)}, nil
}

// Run descends for a number of clocks. It returns how many values they had, and how far a value was from its best one
// before the last of them.
func (p *PlainQuadratic) Run(clocks int64) (values int, off float64) {
	for range clocks {
		p.descend(1)
		_, off = p.evaluate()
		for i, g := range p.gradient {
			p.x[i] -= float32(p.rate * g)
		}
		values += len(p.x)
	}
	return values, off
}

package workload

import "github.com/perdure/perdure/internal/run/workload/api"

// PlainQuadratic minimises a quadratic on one thread without tables. It is the baseline for speed. A bsp job with one
// worker computes the same bits. It is not safe for concurrent use.
type PlainQuadratic struct {
	*quadratic
	rate float32
}

// NewPlainQuadratic returns a trainer at clock 0 that uses plain gradient descent.
func NewPlainQuadratic(p api.Params) (*PlainQuadratic, error) {
	w, err := openQuadratic(p)
	if err != nil {
		return nil, err
	}
	opened := w.(*quadratic)
	return &PlainQuadratic{quadratic: opened, rate: opened.params.Rule.RateAt(0)}, nil
}

// Run trains for a number of clocks. It returns the number of values computed and the root mean square of xᵢ − x*ᵢ
// before the last clock.
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

package report

import (
	"github.com/perdure/perdure/internal/run/plot"
)

// measured are the numbers of a column at their times; what is no finite number is left out, and says so.
func (t *trial) measured(column string) (p plot.Points, diverged bool) {
	return plot.Measured(t.series.Columns, t.series.Rows, column)
}

// curve is what trials measured: their median, and from least to most. A run that has ended with a result counts on
// with its last value, since its model stays as it is.
func (g *group) curve(column string) (c plot.Curve, any bool) {
	c.Look = g.Look
	var all []plot.Points
	var stays []bool
	for _, t := range g.Trials {
		p, diverged := t.measured(column)
		all, stays = append(all, p), append(stays, t.done() && !diverged && column != "clocks_per_second")
	}
	c.X, c.Mid, c.Low, c.High, any = plot.Band(all, stays)
	return c, any
}

// middle is the curve's value at a time, for a mark on it.
func middle(c *plot.Curve, x float64) float64 {
	p := plot.Points{X: c.X, Y: c.Mid}
	if y, ok := p.At(x, true); ok {
		return y
	}
	return c.Mid[0]
}

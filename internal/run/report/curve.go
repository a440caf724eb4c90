package report

import (
	"github.com/perdure/perdure/internal/run/plot"
)

// points returns the values of a column over time. diverged reports whether some were not finite; these are omitted.
func (t *trial) points(column string) (p plot.Points, diverged bool) {
	return plot.ReadPoints(t.series.Columns, t.series.Rows, column)
}

// curve returns the median of the trials, and the band from the minimum to the maximum. A run that has ended with a
// result keeps its last value, because its model does not change.
func (g *group) curve(column string) (c plot.Curve, any bool) {
	c.Style = g.Style
	var all []plot.Points
	var stays []bool
	for _, t := range g.Trials {
		p, diverged := t.points(column)
		all, stays = append(all, p), append(stays, t.done() && !diverged && column != "clocks_per_second")
	}
	c.X, c.Mid, c.Low, c.High, any = plot.Band(all, stays)
	return c, any
}

// middle returns the curve's value at a time, for a mark on it.
func middle(c *plot.Curve, x float64) float64 {
	p := plot.Points{X: c.X, Y: c.Mid}
	if y, ok := p.At(x, true); ok {
		return y
	}
	return c.Mid[0]
}

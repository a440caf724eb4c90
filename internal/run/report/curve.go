package report

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure/internal/run/draw"
	"github.com/perdure/perdure/internal/run/study"
)

// mostPoints is how many places of the horizontal axis a curve has: more than a picture shows.
const mostPoints = 240

// points are values of a column over seconds.
type points struct{ x, y []float64 }

// measured are the numbers of a column at their times; what is no finite number is left out, and says so.
func (t *trial) measured(column string) (p points, diverged bool) {
	at, in := slices.Index(t.series.Columns, "seconds"), slices.Index(t.series.Columns, column)
	behind := -1
	if strings.HasPrefix(column, "test_") { // rows that lacked updates are of no state of the training
		behind = slices.Index(t.series.Columns, "backlog")
	}
	if at < 0 || in < 0 {
		return p, false
	}
	for _, row := range t.series.Rows {
		x, err := strconv.ParseFloat(row[at], 64)
		if err != nil || row[in] == "" || behind >= 0 && row[behind] == "1" {
			continue
		}
		y, err := strconv.ParseFloat(row[in], 64)
		switch {
		case err != nil:
		case math.IsNaN(y) || math.IsInf(y, 0):
			diverged = true
		case len(p.x) == 0 || x >= p.x[len(p.x)-1]:
			p.x, p.y = append(p.x, x), append(p.y, y)
		}
	}
	return p, diverged
}

// at is the value at a time, between two that were measured; none before the first. After the last one it
// holds for a run that has ended with a result, since its model stays as it is.
func (p *points) at(x float64, stays bool) (y float64, ok bool) {
	if len(p.x) == 0 || x < p.x[0] {
		return 0, false
	}
	i, found := slices.BinarySearch(p.x, x)
	switch {
	case found:
		return p.y[i], true
	case i == len(p.x):
		return p.y[i-1], stays
	}
	share := (x - p.x[i-1]) / (p.x[i] - p.x[i-1])
	return p.y[i-1] + share*(p.y[i]-p.y[i-1]), true
}

// curve is what trials measured: their median, and from least to most.
func (g *group) curve(column string) (c draw.Curve, any bool) {
	c.Look = g.Look
	var all []points
	var stays []bool
	first, last := math.Inf(-1), math.Inf(-1)
	for _, t := range g.Trials {
		p, diverged := t.measured(column)
		if len(p.x) == 0 {
			continue
		}
		all, stays = append(all, p), append(stays, t.done() && !diverged && column != "clocks_per_second")
		first, last = max(first, p.x[0]), max(last, p.x[len(p.x)-1])
	}
	switch {
	case len(all) == 0:
		return c, false
	case len(all) == 1:
		thin := thinned(all[0])
		c.X, c.Mid = thin.x, thin.y
		return c, true
	}
	for i := range mostPoints + 1 {
		x := first + (last-first)*float64(i)/mostPoints
		var values []float64
		for n := range all {
			if y, ok := all[n].at(x, stays[n]); ok {
				values = append(values, y)
			}
		}
		s := study.SpreadOf(values)
		c.X, c.Mid = append(c.X, x), append(c.Mid, s.Mid)
		c.Low, c.High = append(c.Low, s.Low), append(c.High, s.High)
	}
	return c, true
}

// thinned keeps of each place of the axis the first and the last value, the least and the most: what is
// left out would be drawn over.
func thinned(p points) points {
	n := len(p.x)
	if n <= 2*mostPoints {
		return p
	}
	var out points
	width := (p.x[n-1] - p.x[0]) / (mostPoints / 2)
	for from := 0; from < n; {
		end := from + 1
		for end < n && (width == 0 || math.Floor((p.x[end]-p.x[0])/width) == math.Floor((p.x[from]-p.x[0])/width)) {
			end++
		}
		keep := []int{from, from, from, end - 1}
		for i := from; i < end; i++ {
			if p.y[i] < p.y[keep[1]] {
				keep[1] = i
			}
			if p.y[i] > p.y[keep[2]] {
				keep[2] = i
			}
		}
		slices.Sort(keep)
		for _, i := range slices.Compact(keep) {
			out.x, out.y = append(out.x, p.x[i]), append(out.y, p.y[i])
		}
		from = end
	}
	return out
}

// middle is the curve's value at a time, for a mark on it.
func middle(c *draw.Curve, x float64) float64 {
	p := points{c.X, c.Mid}
	if y, ok := p.at(x, true); ok {
		return y
	}
	return c.Mid[0]
}

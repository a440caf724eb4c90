package plot

import (
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"
)

// box is the range of items. An axis without a range has NaN.
type box struct{ x, y [2]float64 }

func (b box) with(o box) box {
	widen := func(a, b [2]float64) [2]float64 {
		for _, v := range b {
			if !math.IsNaN(v) && !math.IsInf(v, 0) {
				a = [2]float64{min(a[0], v), max(a[1], v)}
			}
		}
		return a
	}
	return box{widen(b.x, o.x), widen(b.y, o.y)}
}

// none returns the empty range.
func none() box {
	return box{[2]float64{math.Inf(1), math.Inf(-1)}, [2]float64{math.Inf(1), math.Inf(-1)}}
}

// plot returns the panel's plot. The names of rows are above each row.
func (p *Panel) plot() *plot.Plot {
	all := p.all()
	out := plot.New()
	out.BackgroundColor = nil
	for _, a := range []*plot.Axis{&out.X, &out.Y} {
		a.Color, a.Tick.Color, a.LineStyle.Width, a.Tick.LineStyle.Width = ColorAxis, ColorAxis, 1, 1
		a.Padding, a.Tick.Length, a.Label.Padding = 0, 4, 3
		a.Tick.Label.Color, a.Tick.Label.Font.Size = ColorSecondary, 11
		a.Label.TextStyle.Color, a.Label.TextStyle.Font.Size = ColorSecondary, 11.5
	}
	out.Y.LineStyle.Width, out.Y.Tick.Length, out.Y.Padding = 0, 0, 2
	out.X.Tick.Label.YAlign = text.YTop
	p.X.set(&out.X, all.x, 6)
	out.X.Label.Text = p.X.Name
	lines := vgdraw.LineStyle{Color: ColorGrid, Width: 1}
	if p.Rows == nil {
		p.Y.set(&out.Y, all.y, 5)
		out.Add(&plotter.Grid{Horizontal: lines})
	} else {
		out.Y.Min, out.Y.Max = -.5, float64(len(p.Rows))-.5
		out.Y.Tick.Marker = plot.ConstantTicks{}
		out.Add(&plotter.Grid{Vertical: lines}, namesAbove(p.Rows))
	}
	for _, i := range p.Items {
		out.Add(i)
	}
	return out
}

// set sets the range of an axis, and about n ticks.
func (a *Axis) set(to *plot.Axis, is [2]float64, n int) {
	low, high := a.Low, a.High
	if !(high > low) {
		low, high = is[0], is[1]
		if interval := high - low; interval > 0 && !math.IsInf(interval, 0) {
			if low != 0 {
				low -= interval * .04
			}
			if a.FromZero && is[0] >= 0 {
				low = 0
			}
			if high != 0 {
				high += interval * .05
			}
			if is[0] >= 0 {
				low = max(0, low)
			}
			if a.Percent && is[1] <= 1 {
				high = min(1, high)
			}
		}
	}
	switch {
	case math.IsInf(low, 0) || math.IsInf(high, 0) || math.IsNaN(low+high):
		low, high = 0, 1
	case !(high > low):
		least := .5
		if a.Percent {
			least = .05
		}
		low, high = low-max(least, math.Abs(low)*.05), high+max(least, math.Abs(high)*.05)
	}
	to.Min, to.Max = low, high
	at := a.ticks(low, high, n)
	write := a.writer(at)
	to.Tick.Marker = plot.TickerFunc(func(float64, float64) (all []plot.Tick) {
		for _, v := range at {
			all = append(all, plot.Tick{Value: v, Label: write(v)})
		}
		return all
	})
}

// ticks returns about n round numbers in a range.
func (a *Axis) ticks(low, high float64, n int) (at []float64) {
	raw := (high - low) / float64(n)
	step := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 5, 10} {
		if m*step >= raw*.999 {
			step *= m
			break
		}
	}
	if a.Integer {
		step = max(1, step)
	}
	for k := math.Ceil(low/step - 1e-9); k*step <= high+1e-9*step; k++ {
		at = append(at, k*step+0) // +0 avoids a negative zero
	}
	return at
}

// writer returns a function that formats ticks with as many digits as their distance requires.
func (a *Axis) writer(at []float64) func(float64) string {
	scale, unit := 1.0, ""
	if a.Percent {
		scale, unit = 100, "%"
	}
	digits := 0
	if len(at) > 1 {
		digits = max(0, -int(math.Floor(math.Log10(scale*(at[1]-at[0]))+1e-9)))
	}
	return func(v float64) string {
		s := strconv.FormatFloat(scale*v, 'f', digits, 64)
		if whole, fraction, _ := strings.Cut(s, "."); fraction == "" && len(whole) > 4 {
			s = thousands(whole)
		}
		return strings.ReplaceAll(s, "-", "−") + unit
	}
}

// thousands inserts thousands separators.
func thousands(s string) string {
	for at := len(s) - 3; at > 0 && s[at-1] >= '0' && s[at-1] <= '9'; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return s
}

// rowAt returns the position of a row on its axis, which points upwards.
func rowAt(rows, row int) float64 { return float64(rows - 1 - row) }

// rows returns the number of rows in the panel of a plot.
func rows(p *plot.Plot) int { return int(math.Round(p.Y.Max - p.Y.Min)) }

// namesAbove draws the name of each row above its items.
type namesAbove []string

func (n namesAbove) Plot(c vgdraw.Canvas, p *plot.Plot) {
	_, y := p.Transforms(&c)
	for i, name := range n {
		style := styled(textSize-.5, ColorText)
		c.FillText(style, vg.Point{X: c.Min.X, Y: y(rowAt(len(n), i)) + 4}, fit(name, style, float64(c.Max.X-c.Min.X)))
	}
}

// Right returns the maximum of the horizontal axis that the panel's items need.
func (p *Panel) Right() float64 { return p.all().x[1] }

// FittedY returns the vertical axis with the range that the panel's items need, so that other panels can share it.
func (p *Panel) FittedY() Axis {
	var to plot.Axis
	p.Y.set(&to, p.all().y, 5)
	a := p.Y
	a.Low, a.High = to.Min, to.Max
	return a
}

// all returns the range of the items.
func (p *Panel) all() box {
	all := none()
	for _, i := range p.Items {
		all = all.with(i.bounds())
	}
	return all
}

package plot

import (
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"
)

// Curve is a series: a line for the median and, if given, a band for the range. NaN leaves a gap.
type Curve struct {
	Style          Style
	X, Mid         []float64
	Low, High      []float64 // nil: no band
	PointsAtValues bool      // draw a point at each value; otherwise points are sparse
	Faint          bool      // draw the band faintly, because it is covered by much else
}

func (s *Curve) bounds() box {
	b := none()
	for i, x := range s.X {
		b = b.with(box{[2]float64{x, x}, [2]float64{s.Mid[i], s.Mid[i]}})
		if s.Low != nil {
			b = b.with(box{[2]float64{x, x}, [2]float64{s.Low[i], s.High[i]}})
		}
	}
	return b
}

// Plot draws the series.
func (s *Curve) Plot(c vgdraw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	place := func(v float64) vg.Length { // SVG has no infinity
		far := (c.Max.Y - c.Min.Y) * 3
		return min(max(y(v), c.Min.Y-far), c.Max.Y+far)
	}
	for _, part := range s.parts() {
		var line, upper, lower []vg.Point
		for _, i := range part {
			at := x(s.X[i])
			line = append(line, vg.Point{X: at, Y: place(s.Mid[i])})
			if s.Low != nil {
				upper = append(upper, vg.Point{X: at, Y: place(s.High[i])})
				lower = append(lower, vg.Point{X: at, Y: place(s.Low[i])})
			}
		}
		if len(upper) > 1 {
			slices.Reverse(lower)
			opacity := .17
			if s.Faint {
				opacity = .07
			}
			c.FillPolygon(ink{s.Style.Color, opacity}, c.ClipPolygonXY(append(upper, lower...)))
		}
		c.StrokeLines(s.Style.lineStyle(), c.ClipLinesXY(line)...)
		s.drawPoints(c, line)
	}
}

// parts returns the ranges of indexes with values.
func (s *Curve) parts() (all [][]int) {
	var part []int
	for i := range s.X {
		if math.IsNaN(s.Mid[i]) || math.IsNaN(s.X[i]) {
			if len(part) > 0 {
				all = append(all, part)
			}
			part = nil
			continue
		}
		part = append(part, i)
	}
	if len(part) > 0 {
		all = append(all, part)
	}
	return all
}

// between is the distance between the points on a line.
const between = 64

func (s *Curve) drawPoints(c vgdraw.Canvas, line []vg.Point) {
	if s.Style.Shape == 0 {
		return
	}
	// series start their points at different offsets, so that they do not hide each other
	next := line[0].X + vg.Length(between*(1+int(s.Style.Color-ColorSeries)*3%NumSeriesColors)/(NumSeriesColors+1))
	if len(line) == 1 || s.PointsAtValues {
		next = line[0].X
	}
	for _, at := range line {
		if at.X >= next || s.PointsAtValues {
			c.DrawGlyph(s.Style.pointStyle(3.4), at)
			next = at.X + between
		}
	}
}

// cross draws a mark with an outline, so that it is visible on any line.
func cross(c vgdraw.Canvas, at vg.Point, tone Color) {
	const r = 3.8
	for _, s := range []vgdraw.LineStyle{{Color: ColorBackground, Width: 4.6}, {Color: tone, Width: 2.1}} {
		c.StrokeLine2(s, at.X-r, at.Y-r, at.X+r, at.Y+r)
		c.StrokeLine2(s, at.X-r, at.Y+r, at.X+r, at.Y-r)
	}
}

// Span is an interval of the horizontal axis with its own background. An interval too short to be visible is widened.
type Span struct {
	From, To float64
	Color    Color
}

func (s *Span) bounds() box { return none() }

// Plot draws the interval.
func (s *Span) Plot(c vgdraw.Canvas, p *plot.Plot) {
	x, _ := p.Transforms(&c)
	from, to := max(x(s.From), c.Min.X), min(x(s.To), c.Max.X)
	if to < from {
		return
	}
	to = max(to, from+1.5)
	fillBox(c, s.Color, from, c.Min.Y, to, c.Max.Y)
}

func fillBox(c vgdraw.Canvas, tone Color, left, low, right, high vg.Length) {
	c.FillPolygon(tone, []vg.Point{{X: left, Y: low}, {X: right, Y: low}, {X: right, Y: high}, {X: left, Y: high}})
}

// Mark is a cross on a series.
type Mark struct {
	X, Y  float64
	Color Color
}

func (m *Mark) bounds() box { return none() }

// Plot draws the mark if it is inside the panel.
func (m *Mark) Plot(c vgdraw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	at := vg.Point{X: x(m.X), Y: min(max(y(m.Y), c.Min.Y), c.Max.Y)}
	if !math.IsNaN(m.X+m.Y) && c.ContainsX(at.X) {
		cross(c, at, m.Color)
	}
}

// VerticalLine is a vertical line.
type VerticalLine struct {
	X     float64
	Color Color
}

func (u *VerticalLine) bounds() box { return none() }

// Plot draws the line.
func (u *VerticalLine) Plot(c vgdraw.Canvas, p *plot.Plot) {
	x, _ := p.Transforms(&c)
	if at := x(u.X); c.ContainsX(at) {
		c.StrokeLine2(vgdraw.LineStyle{Color: u.Color, Width: 1.3}, at, c.Min.Y, at, c.Max.Y)
	}
}

// Bar is a part of a bar in a row.
type Bar struct {
	Row      int
	From, To float64
	Style    Style
	Inside   string // text inside the bar, if there is room
}

func (b *Bar) bounds() box { return box{[2]float64{b.From, b.To}, [2]float64{math.NaN(), math.NaN()}} }

const barHeight = 6.5 // half the height of a bar

// Plot draws the bar. A line separates the parts.
func (b *Bar) Plot(c vgdraw.Canvas, p *plot.Plot) {
	if math.IsNaN(b.From + b.To) {
		return
	}
	x, y := rowPosition(c, p, b.Row)
	from, to := x(b.From), x(b.To)
	if to-from >= .2 {
		fillBox(c, b.Style.Color, from, y-barHeight, to, y+barHeight)
		c.StrokeLine2(vgdraw.LineStyle{Color: ColorBackground, Width: 1}, to, y-barHeight, to, y+barHeight)
	}
	style := styled(11, ColorSecondary)
	style.Color = ColorBackground
	if b.Style.Color == ColorMuted || b.Style.Color == ColorOutage {
		style.Color = ColorText
	}
	if wide := vg.Length(wider) * style.Width(b.Inside); b.Inside != "" && wide+6 < to-from {
		c.FillText(style, vg.Point{X: (from + to - wide) / 2, Y: y - 4}, b.Inside)
	}
}

// rowPosition returns the vertical position of a row's items: below its name.
func rowPosition(c vgdraw.Canvas, p *plot.Plot, row int) (x func(float64) vg.Length, y vg.Length) {
	x, up := p.Transforms(&c)
	return x, up(rowAt(rows(p), row)) - 8
}

// Dot is a value in a row, with a line for its range.
type Dot struct {
	Row            int
	Mid, Low, High float64
	Style          Style
	Text           string
}

func (d *Dot) bounds() (b box) {
	b = none()
	for _, x := range []float64{d.Low, d.High, d.Mid} {
		b = b.with(box{[2]float64{x, x}, [2]float64{math.NaN(), math.NaN()}})
	}
	return b
}

// Plot draws the value.
func (d *Dot) Plot(c vgdraw.Canvas, p *plot.Plot) {
	if math.IsNaN(d.Mid) {
		return
	}
	x, y := rowPosition(c, p, d.Row)
	low, high := max(x(d.Low), c.Min.X), min(x(d.High), c.Max.X)
	if high > low {
		c.StrokeLine2(vgdraw.LineStyle{Color: ink{d.Style.Color, .55}, Width: 3}, low, y, high, y)
	}
	look := d.Style
	look.Shape = max(1, look.Shape)
	c.DrawGlyph(look.pointStyle(4.4), vg.Point{X: x(d.Mid), Y: y})
	if d.Text != "" {
		style := styled(11, ColorSecondary)
		wide := vg.Length(wider) * style.Width(d.Text)
		at := max(high, x(d.Mid)) + 8
		if at+wide > c.Max.X {
			at = min(low, x(d.Mid)) - 8 - wide
		}
		c.FillText(style, vg.Point{X: at, Y: y - 4}, d.Text)
	}
}

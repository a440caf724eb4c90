package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Small panels stand in rows of four, below title and legend.
const (
	columns   = 4
	cellLeft  = 62.0
	cellTop   = 124.0
	cellWide  = 184.0
	cellHigh  = 150.0
	cellRight = 48.0 // between two
	cellBelow = 74.0
)

// cellsCanvas has room for n panels.
func cellsCanvas(n int, title, subtitle string) *canvas {
	rows := float64((n + columns - 1) / columns)
	return newCanvas(cellLeft+columns*(cellWide+cellRight)-cellRight+24, cellTop-20+rows*(cellHigh+cellBelow), title, subtitle)
}

// cell is the i-th panel.
func (c *canvas) cell(i int) *panel {
	return &panel{
		canvas: c, width: cellWide, height: cellHigh,
		left: cellLeft + float64(i%columns)*(cellWide+cellRight), top: cellTop + float64(i/columns)*(cellHigh+cellBelow),
	}
}

// stalenesses are those of the models, in order, of which there are any.
func stalenesses(models []string) (list []string) {
	for _, m := range models {
		if _, s, has := strings.Cut(m, ":"); has && !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// plotDifferentials draws figure 2: bsp, and a panel for each staleness.
func plotDifferentials(file string, models []string, shares map[string]histogram) error {
	list := stalenesses(models)
	title := "How old is what a worker reads?"
	c := cellsCanvas(len(list)+1, title, "Share of reads by clock differential: the clocks of another worker that the row contains, less 1, less the reader's own clock")
	c.legend(24, 82, presentKinds(models), modelColour)
	top := 0.0 // of the panels with s above 0, which share their scale
	for m, h := range shares {
		for _, v := range h {
			if staleness(m) > 0 {
				top = max(top, v)
			}
		}
	}
	top = math.Ceil(top*10) / 10
	for i, s := range append([]string{"bsp"}, list...) {
		p := c.cell(i)
		names, high, head := []string{"ssp:" + s, "essp:" + s}, top, "s = "+s
		switch s {
		case "bsp":
			names, high, head = []string{"bsp"}, 1, "bsp"
		case "0":
			high = 1
		}
		low, most := -2, 1
		for _, m := range names {
			if len(shares[m]) > 0 {
				l, h := shares[m].bounds(0.001)
				low, most = min(low, l-1), max(most, h+1)
			}
		}
		p.x, p.y = interval{float64(low) - .5, float64(most) + .5}, interval{0, high}
		p.grid(head, "clocks", whole(ticks(p.x, 5)), ticks(p.y, 5), percent0)
		for _, m := range names {
			drawHistogram(p, shares[m], modelColour[kind(m)], lineWidth[kind(m)], low, most)
		}
	}
	return c.save(file, title)
}

func percent0(v float64) string { return fmt.Sprintf("%.0f%%", 100*v) }

func whole(at []float64) []float64 {
	return slices.DeleteFunc(at, func(v float64) bool { return v != math.Round(v) })
}

// drawHistogram draws steps, filled so that what is behind can be seen.
func drawHistogram(p *panel, h histogram, colour string, width float64, low, high int) {
	if len(h) == 0 {
		return
	}
	points := []float64{p.px(float64(low) - .5), p.py(0)}
	for d := low; d <= high; d++ {
		y := p.py(h[d])
		points = append(points, p.px(float64(d)-.5), y, p.px(float64(d)+.5), y)
	}
	points = append(points, p.px(float64(high)+.5), p.py(0))
	p.inside(func() {
		p.path(points, fill(colour, .22))
		p.path(points, stroke(colour, width))
	})
}

// presentKinds are the kinds of the models in order.
func presentKinds(models []string) (kinds []string) {
	for _, m := range models {
		if !slices.Contains(kinds, kind(m)) {
			kinds = append(kinds, kind(m))
		}
	}
	return kinds
}

// plotConvergence draws figure 3, over clocks or over seconds: a panel for each
// staleness, with bsp in each.
func plotConvergence(file, title, subtitle string, models []string, curves map[string][]curvePoint, outcomes map[string][]string, bySeconds bool) error {
	list := stalenesses(models)
	c := cellsCanvas(len(list), title, subtitle)
	c.legend(24, 82, presentKinds(models), modelColour)
	y := lossRange(curves)
	at, unit := func(p curvePoint) float64 { return float64(p.Clock) }, "clocks"
	if bySeconds {
		at, unit = func(p curvePoint) float64 { return p.Seconds }, "seconds"
	}
	last := 0.0
	for _, curve := range curves {
		for _, p := range curve {
			if v := at(p); v > last { // no NaN
				last = v
			}
		}
	}
	for i, s := range list {
		p := c.cell(i)
		p.x, p.y = interval{0, last}, y
		p.grid("s = "+s, unit, ticks(p.x, 4), ticks(p.y, 5), nil)
		for _, m := range []string{"bsp", "ssp:" + s, "essp:" + s} {
			drawCurve(p, curves[m], at, modelColour[kind(m)], lineWidth[kind(m)])
		}
		drawOutcomes(p, []string{"ssp:" + s, "essp:" + s}, outcomes)
	}
	return c.save(file, title)
}

// lossRange is what all curves are drawn within: from the least loss of all to a
// little above bsp's highest.
func lossRange(curves map[string][]curvePoint) interval {
	low, high := math.Inf(1), math.Inf(-1)
	for m, curve := range curves {
		for _, p := range curve {
			low = min(low, p.Loss.Low)
			if m == "bsp" && !math.IsInf(p.Loss.High, 0) {
				high = max(high, p.Loss.High)
			}
		}
	}
	if !(high > low) {
		return interval{0, 1}
	}
	margin := (high - low) * .12
	return interval{low - margin/2, high + margin}
}

// drawCurve draws the band between the seeds and their median, and a cross where
// the median leaves the panel for good.
func drawCurve(p *panel, curve []curvePoint, at func(curvePoint) float64, colour string, width float64) {
	var line, upper, lower, gone []float64
	for _, q := range curve {
		x := p.px(at(q))
		if math.IsNaN(x) { // no seed got there
			break
		}
		line = append(line, x, p.py(q.Loss.Mid))
		upper = append(upper, x, p.py(q.Loss.High))
		lower = append([]float64{x, p.py(q.Loss.Low)}, lower...)
		switch {
		case q.Loss.Mid <= p.y.high:
			gone = nil
		case gone == nil:
			gone = []float64{x, p.top + 5}
		}
	}
	p.inside(func() {
		p.path(append(upper, lower...), fill(colour, .18))
		p.path(line, stroke(colour, width))
	})
	if gone != nil {
		p.cross(gone[0], gone[1], colour)
	}
}

// drawOutcomes says in the panel which runs did not just fall.
func drawOutcomes(p *panel, models []string, outcomes map[string][]string) {
	y := p.top + 14
	for _, m := range models {
		if text := unusual(outcomes[m]); text != "" {
			p.text(p.left+p.width-2, y, kind(m)+" "+text, style{size: 11, weight: 600, colour: modelColour[kind(m)], anchor: "end", halo: true})
			y += 15
		}
	}
}

// unusual says how many of the runs ended otherwise than falling; "": none.
func unusual(outcomes []string) string {
	var parts []string
	for _, o := range []string{swings, rises, diverged, timedOut} {
		n := 0
		for _, got := range outcomes {
			if got == o {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d/%d", o, n, len(outcomes)))
		}
	}
	return strings.Join(parts, ", ")
}

// splitKinds are what a worker's time goes to, in the order of the bars.
var splitKinds = []string{"compute", "staleness", "communication"}

// splitBar is one stacked bar.
type splitBar struct {
	Model string
	Share split
}

// plotSplit draws two panels of stacked bars, side by side.
func plotSplit(file string, heads [2]string, bars [2][]splitBar) error {
	const rowHeight, top = 27.0, 136.0
	title := "What the workers' time goes to"
	n := max(len(bars[0]), len(bars[1]))
	c := newCanvas(960, top+float64(n)*rowHeight+46, title, "Share of all workers' time: computing, waiting for rows that are fresh enough, and moving rows and updates")
	c.legend(24, 82, splitKinds, splitColour)
	for i, half := range bars {
		p := &panel{canvas: c, left: 84 + float64(i)*462, top: top, width: 380, height: float64(n) * rowHeight, x: interval{0, 1}, y: interval{0, 1}}
		p.text(p.left, p.top-14, heads[i], style{size: 13, weight: 600})
		for _, v := range []float64{0, .25, .5, .75, 1} {
			p.line(p.px(v), p.top-4, p.px(v), p.top+p.height, rule, 1)
			p.text(p.px(v), p.top+p.height+17, percent0(v), style{size: 11, colour: soft, anchor: "middle"})
		}
		for row, b := range half {
			y := p.top + float64(row)*rowHeight
			p.text(p.left-9, y+17, b.Model, style{size: 12, weight: 600, colour: modelColour[kind(b.Model)], anchor: "end"})
			from := 0.0
			for i, k := range splitKinds {
				v := b.Share[i]
				p.rect(p.px(from), y+3, p.width*v, rowHeight-8, splitColour[k], "")
				if v >= .08 {
					colour := map[bool]string{true: "#ffffff", false: ink}[k == "communication"]
					p.text(p.px(from+v/2), y+17, percent0(v), style{size: 11, colour: colour, anchor: "middle"})
				}
				from += v
			}
		}
	}
	return c.save(file, title)
}

// race is how long one model took to the loss.
type race struct {
	Model           string
	Seconds, Clocks spread
	Reached, Runs   int
}

// plotRace draws a dot for the median and a line between the seeds, in seconds
// and in clocks.
func plotRace(file, subtitle string, races []race) error {
	const rowHeight, top = 34.0, 118.0
	title := "Time to the same loss"
	c := newCanvas(960, top+float64(len(races))*rowHeight+48, title, subtitle)
	for i, head := range []string{"seconds", "clocks"} {
		value := func(r race) spread { return [2]spread{r.Seconds, r.Clocks}[i] }
		p := &panel{canvas: c, left: 84 + float64(i)*462, top: top, width: 360, height: float64(len(races)) * rowHeight, y: interval{0, 1}}
		most := 0.0
		for _, r := range races {
			if v := value(r).High; v > most {
				most = v
			}
		}
		p.x = interval{0, max(most, 1e-9) * 1.3} // room for the number
		p.text(p.left, p.top-14, head, style{size: 13, weight: 600})
		at := ticks(p.x, 5)
		for _, v := range at {
			p.line(p.px(v), p.top-4, p.px(v), p.top+p.height, rule, 1)
			p.text(p.px(v), p.top+p.height+17, tidy(at)(v), style{size: 11, colour: soft, anchor: "middle"})
		}
		for row, r := range races {
			y, colour, s := p.top+(float64(row)+.5)*rowHeight, modelColour[kind(r.Model)], value(r)
			p.text(p.left-9, y+4, r.Model, style{size: 12, weight: 600, colour: colour, anchor: "end"})
			if r.Reached == 0 {
				p.text(p.left+6, y+4, "did not reach it", style{size: 11.5, colour: soft})
				continue
			}
			p.line(p.left, y, p.px(s.Mid), y, rule, 2)
			p.line(p.px(s.Low), y, p.px(s.High), y, colour, 3)
			p.dot(p.px(s.Mid), y, 6, colour)
			text := short(s.Mid)
			if r.Reached < r.Runs {
				text += fmt.Sprintf(" (%d of %d runs)", r.Reached, r.Runs)
			}
			p.text(p.px(s.High)+11, y+4, text, style{size: 12})
		}
	}
	return c.save(file, title)
}

package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/run/study"
)

// Colours. Those of the models are Okabe and Ito's, which stay apart for all
// kinds of colour vision; a model has one colour in all plots.
var (
	modelColour = map[string]string{
		"bsp": "#3b3f46", "ssp": "#d55e00", "essp": "#0072b2", "asp": "#009e73",
		"vap": "#b3589a",
	}
	splitColour = map[string]string{"compute": "#c3cad4", "staleness": "#e9b44c", "communication": "#5b6b7f"}
)

// lineWidth lets a line that lies on another be seen: what is drawn later is
// thinner.
var lineWidth = map[string]float64{"bsp": 2.8, "ssp": 2.4, "essp": 1.5}

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
	c := study.Small.Canvas(len(list)+1, title,
		"Share of reads by clock differential: the clocks of another worker that the row contains, less 1, less the "+
			"reader's own clock")
	c.Legend(24, 82, presentKinds(models), modelColour)
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
		p := study.Small.Panel(c, i)
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
		p.X, p.Y = study.Between(float64(low)-.5, float64(most)+.5), study.Between(0, high)
		p.Grid(head, "clocks", whole(study.Ticks(p.X, 5)), study.Ticks(p.Y, 5), study.Percent0)
		for _, m := range names {
			drawHistogram(p, shares[m], modelColour[kind(m)], lineWidth[kind(m)], low, most)
		}
	}
	return c.Save(file, title)
}

func whole(at []float64) []float64 {
	return slices.DeleteFunc(at, func(v float64) bool { return v != math.Round(v) })
}

// drawHistogram draws steps, filled so that what is behind can be seen.
func drawHistogram(p *study.Panel, h histogram, colour string, width float64, low, high int) {
	if len(h) == 0 {
		return
	}
	points := []float64{p.PX(float64(low) - .5), p.PY(0)}
	for d := low; d <= high; d++ {
		y := p.PY(h[d])
		points = append(points, p.PX(float64(d)-.5), y, p.PX(float64(d)+.5), y)
	}
	points = append(points, p.PX(float64(high)+.5), p.PY(0))
	p.Inside(func() {
		p.Path(points, study.Fill(colour, .22))
		p.Path(points, study.Stroke(colour, width))
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
func plotConvergence(
	file, title, subtitle string, models []string, curves map[string][]curvePoint, outcomes map[string][]string,
	bySeconds bool,
) error {
	list := stalenesses(models)
	c := study.Small.Canvas(len(list), title, subtitle)
	c.Legend(24, 82, presentKinds(models), modelColour)
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
		p := study.Small.Panel(c, i)
		p.X, p.Y = study.Between(0, last), y
		p.Grid("s = "+s, unit, study.Ticks(p.X, 4), study.Ticks(p.Y, 5), nil)
		for _, m := range []string{"bsp", "ssp:" + s, "essp:" + s} {
			drawCurve(p, curves[m], at, modelColour[kind(m)], lineWidth[kind(m)])
		}
		drawOutcomes(p, []string{"ssp:" + s, "essp:" + s}, outcomes)
	}
	return c.Save(file, title)
}

// lossRange is what all curves are drawn within: from the least loss of all to a
// little above bsp's highest.
func lossRange(curves map[string][]curvePoint) study.Interval {
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
		return study.Between(0, 1)
	}
	margin := (high - low) * .12
	return study.Between(low-margin/2, high+margin)
}

// drawCurve draws the band between the seeds and their median, and a cross where
// the median leaves the panel for good.
func drawCurve(p *study.Panel, curve []curvePoint, at func(curvePoint) float64, colour string, width float64) {
	var line, upper, lower, gone []float64
	for _, q := range curve {
		x := p.PX(at(q))
		if math.IsNaN(x) { // no seed got there
			break
		}
		line = append(line, x, p.PY(q.Loss.Mid))
		upper = append(upper, x, p.PY(q.Loss.High))
		lower = append([]float64{x, p.PY(q.Loss.Low)}, lower...)
		switch {
		case q.Loss.Mid <= p.Y.High:
			gone = nil
		case gone == nil:
			gone = []float64{x, p.Top + 5}
		}
	}
	p.Inside(func() {
		p.Path(append(upper, lower...), study.Fill(colour, .18))
		p.Path(line, study.Stroke(colour, width))
	})
	if gone != nil {
		p.Cross(gone[0], gone[1], colour)
	}
}

// drawOutcomes says in the panel which runs did not just fall.
func drawOutcomes(p *study.Panel, models []string, outcomes map[string][]string) {
	y := p.Top + 14
	for _, m := range models {
		if text := unusual(outcomes[m]); text != "" {
			p.Text(p.Left+p.Width-2, y, kind(m)+" "+text,
				study.Style{Size: 11, Weight: 600, Colour: modelColour[kind(m)], Anchor: "end", Halo: true})
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
	c := study.NewCanvas(960, top+float64(n)*rowHeight+46, title,
		"Share of all workers' time: computing, waiting for rows that are fresh enough, and moving rows and updates")
	c.Legend(24, 82, splitKinds, splitColour)
	for i, half := range bars {
		p := &study.Panel{
			Canvas: c, Left: 84 + float64(i)*462, Top: top, Width: 380, Height: float64(n) * rowHeight,
			X: study.Between(0, 1), Y: study.Between(0, 1),
		}
		p.Text(p.Left, p.Top-14, heads[i], study.Style{Size: 13, Weight: 600})
		for _, v := range []float64{0, .25, .5, .75, 1} {
			p.Line(p.PX(v), p.Top-4, p.PX(v), p.Top+p.Height, study.Rule, 1)
			p.Text(p.PX(v), p.Top+p.Height+17, study.Percent0(v),
				study.Style{Size: 11, Colour: study.Soft, Anchor: "middle"})
		}
		for row, b := range half {
			y := p.Top + float64(row)*rowHeight
			p.Text(p.Left-9, y+17, b.Model, study.Style{
				Size: 12, Weight: 600, Colour: modelColour[kind(b.Model)],
				Anchor: "end",
			})
			from := 0.0
			for i, k := range splitKinds {
				v := b.Share[i]
				p.Rect(p.PX(from), y+3, p.Width*v, rowHeight-8, splitColour[k], "")
				if v >= .08 {
					colour := map[bool]string{true: "#ffffff", false: study.Ink}[k == "communication"]
					p.Text(p.PX(from+v/2), y+17, study.Percent0(v),
						study.Style{Size: 11, Colour: colour, Anchor: "middle"})
				}
				from += v
			}
		}
	}
	return c.Save(file, title)
}

// race is how long one model took to the loss.
type race struct {
	Model           string
	Seconds, Clocks study.Spread
	Reached, Runs   int
}

// plotRace draws a dot for the median and a line between the seeds, in seconds
// and in clocks.
func plotRace(file, subtitle string, races []race) error {
	const rowHeight, top = 34.0, 118.0
	title := "Time to the same loss"
	c := study.NewCanvas(960, top+float64(len(races))*rowHeight+48, title, subtitle)
	for i, head := range []string{"seconds", "clocks"} {
		value := func(r race) study.Spread { return [2]study.Spread{r.Seconds, r.Clocks}[i] }
		p := &study.Panel{
			Canvas: c, Left: 84 + float64(i)*462, Top: top, Width: 360,
			Height: float64(len(races)) * rowHeight, Y: study.Between(0, 1),
		}
		most := 0.0
		for _, r := range races {
			if v := value(r).High; v > most {
				most = v
			}
		}
		p.X = study.Between(0, max(most, 1e-9)*1.3) // room for the number
		p.Text(p.Left, p.Top-14, head, study.Style{Size: 13, Weight: 600})
		at := study.Ticks(p.X, 5)
		for _, v := range at {
			p.Line(p.PX(v), p.Top-4, p.PX(v), p.Top+p.Height, study.Rule, 1)
			p.Text(p.PX(v), p.Top+p.Height+17, study.Tidy(at)(v),
				study.Style{Size: 11, Colour: study.Soft, Anchor: "middle"})
		}
		for row, r := range races {
			y, colour, s := p.Top+(float64(row)+.5)*rowHeight, modelColour[kind(r.Model)], value(r)
			p.Text(p.Left-9, y+4, r.Model, study.Style{Size: 12, Weight: 600, Colour: colour, Anchor: "end"})
			if r.Reached == 0 {
				p.Text(p.Left+6, y+4, "did not reach it", study.Style{Size: 11.5, Colour: study.Soft})
				continue
			}
			p.Line(p.Left, y, p.PX(s.Mid), y, study.Rule, 2)
			p.Line(p.PX(s.Low), y, p.PX(s.High), y, colour, 3)
			p.Dot(p.PX(s.Mid), y, 6, colour)
			text := study.Short(s.Mid)
			if r.Reached < r.Runs {
				text += fmt.Sprintf(" (%d of %d runs)", r.Reached, r.Runs)
			}
			p.Text(p.PX(s.High)+11, y+4, text, study.Style{Size: 12})
		}
	}
	return c.Save(file, title)
}

package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/run/draw"
	"github.com/perdure/perdure/internal/run/study"
)

// Looks: a model has one in all plots. What is drawn later is thinner, so that a line that
// lies on another is seen.
var (
	modelLook = map[string]draw.Look{
		"bsp": {Tone: draw.Series + 5, Wide: 2.6}, "ssp": {Tone: draw.Series + 1, Wide: 2.2, Dashes: 1},
		"essp": {Tone: draw.Series, Wide: 1.6}, "asp": {Tone: draw.Series + 2, Dashes: 3},
		"vap": {Tone: draw.Series + 3, Dashes: 2},
	}
	splitLook = map[string]draw.Look{
		"compute": area(draw.Pale), "staleness": area(draw.Series + 4), "communication": area(draw.Series),
	}
)

func area(t draw.Tone) draw.Look { return draw.Look{Tone: t, Area: true} }

// wide is how wide all plots are, in pixels.
const wide = 960

// keys are those of models, by kind.
func keys(models []string) (all []draw.Key) {
	for _, k := range presentKinds(models) {
		all = append(all, draw.Key{Name: k, Look: modelLook[k]})
	}
	return all
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
	f := draw.Figure{
		Name: "How old is what a worker reads?", Headed: true, Width: wide, Columns: 4, High: 190, Keys: keys(models),
		Sub: "Share of reads by clock differential: the clocks of another worker that the row contains, less 1, less " +
			"the reader's own clock.",
	}
	top := 0.0 // of the panels with s above 0, which share their scale
	for m, h := range shares {
		for _, v := range h {
			if staleness(m) > 0 {
				top = max(top, v)
			}
		}
	}
	top = math.Ceil(top*10) / 10
	for _, s := range append([]string{"bsp"}, stalenesses(models)...) {
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
		p := draw.Panel{
			Title: head, X: draw.Axis{Name: "clocks", Low: float64(low) - .5, High: float64(most) + .5, Whole: true},
			Y: draw.Axis{High: high, Percent: true},
		}
		for _, m := range names {
			if len(shares[m]) > 0 {
				p.Items = append(p.Items, histogramCurve(shares[m], modelLook[kind(m)], low, most))
			}
		}
		f.Panels = append(f.Panels, p)
	}
	return f.Save(file)
}

// histogramCurve is one of steps, filled so that what is behind can be seen.
func histogramCurve(h histogram, look draw.Look, low, high int) *draw.Curve {
	c := &draw.Curve{Look: look, Steps: true, Filled: true}
	for d := low; d <= high; d++ {
		c.X, c.Mid = append(c.X, float64(d)-.5), append(c.Mid, h[d])
	}
	c.X, c.Mid = append(c.X, float64(high)+.5), append(c.Mid, h[high])
	return c
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
	f := draw.Figure{
		Name: title, Headed: true, Sub: subtitle, Width: wide, Columns: 4, High: 190, Keys: keys(models),
	}
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
	for _, s := range stalenesses(models) {
		p := draw.Panel{Title: "s = " + s, X: draw.Axis{Name: unit, High: last}, Y: y}
		for _, m := range []string{"bsp", "ssp:" + s, "essp:" + s} {
			p.Items = append(p.Items, lossCurve(curves[m], at, modelLook[kind(m)]))
		}
		p.Items = append(p.Items, outcomeNotes([]string{"ssp:" + s, "essp:" + s}, outcomes)...)
		f.Panels = append(f.Panels, p)
	}
	return f.Save(file)
}

// lossRange is what all curves are drawn within: from the least loss of all to a
// little above bsp's highest.
func lossRange(curves map[string][]curvePoint) draw.Axis {
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
		return draw.Axis{High: 1}
	}
	margin := (high - low) * .12
	return draw.Axis{Low: low - margin/2, High: high + margin}
}

// lossCurve is the band between the seeds and their median, as far as a seed got; what
// leaves the panel for good is marked.
func lossCurve(curve []curvePoint, at func(curvePoint) float64, look draw.Look) *draw.Curve {
	c := &draw.Curve{Look: look, OutOfRange: true}
	for _, q := range curve {
		if math.IsNaN(at(q)) { // no seed got there
			break
		}
		c.X, c.Mid = append(c.X, at(q)), append(c.Mid, q.Loss.Mid)
		c.Low, c.High = append(c.Low, q.Loss.Low), append(c.High, q.Loss.High)
	}
	return c
}

// outcomeNotes say in the panel which runs did not just fall.
func outcomeNotes(models []string, outcomes map[string][]string) (notes []draw.Item) {
	for _, m := range models {
		if text := unusual(outcomes[m]); text != "" {
			notes = append(notes, &draw.Note{
				Line: len(notes), Text: kind(m) + " " + text, Tone: modelLook[kind(m)].Tone,
			})
		}
	}
	return notes
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
	f := draw.Figure{
		Name: "What the workers' time goes to", Headed: true, Width: wide, Columns: 2,
		Sub: "Share of all workers' time: computing, waiting for rows that are fresh enough, and moving rows and " +
			"updates.",
	}
	for _, k := range splitKinds {
		f.Keys = append(f.Keys, draw.Key{Name: k, Look: splitLook[k]})
	}
	for i, half := range bars {
		p := draw.Panel{Title: heads[i], X: draw.Axis{Name: "share of the time", High: 1, Percent: true}}
		for row, b := range half {
			p.Rows = append(p.Rows, b.Model)
			from := 0.0
			for i, k := range splitKinds {
				v := b.Share[i]
				p.Items = append(p.Items, &draw.Bar{
					Row: row, From: from, To: from + v, Look: splitLook[k], Inside: study.Percent0(v),
				})
				from += v
			}
		}
		f.Panels = append(f.Panels, p)
	}
	return f.Save(file)
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
	f := draw.Figure{
		Name: "Time to the same loss", Headed: true, Sub: subtitle, Width: wide, Columns: 2, Beside: true,
	}
	for i, unit := range []string{"seconds", "clocks"} {
		p := draw.Panel{Title: unit, X: draw.Axis{Name: unit}}
		most := 0.0
		for row, r := range races {
			s := [2]study.Spread{r.Seconds, r.Clocks}[i]
			p.Rows = append(p.Rows, r.Model)
			if r.Reached == 0 {
				p.Items = append(p.Items, &draw.Bar{Row: row, Text: "did not reach it"})
				continue
			}
			most = max(most, s.High)
			text := study.Short(s.Mid)
			if r.Reached < r.Runs {
				text += fmt.Sprintf(" (%d of %d runs)", r.Reached, r.Runs)
			}
			look := modelLook[kind(r.Model)]
			look.Shape = 1
			p.Items = append(p.Items, &draw.Dot{Row: row, Mid: s.Mid, Low: s.Low, High: s.High, Look: look, Text: text})
		}
		p.X.High = max(most, 1e-9) * 1.3 // room for the number
		f.Panels = append(f.Panels, p)
	}
	return f.Save(file)
}

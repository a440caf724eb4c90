package main

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/perdure/perdure/internal/run/study"
)

// Colours: a mode has one in all plots, and so has a role. Those of modes are Okabe
// and Ito's, which stay apart for all kinds of colour vision.
const (
	away       = "#f6ecd9" // the time without a server
	killColour = "#a0447e"
	otherMode  = "#5b6470" // a mode that the study does not know
)

var (
	modeColour = map[string]string{"bsp": "#0072b2", "asp": "#d55e00"}
	roleColour = map[string]string{"worker": "#a9b4c2", "server": "#0072b2", "log": "#e69f00", "coordinator": "#009e73"}
	partColour = map[string]string{"in the model": "#0072b2", "done again, or lost": "#e9b44c"}
)

// night is what the colours are on dark pages.
func night() map[string]string {
	dark := maps.Clone(study.AtNight)
	maps.Copy(dark, map[string]string{
		away: "#332b1d", killColour: "#d584b8", otherMode: "#a3abb5", "#0072b2": "#4ea8de", "#d55e00": "#ff8f4d",
		"#a9b4c2": "#6b7785", "#e69f00": "#f0b43c", "#009e73": "#3fc79a",
	})
	return dark
}

func colourOf(mode string) string {
	if c, has := modeColour[mode]; has {
		return c
	}
	return otherMode
}

// byPanel puts the groups of a strategy together, in the order of their coming.
func byPanel(groups []*group) ([]string, map[string][]*group) {
	return study.Group(groups, func(g *group) string { return g.panel() })
}

// accuracyCells are the panels of the accuracy over time.
var accuracyCells = study.Cells{Columns: 3, Wide: 268, High: 176}

// plotAccuracy draws a panel for each strategy: accuracy over time, with the times
// without a server behind it.
func (p *page) plotAccuracy(file string) error {
	panels, groups := byPanel(append(slices.Clone(p.Calm), p.Killed...)) // what is drawn later lies above
	panels = slices.DeleteFunc(panels, func(name string) bool {
		return !slices.ContainsFunc(groups[name], func(g *group) bool { return len(g.Trials) > 0 })
	})
	title := "Accuracy while the parameter server is killed and comes back"
	trials := "one trial"
	if n := len(p.Study.Seeds); n > 1 {
		trials = fmt.Sprintf("median of %d trials, the band from least to most", n)
	}
	subtitle := "test accuracy over seconds; " + trials + "; thin: without failures; dotted: not evaluated meanwhile"
	c := accuracyCells.Canvas(max(1, len(panels)), title, subtitle)
	c.Dark = night()
	colours := map[string]string{"a server is away": away}
	for _, m := range p.Study.Modes {
		colours[m] = colourOf(m)
	}
	c.Legend(24, 82, append(slices.Clone(p.Study.Modes), "a server is away"), colours)
	y := p.accuracyRange()
	for i, name := range panels {
		panel := accuracyCells.Panel(c, i)
		panel.X, panel.Y = study.Between(0, p.Study.scaled(p.Study.Length).Seconds()), y
		for _, o := range p.Study.outages(nil) {
			panel.Rect(panel.PX(o.From), panel.Top, panel.PX(o.To)-panel.PX(o.From), panel.Height, away, "")
		}
		panel.Grid(name, "seconds", study.Ticks(panel.X, 5), study.Ticks(y, 5), study.Percent0)
		for _, g := range groups[name] {
			drawCurve(panel, g)
		}
	}
	return c.Save(file, title)
}

// accuracyRange is what all curves are drawn within: from the least accuracy half
// way to the first kill, and later, to a little above the highest of all. The steep
// beginning leaves the panel below.
func (p *page) accuracyRange() study.Interval {
	low, high := 1., 0.
	from := p.Study.scaled(p.Study.Kills[0]).Seconds() / 2
	for _, g := range append(slices.Clone(p.Killed), p.Calm...) {
		for _, q := range g.curve() {
			if high = max(high, q.Value.High); q.Seconds >= from {
				low = min(low, q.Value.Low)
			}
		}
	}
	if !(high > low) {
		return study.Between(0, 1)
	}
	step := .05
	if high-low < .12 {
		step = .02
	}
	return study.Between(max(0, step*math.Floor(low/step-.2)), min(1, step*math.Ceil(high/step+.2)))
}

// drawCurve draws one group: its band and its line where evaluations follow each
// other, and dots across what was not evaluated.
func drawCurve(p *study.Panel, g *group) {
	curve := g.curve()
	if len(curve) == 0 {
		return
	}
	colour, every := colourOf(g.Mode), g.Trials[0].Eval
	width, opacity, band := 2.4, "", .2
	if g.Mode == "asp" {
		width = 1.9 // it is drawn later, and what lies below is to be seen
	}
	if !g.Killed {
		width, opacity, band = 1, ` stroke-opacity="0.6"`, .07
	}
	p.Inside(func() {
		for from, i := 0, 1; i <= len(curve); i++ {
			if i < len(curve) && curve[i].Seconds-curve[i-1].Seconds < 2.5*every {
				continue
			}
			drawPart(p, curve[from:i], colour, width, opacity, band)
			if i < len(curve) {
				a, b := curve[i-1], curve[i]
				p.Path([]float64{p.PX(a.Seconds), p.PY(a.Value.Mid), p.PX(b.Seconds), p.PY(b.Value.Mid)},
					study.Stroke(colour, max(1, width/1.6))+` stroke-dasharray="0.1 4.5"`+opacity)
			}
			from = i
		}
	})
}

func drawPart(p *study.Panel, part []curvePoint, colour string, width float64, opacity string, band float64) {
	if len(part) == 1 { // alone between two gaps
		p.Dot(p.PX(part[0].Seconds), p.PY(part[0].Value.Mid), width, colour)
		return
	}
	var line, upper, lower []float64
	for _, q := range part {
		x := p.PX(q.Seconds)
		line = append(line, x, p.PY(q.Value.Mid))
		upper = append(upper, x, p.PY(q.Value.High))
		lower = append([]float64{x, p.PY(q.Value.Low)}, lower...)
	}
	p.Path(append(upper, lower...), study.Fill(colour, band))
	p.Path(line, study.Stroke(colour, width)+opacity)
}

// Rows of cells, which the other plots share.
const (
	rowHigh = 25.0
	rowTop  = 122.0
	rowLeft = 236.0 // where the first column begins
)

// column is one column of a plot in rows.
type column struct {
	title string
	x     study.Interval
	tick  func(float64) string
	// draw draws a row whose middle is at y.
	draw func(p *study.Panel, g *group, y float64)
}

// plotRows draws a row for each group, and in it something for each column.
func plotRows(
	file, title, subtitle string, groups []*group, colours map[string]string, order []string, columns []column,
) error {
	const between = 34.0
	wide := (1000 - rowLeft - between*float64(len(columns)-1) - 24) / float64(len(columns))
	c := study.NewCanvas(1000, rowTop+rowHigh*float64(len(groups))+44, title, subtitle)
	c.Dark = night()
	c.Legend(24, 82, order, colours)
	for i, g := range groups {
		c.Text(rowLeft-12, rowTop+rowHigh*(float64(i)+.5)+4, g.cell.String(), study.Style{Size: 12, Anchor: "end"})
	}
	for k, col := range columns {
		p := &study.Panel{
			Canvas: c, Left: rowLeft + float64(k)*(wide+between), Top: rowTop, Width: wide,
			Height: rowHigh * float64(len(groups)),
			X:      col.x, Y: study.Between(0, 1),
		}
		p.Text(p.Left, p.Top-12, col.title, study.Style{Size: 12.5, Weight: 600})
		at := study.Ticks(p.X, 3)
		if col.tick == nil {
			col.tick = study.Tidy(at)
		}
		for _, v := range at {
			p.Line(p.PX(v), p.Top-3, p.PX(v), p.Top+p.Height, study.Rule, 1)
			p.Text(p.PX(v), p.Top+p.Height+17, col.tick(v), study.Style{Size: 11, Colour: study.Soft, Anchor: "middle"})
		}
		for i, g := range groups {
			col.draw(p, g, p.Top+rowHigh*(float64(i)+.5))
		}
	}
	return c.Save(file, title)
}

// plotChange draws how accuracy changed at each kill, beside the same time without
// failures.
func (p *page) plotChange(file string) error {
	title := "Change of accuracy at a kill"
	subtitle := "points from the last evaluation before the kill to the next one, after however long: median of " +
		"trials, the line from least to most"
	low, high := 0., 0.
	for i := range p.Study.Kills {
		for _, g := range append(slices.Clone(p.Killed), p.Calm...) {
			if v := g.Change(i); !math.IsNaN(v.Mid) {
				low, high = min(low, v.Low), max(high, v.High)
			}
		}
	}
	margin := max(.005, (high-low)*.06)
	colours := map[string]string{"with the kill": killColour, "without": "#a9b4c2"}
	var columns []column
	for i, at := range p.Study.Kills {
		columns = append(columns, column{
			title: fmt.Sprintf("kill at %s s", study.Format(p.Study.scaled(at).Seconds())),
			x:     study.Between(low-margin, high+margin), tick: points,
			draw: func(panel *study.Panel, g *group, y float64) {
				panel.Line(panel.PX(0), y-rowHigh/2, panel.PX(0), y+rowHigh/2, study.Axis, 1.5)
				drawDot(panel, p.find(g.cell, false).Change(i), y+4.5, colours["without"], 3.2)
				drawDot(panel, g.Change(i), y-3, colours["with the kill"], 4.8)
			},
		})
	}
	return plotRows(file, title, subtitle, p.Killed, colours, []string{"with the kill", "without"}, columns)
}

// points writes a difference of accuracies.
func points(v float64) string {
	text := study.Tidy([]float64{0, 1})(math.Round(100 * v))
	if v > 0 {
		text = "+" + text
	}
	return text
}

func drawDot(p *study.Panel, v study.Spread, y float64, colour string, radius float64) {
	if math.IsNaN(v.Mid) {
		return
	}
	p.Line(p.PX(v.Low), y, p.PX(v.High), y, colour, radius/2)
	p.Dot(p.PX(v.Mid), y, radius, colour)
}

// plotGradients draws bars: gradients that were computed, and which of them the
// model contains.
func (p *page) plotGradients(file string) error {
	title := "Gradients"
	subtitle := "computed in the same time by all workers together, and how many of them the model contains: " +
		"medians of trials"
	most := 1.
	for _, g := range append(slices.Clone(p.Killed), p.Calm...) {
		if v := g.Computed().Mid; v > most {
			most = v
		}
	}
	var columns []column
	for _, killed := range []bool{true, false} {
		columns = append(columns, column{
			title: map[bool]string{true: "with failures", false: "without"}[killed], x: study.Between(0, most*1.12),
			draw: func(panel *study.Panel, g *group, y float64) {
				of := p.find(g.cell, killed)
				kept, all := of.Kept().Mid, of.Computed().Mid
				if math.IsNaN(all) {
					return
				}
				panel.Rect(panel.Left, y-7.5, panel.PX(all)-panel.Left, 15, partColour["done again, or lost"],
					` rx="1.5"`)
				panel.Rect(panel.Left, y-7.5, panel.PX(min(kept, all))-panel.Left, 15, partColour["in the model"],
					` rx="1.5"`)
				panel.Text(panel.PX(all)+6, y+4, study.Short(all), study.Style{Size: 11, Colour: study.Soft})
			},
		})
	}
	return plotRows(file, title, subtitle, p.Killed, partColour, []string{"in the model", "done again, or lost"},
		columns)
}

// cost is something that processes use.
type cost struct {
	title string
	of    func(role) float64
}

var costs = []cost{
	{"processor, s", func(u role) float64 { return u.CPU }},
	{"memory, MB", func(u role) float64 { return u.Peak }},
	{"network, MB", role.network},
	{"stored, MB", func(u role) float64 { return orNaN(u.Stored) }},
}

// plotCosts draws stacked bars: what the roles used without failures.
func (p *page) plotCosts(file string) error {
	title := "What it costs while nothing fails"
	subtitle := "processor time, memory at its peak, bytes sent over connections, and bytes of files brought to " +
		"storage: medians of trials"
	var columns []column
	for _, k := range costs {
		most := 0.
		for _, g := range p.Calm {
			sum := 0.
			for _, name := range roleNames {
				sum += g.part(name, k.of)
			}
			most = max(most, sum)
		}
		columns = append(columns, column{
			title: k.title, x: study.Between(0, max(most, 1e-3)*1.05),
			draw: func(panel *study.Panel, g *group, y float64) {
				from := 0.
				for _, name := range roleNames {
					v := g.part(name, k.of)
					if panel.PX(v)-panel.Left >= .1 {
						panel.Rect(panel.PX(from), y-7.5, panel.PX(v)-panel.Left, 15, roleColour[name], "")
					}
					from += v
				}
			},
		})
	}
	return plotRows(file, title, subtitle, p.Calm, roleColour, p.Roles(), columns)
}

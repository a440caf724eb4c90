package main

import (
	"fmt"
	"math"
	"slices"

	"github.com/perdure/perdure/internal/run/draw"
	"github.com/perdure/perdure/internal/run/study"
)

// Looks: a mode has one in all plots, and so has a role.
var (
	modeLook = map[string]draw.Look{"bsp": {Tone: draw.Series, Wide: 2.2}, "asp": {Tone: draw.Series + 1, Dashes: 1}}
	roleLook = map[string]draw.Look{
		"worker": area(draw.Pale), "server": area(draw.Series), "log": area(draw.Series + 4),
		"coordinator": area(draw.Series + 2),
	}
	killLook = draw.Look{Tone: draw.Series + 3, Shape: 1, Dot: true}
	calmLook = draw.Look{Tone: draw.Soft, Shape: 4, Dot: true}
	keptLook = area(draw.Series)
	lostLook = area(draw.Series + 1)
)

func area(t draw.Tone) draw.Look { return draw.Look{Tone: t, Area: true} }

func lookOf(mode string) draw.Look {
	if l, has := modeLook[mode]; has {
		return l
	}
	return draw.Look{Tone: draw.Series + 5, Dashes: 2} // a mode that the study does not know
}

// wide is how wide all plots are, in pixels.
const wide = 1000

// byPanel puts the groups of a strategy together, in the order of their coming.
func byPanel(groups []*group) ([]string, map[string][]*group) {
	return study.Group(groups, func(g *group) string { return g.panel() })
}

// plotAccuracy draws a panel for each strategy: accuracy over time, with the times
// without a server behind it.
func (p *page) plotAccuracy(file string) error {
	panels, groups := byPanel(append(slices.Clone(p.Calm), p.Killed...)) // what is drawn later lies above
	panels = slices.DeleteFunc(panels, func(name string) bool {
		return !slices.ContainsFunc(groups[name], func(g *group) bool { return len(g.Trials) > 0 })
	})
	trials := "one trial"
	if n := len(p.Study.Seeds); n > 1 {
		trials = fmt.Sprintf("median of %d trials, the band from least to most", n)
	}
	f := draw.Figure{
		Name: "Accuracy while the parameter server is killed and comes back", Headed: true, Width: wide, Columns: 3,
		High: 190,
		Sub: "Test accuracy over seconds; " + trials + ". Thin: without failures; dotted: not evaluated meanwhile; " +
			"the shaded stretches are without a server.",
	}
	for _, m := range p.Study.Modes {
		f.Keys = append(f.Keys, draw.Key{Name: m, Look: lookOf(m)})
	}
	f.Keys = append(f.Keys, draw.Key{Name: "a server is away", Look: area(draw.Away)})
	y := p.accuracyRange()
	for _, name := range panels {
		panel := draw.Panel{
			Title: name, Y: y, X: draw.Axis{Name: "seconds", High: p.Study.scaled(p.Study.Length).Seconds()},
		}
		for _, o := range p.Study.outages(nil) {
			panel.Items = append(panel.Items, &draw.Span{From: o.From, To: o.To, Tone: draw.Away})
		}
		for _, g := range groups[name] {
			panel.Items = append(panel.Items, curveItems(g)...)
		}
		f.Panels = append(f.Panels, panel)
	}
	return f.Save(file)
}

// accuracyRange is what all curves are drawn within: from the least accuracy half
// way to the first kill, and later, to a little above the highest of all. The steep
// beginning leaves the panel below.
func (p *page) accuracyRange() draw.Axis {
	low, high := 1., 0.
	from := p.Study.scaled(p.Study.Kills[0]).Seconds() / 2
	for _, g := range append(slices.Clone(p.Killed), p.Calm...) {
		for _, q := range g.curve() {
			if high = max(high, q.Value.High); q.Seconds >= from {
				low = min(low, q.Value.Low)
			}
		}
	}
	y := draw.Axis{Percent: true, High: 1}
	if !(high > low) {
		return y
	}
	step := .05
	if high-low < .12 {
		step = .02
	}
	y.Low, y.High = max(0, step*math.Floor(low/step-.2)), min(1, step*math.Ceil(high/step+.2))
	return y
}

// curveItems are one group's: its band and its line where evaluations follow each
// other, and dots across what was not evaluated.
func curveItems(g *group) []draw.Item {
	curve := g.curve()
	if len(curve) == 0 {
		return nil
	}
	c := &draw.Curve{Look: lookOf(g.Mode), Faint: !g.Killed}
	if !g.Killed {
		c.Look.Wide = 1
	}
	items, nan := []draw.Item{c}, math.NaN()
	for i, q := range curve {
		if i > 0 && q.Seconds-curve[i-1].Seconds >= 2.5*g.Trials[0].Eval {
			before := curve[i-1]
			items = append(items, &draw.Curve{
				Look: draw.Look{Tone: c.Look.Tone, Dashes: 2, Wide: 1.4},
				X:    []float64{before.Seconds, q.Seconds}, Mid: []float64{before.Value.Mid, q.Value.Mid},
			})
			c.X, c.Mid = append(c.X, q.Seconds), append(c.Mid, nan)
			c.Low, c.High = append(c.Low, nan), append(c.High, nan)
		}
		c.X, c.Mid = append(c.X, q.Seconds), append(c.Mid, q.Value.Mid)
		c.Low, c.High = append(c.Low, q.Value.Low), append(c.High, q.Value.High)
	}
	return items
}

// column is one column of a plot in rows.
type column struct {
	title string
	x     draw.Axis
	zero  bool // a line stands at 0
	items func(row int, g *group) []draw.Item
}

// plotRows draws a row for each group, and in it something for each column.
func plotRows(file string, f draw.Figure, groups []*group, columns []column) error {
	f.Headed, f.Width, f.Columns, f.Beside = true, wide, len(columns), true
	var names []string
	for _, g := range groups {
		names = append(names, g.cell.String())
	}
	for _, c := range columns {
		p := draw.Panel{Title: c.title, X: c.x, Rows: names}
		if c.zero {
			p.Items = append(p.Items, &draw.Upright{Tone: draw.Axle})
		}
		for i, g := range groups {
			p.Items = append(p.Items, c.items(i, g)...)
		}
		f.Panels = append(f.Panels, p)
	}
	return f.Save(file)
}

// plotChange draws how accuracy changed at each kill, beside the same time without
// failures.
func (p *page) plotChange(file string) error {
	x := draw.Axis{Name: "points", Signed: true}
	for i := range p.Study.Kills {
		for _, g := range append(slices.Clone(p.Killed), p.Calm...) {
			if v := g.Change(i); !math.IsNaN(v.Mid) {
				x.Low, x.High = min(x.Low, 100*v.Low), max(x.High, 100*v.High)
			}
		}
	}
	margin := max(.5, (x.High-x.Low)*.06)
	x.Low, x.High = x.Low-margin, x.High+margin
	var columns []column
	for i, at := range p.Study.Kills {
		columns = append(columns, column{
			title: fmt.Sprintf("kill at %s s", study.Format(p.Study.scaled(at).Seconds())), x: x, zero: true,
			items: func(row int, g *group) []draw.Item {
				return []draw.Item{
					changeDot(row, p.find(g.cell, false).Change(i), -4.5, calmLook),
					changeDot(row, g.Change(i), 3, killLook),
				}
			},
		})
	}
	return plotRows(file, draw.Figure{
		Name: "Change of accuracy at a kill",
		Sub: "Points from the last evaluation before the kill to the next one, after however long: median of trials, " +
			"the line from least to most.",
		Keys: []draw.Key{{Name: "with the kill", Look: killLook}, {Name: "without", Look: calmLook}},
	}, p.Killed, columns)
}

func changeDot(row int, v study.Spread, shift float64, look draw.Look) draw.Item {
	return &draw.Dot{Row: row, Mid: 100 * v.Mid, Low: 100 * v.Low, High: 100 * v.High, Look: look, Shift: shift}
}

// plotGradients draws bars: gradients that were computed, and which of them the
// model contains.
func (p *page) plotGradients(file string) error {
	most := 1.
	for _, g := range append(slices.Clone(p.Killed), p.Calm...) {
		if v := g.Computed().Mid; v > most {
			most = v
		}
	}
	var columns []column
	for _, killed := range []bool{true, false} {
		columns = append(columns, column{
			title: map[bool]string{true: "with failures", false: "without"}[killed],
			x:     draw.Axis{Name: "gradients", High: most * 1.16, Whole: true},
			items: func(row int, g *group) []draw.Item {
				of := p.find(g.cell, killed)
				kept, all := of.Kept().Mid, of.Computed().Mid
				if math.IsNaN(all) {
					return nil
				}
				kept = min(kept, all)
				return []draw.Item{
					&draw.Bar{Row: row, To: kept, Look: keptLook},
					&draw.Bar{Row: row, From: kept, To: all, Look: lostLook, Text: study.Short(all)},
				}
			},
		})
	}
	return plotRows(file, draw.Figure{
		Name: "Gradients",
		Sub: "Computed in the same time by all workers together, and how many of them the model contains: medians of " +
			"trials.",
		Keys: []draw.Key{{Name: "in the model", Look: keptLook}, {Name: "done again, or lost", Look: lostLook}},
	}, p.Killed, columns)
}

// cost is something that processes use.
type cost struct {
	title, unit string
	of          func(role) float64
}

var costs = []cost{
	{"processor", "seconds", func(u role) float64 { return u.CPU }},
	{"memory", "MB", func(u role) float64 { return u.Peak }},
	{"network", "MB", role.network},
	{"stored", "MB", func(u role) float64 { return orNaN(u.Stored) }},
}

// plotCosts draws stacked bars: what the roles used without failures.
func (p *page) plotCosts(file string) error {
	f := draw.Figure{
		Name: "What it costs while nothing fails",
		Sub: "Processor time, memory at its peak, bytes sent over connections, and bytes of files brought to " +
			"storage: medians of trials.",
	}
	for _, name := range p.Roles() {
		f.Keys = append(f.Keys, draw.Key{Name: name, Look: roleLook[name]})
	}
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
			title: k.title, x: draw.Axis{Name: k.unit, High: max(most, 1e-3) * 1.05},
			items: func(row int, g *group) (bars []draw.Item) {
				from := 0.
				for _, name := range roleNames {
					v := g.part(name, k.of)
					bars = append(bars, &draw.Bar{Row: row, From: from, To: from + v, Look: roleLook[name]})
					from += v
				}
				return bars
			},
		})
	}
	return plotRows(file, f, p.Calm, columns)
}

package report

import (
	"fmt"
	"math"
	"slices"

	"github.com/perdure/perdure/internal/run/plot"
)

// picture is a plot with a heading, for wide and for narrow pages.
type picture struct {
	Name, Heading, Caption string
	Main                   bool
	Wide, Narrow           *plot.Figure // Narrow is nil if Wide is narrow enough
}

// Widths of pictures in pixels: a main picture on wide and on narrow pages, and a small picture.
const (
	wideWidth   = 880.0
	narrowWidth = 352.0
	smallWidth  = 424.0
)

// maxCurvesPerPanel is the maximum number of curves in one panel. With more groups, each has its own panel.
const maxCurvesPerPanel = 8

// Maximum number of panels in a picture, and of rows in a panel.
const (
	maxPanels = 24
	maxRows   = 40
)

func (s *section) pictures() (all []picture) {
	add := func(p picture, drawn bool) {
		if drawn {
			all = append(all, p)
		}
	}
	add(s.learning())
	if len(s.groups) > 1 {
		add(s.ending())
	}
	if s.measure.column != "train_loss" {
		add(s.overTime("train-loss", "Training loss", "train_loss", "training loss"))
	}
	add(s.overTime("speed", "Speed", "clocks_per_second", "clocks a second"))
	add(s.timeSplit())
	return all
}

// mainPicture returns a main picture in both widths.
func mainPicture(name, heading, caption string, make func(width float64) *plot.Figure) picture {
	return picture{
		Name: name, Heading: heading, Caption: caption, Main: true, Wide: make(wideWidth), Narrow: make(narrowWidth),
	}
}

// bands explains the bands of the curves.
func (s *section) bands() string {
	if !slices.ContainsFunc(s.groups, func(g *group) bool { return len(g.Trials) > 1 }) {
		return ""
	}
	return "Lines are medians of a group's runs; bands show the range from minimum to maximum. After a run has " +
		"ended, its " +
		"last value is used."
}

// learning returns the main picture: the quality of the model over time, with the faults.
func (s *section) learning() (picture, bool) {
	var curves []plot.Curve
	var of []*group
	for _, g := range s.groups {
		if c, any := g.curve(s.measure.column); any {
			curves, of = append(curves, c), append(of, g)
		}
	}
	if len(curves) == 0 {
		return picture{}, false
	}
	y := plot.Axis{Name: s.measure.Title(), Percent: s.measure.Name == "accuracy"}
	x := plot.Axis{Name: "seconds since the first clock", FromZero: true}
	one := len(s.trials) == 1
	hit := false
	panel := func(from, to int) (p plot.Panel) {
		p.X, p.Y = x, y
		if one {
			p.Items = append(p.Items, outageItems(s.trials[0])...)
		}
		for i := from; i < to; i++ {
			p.Items = append(p.Items, &curves[i])
		}
		for i := from; i < to; i++ {
			marks := of[i].marks(&curves[i])
			p.Items, hit = append(p.Items, marks...), hit || len(marks) > 0
		}
		return p
	}
	f := plot.Figure{Name: s.measure.Title() + " over time"}
	caption := s.bands()
	if len(of) <= maxCurvesPerPanel {
		f.Panels = []plot.Panel{panel(0, len(of))}
	} else {
		shared := panel(0, min(len(of), maxPanels))
		for i := range min(len(of), maxPanels) {
			curves[i].Style = plot.Style{Color: plot.ColorSeries}
			p := panel(i, i+1)
			p.Title, p.X.Low, p.X.High, p.Y = of[i].Name, 0, shared.Right(), shared.FittedY()
			p.Y.Name = ""
			p.X.Name = "seconds"
			f.Panels = append(f.Panels, p)
		}
		if len(of) > maxPanels {
			caption += fmt.Sprintf(" Only the first %d of %d groups are shown.", maxPanels, len(of))
		}
	}
	if len(of) > 1 && len(of) <= maxCurvesPerPanel {
		for i, g := range of {
			f.Keys = append(f.Keys, plot.Key{Name: g.Name, Look: curves[i].Style})
		}
	}
	if hit {
		f.Keys = append(f.Keys, plot.Key{Name: "a fault", Look: plot.Style{Color: plot.ColorFault, Cross: true}})
	}
	if one && hit {
		f.Keys = append(f.Keys, plot.Key{Name: "recovering", Look: plot.Style{Color: plot.ColorOutage, Area: true}})
	}
	return mainPicture("learning", capital(s.measure.Title())+" over time", caption, func(width float64) *plot.Figure {
		return sized(f, width)
	}), true
}

// sized returns the figure for a width, with as many columns as are readable.
func sized(f plot.Figure, width float64) *plot.Figure {
	f.Width, f.PanelHeight = width, 340
	if width < 500 {
		f.PanelHeight = 260
	}
	if len(f.Panels) > 1 {
		f.Columns, f.PanelHeight = max(1, min(len(f.Panels), int(width/280))), 190
	}
	return &f
}

func outageItems(t *trial) (all []plot.Item) {
	if t.Summary == nil {
		return nil
	}
	for _, o := range t.Summary.Outages() {
		all = append(all, &plot.Span{From: o[0], To: o[1], Color: plot.ColorOutage})
	}
	return all
}

// marks returns crosses on a group's curve where its runs had faults. Faults close to each other share a cross.
func (g *group) marks(c *plot.Curve) (all []plot.Item) {
	var at []float64
	for _, t := range g.Trials {
		if t.Summary != nil {
			for _, f := range t.Summary.Failures {
				at = append(at, f.AtSeconds)
			}
		}
	}
	slices.Sort(at)
	apart, last := (c.X[len(c.X)-1]-c.X[0])/80, math.Inf(-1)
	for _, x := range at {
		if x >= last+apart {
			all, last = append(all, &plot.Mark{X: x, Y: middle(c, x), Color: plot.ColorFault}), x
		}
	}
	return all
}

// ending compares the final results of the groups.
func (s *section) ending() (picture, bool) {
	f := plot.Figure{Name: "How each group ended"}
	rows := plot.Where(s.ordered(), func(g *group) bool { return len(g.done()) > 0 })
	caption := ""
	if s.bands() != "" {
		caption = "Points are medians of a group's runs; lines show the range from minimum to maximum."
	}
	if len(rows) > maxRows {
		caption += fmt.Sprintf(" Only the best %d of %d groups are shown; the table has all.", maxRows, len(rows))
		rows = rows[:maxRows]
	}
	columns := []struct {
		title string
		of    func(*trial) *float64
		write func(float64) string
		axis  plot.Axis
	}{
		{s.measure.Title(), result, s.measure.text, plot.Axis{Percent: s.measure.Name == "accuracy"}},
		{"time, s", wall, seconds, plot.Axis{}},
		{"updates lost", lost, counted, plot.Axis{Integer: true}},
		{"clocks redone", redone, counted, plot.Axis{Integer: true}},
		{"recovering, s", awayFor, seconds, plot.Axis{}},
	}
	if len(rows) == 0 {
		return picture{}, false
	}
	for n, c := range columns {
		p := plot.Panel{Title: c.title, X: c.axis}
		some, first := false, rows[0].spread(c.of)
		for i, g := range rows {
			v := g.spread(c.of)
			some = some || v != first || v.Low != v.High // otherwise all values are equal
			p.Rows = append(p.Rows, g.Name)
			look := g.Style
			if len(rows) > maxCurvesPerPanel {
				look = plot.Style{Color: plot.ColorSeries, Shape: 1}
			}
			p.Items = append(p.Items, &plot.Dot{
				Row: i, Mid: v.Mid, Low: v.Low, High: v.High, Style: look, Text: medianText(v, c.write),
			})
		}
		p.X.FromZero = n > 0
		if some {
			f.Panels = append(f.Panels, p)
		}
	}
	return mainPicture("ending", "How each group ended", caption, func(width float64) *plot.Figure {
		f.Width, f.Columns = width, max(1, min(len(f.Panels), int(width/280)))
		return new(f)
	}), len(f.Panels) > 0
}

func medianText(v plot.Spread, write func(float64) string) string {
	if math.IsNaN(v.Mid) {
		return ""
	}
	return write(v.Mid)
}

// overTime returns a small picture of a column over time.
func (s *section) overTime(name, heading, column, axis string) (picture, bool) {
	if len(s.groups) > maxCurvesPerPanel {
		return picture{}, false
	}
	f := &plot.Figure{Name: heading + " over time", Width: smallWidth, PanelHeight: 230}
	p := plot.Panel{X: plot.Axis{Name: "seconds", FromZero: true}, Y: plot.Axis{Name: axis}}
	some := false
	if len(s.trials) == 1 {
		p.Items = append(p.Items, outageItems(s.trials[0])...)
	}
	for _, g := range s.groups {
		if c, any := g.curve(column); any {
			some = some || len(c.X) > 1
			p.Items = append(p.Items, &c)
			f.Keys = append(f.Keys, plot.Key{Name: g.Name, Look: g.Style})
		}
	}
	if len(s.groups) == 1 {
		f.Keys = nil
	}
	f.Panels = []plot.Panel{p}
	return picture{Name: name, Heading: heading, Wide: f}, some
}

// parts of the workers' time, with their looks
var parts = []struct {
	name string
	look plot.Style
}{
	{"computing", plot.Style{Color: plot.ColorMuted, Area: true}},
	{"waiting for fresh rows", plot.Style{Color: plot.ColorSeries + 1, Area: true}},
	{"moving rows and updates", plot.Style{Color: plot.ColorSeries, Area: true}},
}

// timeSplit shows how the workers spent their time: by worker for a single run, otherwise by group.
func (s *section) timeSplit() (picture, bool) {
	f := &plot.Figure{Name: "How workers spent their time", Width: smallWidth}
	p := plot.Panel{X: plot.Axis{Name: "share of the time", Low: 0, High: 1, Percent: true}}
	bar := func(name string, shares [3]float64) {
		from := 0.0
		for i, v := range shares {
			p.Items = append(p.Items, &plot.Bar{
				Row: len(p.Rows), From: from, To: min(1, from+v), Style: parts[i].look,
				Inside: fmt.Sprintf("%.0f%%", 100*v),
			})
			from += v
		}
		p.Rows = append(p.Rows, name)
	}
	if len(s.trials) == 1 && s.trials[0].Summary != nil && s.trials[0].Summary.TimeSplit != nil {
		for _, w := range s.trials[0].Summary.TimeSplit.Workers {
			if sum := w.ComputeS + w.StalenessS + w.CommunicationS; sum > 0 && len(p.Rows) < maxRows {
				bar(fmt.Sprintf("worker:%d", w.Slot), [3]float64{
					w.ComputeS / sum, w.StalenessS / sum, w.CommunicationS / sum,
				})
			}
		}
	} else {
		for _, g := range s.ordered() {
			var sum [3]float64
			n := 0.0
			for _, t := range g.done() {
				if split := t.Summary.TimeSplit; split != nil {
					n++
					for i, v := range []float64{split.Compute, split.Staleness, split.Communication} {
						sum[i] += v
					}
				}
			}
			if n > 0 && len(p.Rows) < maxRows {
				bar(g.Name, [3]float64{sum[0] / n, sum[1] / n, sum[2] / n})
			}
		}
	}
	for _, part := range parts {
		f.Keys = append(f.Keys, plot.Key{Name: part.name, Look: part.look})
	}
	f.Panels = []plot.Panel{p}
	return picture{Name: "time", Heading: "How workers spent their time", Wide: f}, len(p.Rows) > 0
}

// capital capitalizes the first letter of a sentence.
func capital(s string) string {
	if s == "" || s[0] < 'a' || s[0] > 'z' {
		return s
	}
	return string(s[0]-'a'+'A') + s[1:]
}

package main

import (
	"math"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/run/plot"
)

// width of pictures, in pixels.
const width = 880.0

// picture stores a picture and returns the Markdown that shows it.
func (p *page) picture(file string, f *plot.Figure) string {
	if p.files[file] != nil {
		panic("the picture " + file + " is drawn twice")
	}
	p.files[file] = f.SVG(true)
	return "![" + f.Name + "](" + file + ")\n\n"
}

// styleAxes names the axes that determine the colour and the dashes of a cell. If dash is empty, colour determines
// both.
type styleAxes struct{ colour, dash string }

func (l *styleAxes) of(c *cell) plot.Style {
	colour := plot.SeriesStyle(c.place[l.colour])
	if l.dash == "" {
		return colour
	}
	look := plot.SeriesStyle(c.place[l.dash])
	look.Color, look.Shape = colour.Color, colour.Shape
	return look
}

// curves plots a column of the cells' series over time, as the figure name in the file file, and returns the Markdown
// that shows it. y is the label of the vertical axis. Each cell has a curve for the median of its trials, and a band
// from their minimum to their maximum; look sets its style. There is a panel for each label that the cells have on the
// axis panels, or a single panel if panels is "".
func (p *page) curves(file, name, column, y string, cells []*cell, look styleAxes, panels string) string {
	f := &plot.Figure{Name: name, Width: width, PanelHeight: 340}
	titles := []string{""}
	if panels != "" {
		titles = nil
		for _, c := range cells {
			if l := c.labels[panels]; !slices.Contains(titles, l) {
				titles = append(titles, l)
			}
		}
		f.Columns, f.PanelHeight = min(2, len(titles)), 280
	}
	var axes []string // that determine a cell's look
	for _, axis := range []string{look.dash, look.colour} {
		if axis != "" {
			axes = append(axes, axis)
		}
	}
	for _, title := range titles {
		panel := plot.Panel{
			Title: title, X: plot.Axis{Name: "seconds", FromZero: true},
			Y: plot.Axis{Name: y, Percent: strings.HasSuffix(column, "accuracy")},
		}
		of := cells
		if panels != "" {
			of = only(cells, panels, title)
		}
		for _, c := range of {
			curve, any := c.curve(column)
			if !any {
				continue
			}
			curve.Style = look.of(c)
			panel.Items = append(panel.Items, &curve)
			f.Keys = addKey(f.Keys, p.nameOf(c, axes...), curve.Style)
		}
		for _, at := range faultTimes(of) {
			panel.Items = append(panel.Items, &plot.VerticalLine{X: at, Color: plot.ColorFault})
		}
		f.Panels = append(f.Panels, panel)
	}
	sameAxes(f.Panels)
	return p.picture(file, f)
}

// sameAxes gives all panels the same axes to make them comparable.
func sameAxes(panels []plot.Panel) {
	if len(panels) < 2 {
		return
	}
	all := plot.Panel{X: panels[0].X, Y: panels[0].Y}
	for i := range panels {
		all.Items = append(all.Items, panels[i].Items...)
	}
	up, right := all.FittedY(), all.Right()
	for i := range panels {
		name := panels[i].Y.Name
		panels[i].Y = up
		panels[i].Y.Name = name
		panels[i].X.Low, panels[i].X.High = 0, right
	}
}

func addKey(keys []plot.Key, name string, look plot.Style) []plot.Key {
	if slices.ContainsFunc(keys, func(k plot.Key) bool { return k.Name == name }) {
		return keys
	}
	return append(keys, plot.Key{Name: name, Look: look})
}

// faultTimes returns the times of the faults in the cells' trials, rounded to seconds, or nil if there are more than
// four.
func faultTimes(cells []*cell) (at []float64) {
	for _, c := range cells {
		for _, t := range c.trials {
			for _, f := range t.summary.Failures {
				at = append(at, math.Round(f.AtSeconds))
			}
		}
	}
	slices.Sort(at)
	if at = slices.Compact(at); len(at) > 4 {
		return nil
	}
	return at
}

// curve returns the median of a column over the cell's trials, as a curve, with the minimum and maximum as its band.
// any is false if no trial has a value.
func (c *cell) curve(column string) (curve plot.Curve, any bool) {
	var all []plot.Points
	var stays []bool
	for _, t := range c.trials {
		p, diverged := plot.ReadPoints(t.series.Columns, t.series.Rows, column)
		all, stays = append(all, p), append(stays, !diverged)
	}
	curve.X, curve.Mid, curve.Low, curve.High, any = plot.Band(all, stays)
	return curve, any
}

// dots plots the medians of the cells, with lines from the minimum to the maximum of their trials, and returns the
// Markdown that shows the picture. There is a panel for each column and in it a row for each cell, which is named by
// its labels on axes.
func (p *page) dots(file, name string, cells []*cell, axes []string, look styleAxes, columns ...column) string {
	f := &plot.Figure{Name: name, Width: width, Columns: min(3, len(columns))}
	for n := range columns {
		col := &columns[n]
		panel := plot.Panel{Title: col.heading, X: plot.Axis{Percent: col.format == percent, FromZero: n > 0}}
		for i, c := range cells {
			v := p.spread(c, col)
			panel.Rows = append(panel.Rows, p.nameOf(c, axes...))
			dot := &plot.Dot{Row: i, Mid: v.Mid, Low: v.Low, High: v.High, Style: look.of(c)}
			if math.IsInf(v.Mid, 0) {
				dot.Mid = math.NaN()
			} else if known(v) {
				dot.Text = shown(v.Mid, col.format)
			}
			if math.IsInf(dot.High, 0) {
				dot.High = dot.Mid
			}
			panel.Items = append(panel.Items, dot)
		}
		f.Panels = append(f.Panels, panel)
	}
	return p.picture(file, f)
}

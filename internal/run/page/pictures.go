package page

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/run/curves"
	"github.com/perdure/perdure/internal/run/draw"
)

// width of pictures, in pixels.
const width = 880.0

var pictureName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*\.svg$`)

// keep keeps a picture, and returns the Markdown that shows it.
func (s *Study) keep(file string, f *draw.Figure) (string, error) {
	switch {
	case !pictureName.MatchString(file):
		return "", fmt.Errorf("the picture %q: name it with small letters, digits and -, and .svg", file)
	case s.files[file] != nil:
		return "", fmt.Errorf("the picture %q is drawn twice", file)
	}
	s.files[file] = f.SVG(true)
	return fmt.Sprintf("![%s](%s)", f.Name, file), nil
}

// options of a picture, written NAME=VALUE.
type options struct{ colour, dash, panels, x, y string }

func parseOptions(texts []string) (o options, err error) {
	to := map[string]*string{"colour": &o.colour, "dash": &o.dash, "panels": &o.panels, "x": &o.x, "y": &o.y}
	for _, text := range texts {
		name, value, _ := strings.Cut(text, "=")
		if to[name] == nil {
			return o, fmt.Errorf("the option %q: write colour=AXIS, dash=AXIS, panels=AXIS, x=NAME or y=NAME", text)
		}
		*to[name] = value
	}
	return o, nil
}

// look is how a cell is drawn: by its place in the axis that says the colour, and in that which says the dashes.
func (o *options) look(c *Cell) draw.Look {
	n, m := c.place[o.colour], c.place[o.dash]
	if o.dash == "" {
		return draw.LookOf(n)
	}
	l := draw.LookOf(m)
	l.Tone, l.Shape = draw.LookOf(n).Tone, draw.LookOf(n).Shape
	return l
}

// curves draws a column of the series over seconds, of each cell the median, and a band from least to most. There is a
// panel for each label of an axis, or one.
func (s *Study) curves(file, name, column string, cells []*Cell, option ...string) (string, error) {
	o, err := parseOptions(option)
	if err != nil {
		return "", err
	}
	f := &draw.Figure{Name: name, Width: width, High: 340}
	panels := []string{""}
	if o.panels != "" {
		panels = nil
		for _, c := range cells {
			if l := c.labels[o.panels]; !slices.Contains(panels, l) {
				panels = append(panels, l)
			}
		}
		f.Columns, f.High = min(2, len(panels)), 280
	}
	y := draw.Axis{Name: o.y, Percent: strings.HasSuffix(column, "accuracy")}
	x := draw.Axis{Name: "seconds", FromZero: true}
	for _, panel := range panels {
		p := draw.Panel{Title: panel, X: x, Y: y}
		for _, c := range cells {
			if o.panels != "" && c.labels[o.panels] != panel {
				continue
			}
			curve, any := c.curve(column)
			if !any {
				continue
			}
			curve.Look = o.look(c)
			p.Items = append(p.Items, &curve)
			f.Keys = addKey(f.Keys, s.keyName(c, &o), curve.Look)
		}
		for _, at := range faultsOf(cells, o.panels, panel) {
			p.Items = append(p.Items, &draw.Upright{X: at, Tone: draw.Hit})
		}
		f.Panels = append(f.Panels, p)
	}
	alike(f.Panels)
	return s.keep(file, f)
}

// alike gives panels the same axes, so that they can be compared.
func alike(panels []draw.Panel) {
	if len(panels) < 2 {
		return
	}
	all := draw.Panel{X: panels[0].X, Y: panels[0].Y}
	for i := range panels {
		all.Items = append(all.Items, panels[i].Items...)
	}
	up, right := all.Upward(), all.Right()
	for i := range panels {
		name := panels[i].Y.Name
		panels[i].Y = up
		panels[i].Y.Name = name
		panels[i].X.Low, panels[i].X.High = 0, right
	}
}

// keyName is what a cell is called in the key: by the axes that say how it is drawn, else by all but the panels'.
func (s *Study) keyName(c *Cell, o *options) string {
	var axes []string
	for _, axis := range []string{o.dash, o.colour} {
		if axis != "" && axis != o.panels {
			axes = append(axes, axis)
		}
	}
	return strings.Trim(s.name(c, axes...), "`")
}

func addKey(keys []draw.Key, name string, look draw.Look) []draw.Key {
	if slices.ContainsFunc(keys, func(k draw.Key) bool { return k.Name == name }) {
		return keys
	}
	return append(keys, draw.Key{Name: name, Look: look})
}

// faultsOf are the times of the faults that all trials of some cells had, to a second; none where there are many.
func faultsOf(cells []*Cell, axis, label string) (at []float64) {
	for _, c := range cells {
		if axis != "" && c.labels[axis] != label {
			continue
		}
		for _, t := range c.Trials {
			list, _ := lookUp(t.summary, "failures").([]any)
			for _, f := range list {
				if x, is := lookUp(f, "at_seconds").(float64); is {
					at = append(at, math.Round(x))
				}
			}
		}
	}
	slices.Sort(at)
	if at = slices.Compact(at); len(at) > 4 {
		return nil
	}
	return at
}

// curve is what the trials measured.
func (c *Cell) curve(column string) (curve draw.Curve, any bool) {
	var all []curves.Points
	var stays []bool
	for _, t := range c.Trials {
		p, diverged := curves.Measured(t.columns, t.rows, column)
		all, stays = append(all, p), append(stays, !diverged)
	}
	curve.X, curve.Mid, curve.Low, curve.High, any = curves.Band(all, stays)
	return curve, any
}

// dots draws a panel for each measure, with a row for each cell: the median, and a line from least to most.
func (s *Study) dots(file, name string, cells []*Cell, axes, by string, columns ...string) (string, error) {
	o, err := parseOptions(strings.Fields(by))
	if err != nil {
		return "", err
	}
	f := &draw.Figure{Name: name, Width: width, Columns: min(3, max(1, len(columns)))}
	for n, text := range columns {
		col, err := parseColumn(text)
		if err != nil {
			return "", err
		}
		p := draw.Panel{Title: col.heading, X: draw.Axis{Percent: col.format == "percent", FromZero: n > 0}}
		for i, c := range cells {
			v, err := s.of(c, &col)
			if err != nil {
				return "", err
			}
			p.Rows = append(p.Rows, strings.Trim(s.name(c, strings.Fields(axes)...), "`"))
			dot := &draw.Dot{Row: i, Mid: v.Mid, Low: v.Low, High: v.High, Look: o.look(c)}
			if math.IsInf(v.Mid, 0) {
				dot.Mid = math.NaN()
			} else if known(v) {
				dot.Text = shown(v.Mid, col.format)
			}
			if math.IsInf(dot.High, 0) {
				dot.High = dot.Mid
			}
			p.Items = append(p.Items, dot)
		}
		f.Panels = append(f.Panels, p)
	}
	return s.keep(file, f)
}

// Package plot summarizes measurements of several runs (medians, ranges, curves over time) and plots them: panels with
// axes, series with their ranges, bars and points in rows, and a key above them. gonum's plot renders them as SVG; this
// package defines the common look of all of Perdure's pictures.
//
// Pictures are readable without colours, because dashes and shapes also distinguish series; in dark mode, because
// colours are CSS variables; and on narrow pages, because the caller chooses the width and text does not shrink with
// it. A picture depends only on its Figure. The package has no shared state.
package plot

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"regexp"
	"slices"
	"strings"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Figure is a picture.
type Figure struct {
	Name        string // alternative text
	Width       float64
	Columns     int     // of panels; 0: one
	PanelHeight float64 // height of each panel with its axes
	Keys        []Key
	Panels      []Panel
}

// Key explains a look.
type Key struct {
	Name string
	Look Style
}

// Axis is one axis of a panel.
type Axis struct {
	Name      string  // with its unit
	Low, High float64 // both equal: determined by the items
	Percent   bool    // values are shares
	Integer   bool    // values are integers
	FromZero  bool    // the axis starts at 0 if no value is negative
}

// Panel is one plot.
type Panel struct {
	Title string
	X, Y  Axis
	Rows  []string // names of rows from top to bottom, instead of Y
	Items []Item   // later items are drawn on top
}

// Item is an element of a panel: a Curve, a Span, a Mark, a VerticalLine, a Bar or a Dot.
type Item interface {
	plot.Plotter
	bounds() box
}

const (
	margin    = 6.0
	textSize  = 12.0
	keyHeight = 19.0
	rowHeight = 36.0
	edgeRight = 16.0
)

// wider is the factor by which text may be wider than measured, because the reader's font may differ.
const wider = 1.14

func styled(size float64, tone Color) text.Style {
	return text.Style{
		Color: tone, Font: font.From(plot.DefaultFont, vg.Length(size)), XAlign: text.XLeft, YAlign: text.YBottom,
		Handler: plot.DefaultTextHandler,
	}
}

func bold(s text.Style) text.Style {
	s.Font.Weight = xfont.WeightBold
	return s
}

func init() {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
}

// SVG renders the figure. A standalone picture includes styles and a background.
func (f *Figure) SVG(alone bool) []byte {
	columns := max(1, f.Columns)
	lines := (len(f.Panels) + columns - 1) / columns
	keys, keysHigh := f.placeKeys()
	top := margin + keysHigh
	high := top + float64(lines)*(f.panelHead()+f.panelHeight()) + margin
	c := vgsvg.NewWith(vgsvg.UseWH(vg.Length(f.Width), vg.Length(high)))
	dc := vgdraw.New(c)
	if alone {
		dc.FillPolygon(ColorBackground, []vg.Point{{}, {Y: dc.Max.Y}, {X: dc.Max.X, Y: dc.Max.Y}, {X: dc.Max.X}})
	}
	for _, k := range keys {
		k.draw(dc, high-margin)
	}
	f.drawPanels(dc, columns, lines, top)
	return f.finish(c, high, alone)
}

// panelHead returns the height above each panel's plot, for the title and the name of the vertical axis.
func (f *Figure) panelHead() (high float64) {
	for i := range f.Panels {
		h := 16.0
		if f.Panels[i].Title != "" {
			h += 18
		}
		if f.Panels[i].Y.Name != "" && f.Panels[i].Rows == nil {
			h += 16
		}
		high = max(high, h)
	}
	return high
}

// panelHeight returns the height of the panels: PanelHeight, or as much as their rows need.
func (f *Figure) panelHeight() float64 {
	if f.PanelHeight > 0 {
		return f.PanelHeight
	}
	rows := 0
	for i := range f.Panels {
		rows = max(rows, len(f.Panels[i].Rows))
	}
	return float64(rows)*rowHeight + 46
}

// fit shortens a text to the available width.
func fit(s string, style text.Style, most float64) string {
	if wider*float64(style.Width(s)) <= most {
		return s
	}
	short := []rune(s)
	for len(short) > 1 && wider*float64(style.Width(string(short)+"…")) > most {
		short = short[:len(short)-1]
	}
	return strings.TrimRight(string(short), " ,") + "…"
}

// placed is a key with its position: x from the left, y from the top of the keys.
type placed struct {
	Key
	x, y float64
}

// sample returns the width of the sample of a key's look.
func (k *Key) sample() float64 {
	if k.Look.Area || k.Look.Cross {
		return 14
	}
	return 30
}

// placeKeys arranges the keys in lines.
func (f *Figure) placeKeys() (all []placed, high float64) {
	x, y := margin, 0.0
	for _, k := range f.Keys {
		k.Name = fit(k.Name, styled(textSize, ColorText), f.Width-2*margin-k.sample()-6)
		wide := k.sample() + 6 + wider*float64(styled(textSize, ColorText).Width(k.Name)) + 14
		if x > margin && x+wide-14 > f.Width-margin {
			x, y = margin, y+keyHeight
		}
		all = append(all, placed{k, x, y})
		x += wide
	}
	if len(all) == 0 {
		return nil, 0
	}
	return all, y + keyHeight + 4
}

func (k *placed) draw(c vgdraw.Canvas, top float64) {
	y, x := vg.Length(top-k.y-keyHeight/2-1), vg.Length(k.x)
	switch l := k.Look; {
	case l.Area:
		fillBox(c, l.Color, x, y-5, x+14, y+5)
	case l.Cross:
		cross(c, vg.Point{X: x + 7, Y: y}, l.Color)
	default:
		c.StrokeLine2(l.lineStyle(), x, y, x+30, y)
		if l.Shape > 0 {
			c.DrawGlyphNoClip(l.pointStyle(3.4), vg.Point{X: x + 15, Y: y})
		}
	}
	c.FillText(styled(textSize, ColorText), vg.Point{X: x + vg.Length(k.sample()) + 6, Y: y - 4.5}, k.Name)
}

// drawPanels draws the panels in a grid with aligned axes.
func (f *Figure) drawPanels(c vgdraw.Canvas, columns, lines int, top float64) {
	head := vg.Length(f.panelHead())
	tiles := vgdraw.Tiles{
		Rows: lines, Cols: columns, PadTop: vg.Length(top) + head, PadBottom: margin, PadLeft: f.edgeLeft(),
		PadRight: edgeRight, PadX: 20, PadY: head,
	}
	plots := make([][]*plot.Plot, lines)
	for j := range plots {
		plots[j] = make([]*plot.Plot, columns)
		for i := range plots[j] {
			if at := j*columns + i; at < len(f.Panels) {
				plots[j][i] = f.Panels[at].plot()
			}
		}
	}
	if lines == 0 {
		return
	}
	for j, line := range plot.Align(plots, tiles, c) {
		for i, area := range line {
			if plots[j][i] == nil {
				continue
			}
			p := &f.Panels[j*columns+i]
			plots[j][i].Draw(area)
			data := plots[j][i].DataCanvas(area)
			y := data.Max.Y + 9 // above the topmost value of the axis
			left := area.Min.X
			if p.Rows != nil {
				left, y = data.Min.X, data.Max.Y+5
			}
			if p.Y.Name != "" && p.Rows == nil {
				c.FillText(styled(textSize-.5, ColorSecondary), vg.Point{X: left, Y: y}, p.Y.Name)
				y += 16
			}
			if p.Title != "" {
				style := bold(styled(13, ColorText))
				c.FillText(style, vg.Point{X: left, Y: y}, fit(p.Title, style, float64(area.Max.X-left)))
			}
		}
	}
}

// edgeLeft leaves room for half of the first tick's label if rows replace an axis.
func (f *Figure) edgeLeft() vg.Length {
	if slices.ContainsFunc(f.Panels, func(p Panel) bool { return p.Rows != nil }) {
		return 16
	}
	return margin
}

var (
	svgHead  = regexp.MustCompile(`(?s)^.*?<svg [^>]*>`)
	textHead = regexp.MustCompile(`\n\tstyle="font-family:[^;]*;font-variant:[^;]*;font-weight:([^;]*);` +
		`font-style:[^;]*;font-size:([^;]*)px;?([^"]*)"`)
)

// fonts lists fonts with the widths that were measured, then generic ones.
const fonts = "'Liberation Sans',Arial,Helvetica,sans-serif"

// finish replaces the SVG header by one for pages: with a name, a size without a unit, and styles.
func (f *Figure) finish(c *vgsvg.Canvas, high float64, alone bool) []byte {
	var b bytes.Buffer
	_, _ = c.WriteTo(&b) // writes to memory
	body := svgHead.ReplaceAllString(b.String(), "")
	body = textHead.ReplaceAllStringFunc(body, func(found string) string {
		m := textHead.FindStringSubmatch(found)
		style := m[3]
		if m[1] != "normal" {
			style += ";font-weight:600"
		}
		return fmt.Sprintf(` font-size="%s" style="%s"`, m[2], style)
	})
	styles := ""
	if alone {
		styles = "<style>" + CSS() + "</style>\n"
	}
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" `+
		`viewBox="0 0 %[1]v %[2]v" role="img" font-family="%s">`+"\n<title>%s</title>\n%s%s",
		math.Ceil(f.Width), math.Ceil(high), fonts, html.EscapeString(f.Name), styles, useCSSVariables(body))
}

package main

import (
	"fmt"
	"html"
	"math"
	"os"
	"strconv"
	"strings"
)

// Colours. Those of the models are Okabe and Ito's, which stay apart for all
// kinds of colour vision; a model has one colour in all plots.
var (
	modelColour = map[string]string{"bsp": "#3b3f46", "ssp": "#d55e00", "essp": "#0072b2", "asp": "#009e73", "vap": "#b3589a"}
	splitColour = map[string]string{"compute": "#c3cad4", "staleness": "#e9b44c", "communication": "#5b6b7f"}
)

// lineWidth lets a line that lies on another be seen: what is drawn later is
// thinner.
var lineWidth = map[string]float64{"bsp": 2.8, "ssp": 2.4, "essp": 1.5}

const (
	ink    = "#22262b"
	soft   = "#69707a" // of what is read second
	rule   = "#e6e8eb" // of the grid
	axis   = "#b4bac2"
	family = "Inter, 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
)

// canvas is one drawing. It has a white ground of its own, so that it can be read
// on pages of any colour.
type canvas struct {
	strings.Builder
	width, height float64
	clips         int
}

func newCanvas(width, height float64, title, subtitle string) *canvas {
	c := &canvas{width: width, height: height}
	c.rect(0, 0, width, height, "#ffffff", "")
	c.text(24, 34, title, style{size: 17, weight: 600})
	c.text(24, 55, subtitle, style{size: 12.5, colour: soft})
	return c
}

// save writes the drawing; its title is what screen readers say.
func (c *canvas) save(file, title string) error {
	head := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%s" height="%s" viewBox="0 0 %[1]s %[2]s" role="img" font-family="%s">`+"\n<title>%s</title>\n",
		px(c.width), px(c.height), family, html.EscapeString(title))
	return os.WriteFile(file, []byte(head+c.String()+"</svg>\n"), 0o666)
}

func px(v float64) string { return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) }

// style is how text looks; what is zero is usual.
type style struct {
	size, weight   float64
	colour, anchor string // anchor: start, middle or end
	halo           bool   // it stands on lines
}

func (c *canvas) text(x, y float64, s string, t style) {
	if t.size == 0 {
		t.size = 11.5
	}
	if t.colour == "" {
		t.colour = ink
	}
	extra := ""
	if t.weight != 0 {
		extra += fmt.Sprintf(` font-weight="%s"`, px(t.weight))
	}
	if t.anchor != "" {
		extra += fmt.Sprintf(` text-anchor="%s"`, t.anchor)
	}
	if t.halo {
		extra += ` paint-order="stroke" stroke="#ffffff" stroke-width="3.5" stroke-linejoin="round"`
	}
	fmt.Fprintf(c, `<text x="%s" y="%s" font-size="%s" fill="%s"%s>%s</text>`+"\n", px(x), px(y), px(t.size), t.colour, extra, html.EscapeString(s))
}

func (c *canvas) line(x1, y1, x2, y2 float64, colour string, width float64) {
	fmt.Fprintf(c, `<line x1="%s" y1="%s" x2="%s" y2="%s" stroke="%s" stroke-width="%s"/>`+"\n", px(x1), px(y1), px(x2), px(y2), colour, px(width))
}

func (c *canvas) rect(x, y, width, height float64, colour, extra string) {
	fmt.Fprintf(c, `<rect x="%s" y="%s" width="%s" height="%s" fill="%s"%s/>`+"\n", px(x), px(y), px(width), px(height), colour, extra)
}

func (c *canvas) dot(x, y, radius float64, colour string) {
	fmt.Fprintf(c, `<circle cx="%s" cy="%s" r="%s" fill="%s" stroke="#ffffff" stroke-width="1.2"/>`+"\n", px(x), px(y), px(radius), colour)
}

// cross marks where a line leaves its panel for good.
func (c *canvas) cross(x, y float64, colour string) {
	const r = 3.6
	fmt.Fprintf(c, `<path d="M%s %sl%[3]s %[3]sm0 -%[3]sl-%[3]s %[3]s" stroke="%[4]s" stroke-width="2" stroke-linecap="round" fill="none"/>`+"\n", px(x-r), px(y-r), px(2*r), colour)
}

// path draws through points (x, y, x, y, …), with a stroke, or filled.
func (c *canvas) path(points []float64, extra string) {
	var d strings.Builder
	for i := 0; i+1 < len(points); i += 2 {
		d.WriteString(map[bool]string{true: "M", false: "L"}[i == 0] + px(points[i]) + " " + px(points[i+1]))
	}
	fmt.Fprintf(c, `<path d="%s" %s/>`+"\n", d.String(), extra)
}

func stroke(colour string, width float64) string {
	return fmt.Sprintf(`fill="none" stroke="%s" stroke-width="%s" stroke-linejoin="round" stroke-linecap="round"`, colour, px(width))
}

func fill(colour string, opacity float64) string {
	return fmt.Sprintf(`fill="%s" fill-opacity="%s"`, colour, px(opacity))
}

// legend draws names with their colours in one line from x on.
func (c *canvas) legend(x, y float64, names []string, colours map[string]string) {
	for _, n := range names {
		c.rect(x, y-9, 14, 10, colours[n], ` rx="2"`)
		c.text(x+20, y, n, style{size: 12.5})
		x += 46 + 7*float64(len(n))
	}
}

// interval is a range of values.
type interval struct{ low, high float64 }

// panel is a plot's frame: it turns values into places.
type panel struct {
	*canvas
	left, top, width, height float64
	x, y                     interval
}

func (p *panel) px(v float64) float64 {
	return p.left + p.width*(v-p.x.low)/(p.x.high-p.x.low)
}

// py keeps what is far outside near the panel: drawings have no infinity.
func (p *panel) py(v float64) float64 {
	share := (v - p.y.low) / (p.y.high - p.y.low)
	return p.top + p.height*(1-min(max(share, -2), 3))
}

// grid draws the horizontal lines with their values, and the values below with
// their unit. Without yText values are written as numbers.
func (p *panel) grid(title, unit string, xTicks, yTicks []float64, yText func(float64) string) {
	if yText == nil {
		yText = tidy(yTicks)
	}
	for _, v := range yTicks {
		p.line(p.left, p.py(v), p.left+p.width, p.py(v), rule, 1)
		p.text(p.left-7, p.py(v)+3.8, yText(v), style{size: 11, colour: soft, anchor: "end"})
	}
	foot := p.top + p.height
	p.line(p.left, foot, p.left+p.width, foot, axis, 1)
	for _, v := range xTicks {
		p.line(p.px(v), foot, p.px(v), foot+4, axis, 1)
		p.text(p.px(v), foot+17, tidy(xTicks)(v), style{size: 11, colour: soft, anchor: "middle"})
	}
	p.text(p.left+p.width, foot+32, unit, style{size: 11, colour: soft, anchor: "end"})
	p.text(p.left, p.top-9, title, style{size: 13, weight: 600})
}

// inside clips what draw draws to the panel.
func (p *panel) inside(draw func()) {
	p.clips++
	fmt.Fprintf(p, `<clipPath id="c%d"><rect x="%s" y="%s" width="%s" height="%s"/></clipPath><g clip-path="url(#c%[1]d)">`+"\n",
		p.clips, px(p.left), px(p.top-1), px(p.width), px(p.height+2))
	draw()
	fmt.Fprint(p, "</g>\n")
}

// ticks are about n round numbers within the interval.
func ticks(i interval, n int) (at []float64) {
	if !(i.high > i.low) || math.IsInf(i.high-i.low, 0) {
		return nil
	}
	raw := (i.high - i.low) / float64(n)
	step := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 5, 10} {
		if m*step >= raw {
			step *= m
			break
		}
	}
	for k := math.Ceil(i.low/step - 1e-9); k*step <= i.high+1e-9*step; k++ {
		at = append(at, k*step+0) // +0: no minus zero
	}
	return at
}

// tidy writes ticks, all with as many digits as their distance needs.
func tidy(at []float64) func(float64) string {
	digits := 0
	if len(at) > 1 {
		digits = max(0, -int(math.Floor(math.Log10(at[1]-at[0])+1e-9)))
	}
	return func(v float64) string {
		return strings.ReplaceAll(strconv.FormatFloat(v, 'f', digits, 64), "-", "−")
	}
}

package study

import (
	"fmt"
	"html"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Colours of what every drawing has.
const (
	Paper  = "#ffffff"
	Ink    = "#22262b"
	Soft   = "#69707a" // of what is read second
	Rule   = "#e6e8eb" // of the grid
	Axis   = "#b4bac2"
	family = "Inter, 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
)

// Canvas is one drawing. It has a white ground of its own, so that it can be read
// on pages of any colour.
type Canvas struct {
	strings.Builder
	// Dark says for colours of the drawing what they are where the reader has asked
	// for dark pages; nil: the drawing is light everywhere.
	Dark map[string]string

	width, height float64
	clips         int
}

// AtNight is a Dark for the colours of this package.
var AtNight = map[string]string{Paper: "#14171a", Ink: "#e9ecef", Soft: "#9aa3ad", Rule: "#2a2f35", Axis: "#555d66"}

// NewCanvas begins a drawing of that size, in pixels, with a head.
func NewCanvas(width, height float64, title, subtitle string) *Canvas {
	c := &Canvas{width: width, height: height}
	c.Rect(0, 0, width, height, Paper, "")
	c.Text(24, 34, title, Style{Size: 17, Weight: 600})
	c.Text(24, 55, subtitle, Style{Size: 12.5, Colour: Soft})
	return c
}

// Save writes the drawing; its title is what screen readers say.
func (c *Canvas) Save(file, title string) error {
	head := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%s" height="%s" viewBox="0 0 %[1]s %[2]s" `+
		`role="img" font-family="%s">`+"\n<title>%s</title>\n",
		px(c.width), px(c.height), family, html.EscapeString(title))
	return os.WriteFile(file, []byte(head+c.night()+c.String()+"</svg>\n"), 0o666)
}

// night is the rules of style that replace colours.
func (c *Canvas) night() string {
	if len(c.Dark) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("<style>@media (prefers-color-scheme: dark) {\n")
	for _, from := range slices.Sorted(maps.Keys(c.Dark)) {
		fmt.Fprintf(&b, "[fill=%q] { fill: %[2]s } [stroke=%[1]q] { stroke: %[2]s }\n", from, c.Dark[from])
	}
	b.WriteString("}</style>\n")
	return b.String()
}

func px(v float64) string { return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) }

// Style is how text looks; what is zero is usual.
type Style struct {
	Size, Weight   float64
	Colour, Anchor string // Anchor: start, middle or end
	Halo           bool   // it stands on lines
}

// Text writes s with its baseline at y.
func (c *Canvas) Text(x, y float64, s string, t Style) {
	if t.Size == 0 {
		t.Size = 11.5
	}
	if t.Colour == "" {
		t.Colour = Ink
	}
	extra := ""
	if t.Weight != 0 {
		extra += fmt.Sprintf(` font-weight="%s"`, px(t.Weight))
	}
	if t.Anchor != "" {
		extra += fmt.Sprintf(` text-anchor="%s"`, t.Anchor)
	}
	if t.Halo {
		extra += ` paint-order="stroke" stroke="#ffffff" stroke-width="3.5" stroke-linejoin="round"`
	}
	fmt.Fprintf(c, `<text x="%s" y="%s" font-size="%s" fill="%s"%s>%s</text>`+"\n", px(x), px(y), px(t.Size), t.Colour,
		extra, html.EscapeString(s))
}

// Line draws a straight line.
func (c *Canvas) Line(x1, y1, x2, y2 float64, colour string, width float64) {
	fmt.Fprintf(c, `<line x1="%s" y1="%s" x2="%s" y2="%s" stroke="%s" stroke-width="%s"/>`+"\n", px(x1), px(y1), px(x2),
		px(y2), colour, px(width))
}

// Rect fills a rectangle; extra are more attributes, each after a space.
func (c *Canvas) Rect(x, y, width, height float64, colour, extra string) {
	fmt.Fprintf(c, `<rect x="%s" y="%s" width="%s" height="%s" fill="%s"%s/>`+"\n", px(x), px(y), px(width), px(height),
		colour, extra)
}

// Dot marks a point.
func (c *Canvas) Dot(x, y, radius float64, colour string) {
	fmt.Fprintf(c, `<circle cx="%s" cy="%s" r="%s" fill="%s" stroke="#ffffff" stroke-width="1.2"/>`+"\n", px(x), px(y),
		px(radius), colour)
}

// Cross marks where a line leaves its panel for good.
func (c *Canvas) Cross(x, y float64, colour string) {
	const r = 3.6
	fmt.Fprintf(c, `<path d="M%s %sl%[3]s %[3]sm0 -%[3]sl-%[3]s %[3]s" stroke="%[4]s" stroke-width="2" `+
		`stroke-linecap="round" fill="none"/>`+"\n", px(x-r), px(y-r), px(2*r), colour)
}

// Path draws through points (x, y, x, y, …), with a stroke, or filled.
func (c *Canvas) Path(points []float64, extra string) {
	var d strings.Builder
	for i := 0; i+1 < len(points); i += 2 {
		d.WriteString(map[bool]string{true: "M", false: "L"}[i == 0] + px(points[i]) + " " + px(points[i+1]))
	}
	fmt.Fprintf(c, `<path d="%s" %s/>`+"\n", d.String(), extra)
}

// Stroke are the attributes of a Path that is a line.
func Stroke(colour string, width float64) string {
	return fmt.Sprintf(`fill="none" stroke="%s" stroke-width="%s" stroke-linejoin="round" stroke-linecap="round"`,
		colour, px(width))
}

// Fill are the attributes of a Path that is an area.
func Fill(colour string, opacity float64) string {
	return fmt.Sprintf(`fill="%s" fill-opacity="%s"`, colour, px(opacity))
}

// Legend draws names with their colours in one line from x on.
func (c *Canvas) Legend(x, y float64, names []string, colours map[string]string) {
	for _, n := range names {
		c.Rect(x, y-9, 14, 10, colours[n], ` rx="2"`)
		c.Text(x+20, y, n, Style{Size: 12.5})
		x += 46 + 7*float64(len(n))
	}
}

// Interval is a range of values.
type Interval struct{ Low, High float64 }

// Between is the interval from low to high.
func Between(low, high float64) Interval { return Interval{low, high} }

// Panel is a plot's frame: it turns values into places.
type Panel struct {
	*Canvas
	Left, Top, Width, Height float64
	X, Y                     Interval
}

// PX is the place of a value on the horizontal axis.
func (p *Panel) PX(v float64) float64 {
	return p.Left + p.Width*(v-p.X.Low)/(p.X.High-p.X.Low)
}

// PY keeps what is far outside near the panel: drawings have no infinity.
func (p *Panel) PY(v float64) float64 {
	share := (v - p.Y.Low) / (p.Y.High - p.Y.Low)
	return p.Top + p.Height*(1-min(max(share, -2), 3))
}

// Grid draws the horizontal lines with their values, and the values below with
// their unit. Without yText values are written as numbers.
func (p *Panel) Grid(title, unit string, xTicks, yTicks []float64, yText func(float64) string) {
	if yText == nil {
		yText = Tidy(yTicks)
	}
	for _, v := range yTicks {
		p.Line(p.Left, p.PY(v), p.Left+p.Width, p.PY(v), Rule, 1)
		p.Text(p.Left-7, p.PY(v)+3.8, yText(v), Style{Size: 11, Colour: Soft, Anchor: "end"})
	}
	foot := p.Top + p.Height
	p.Line(p.Left, foot, p.Left+p.Width, foot, Axis, 1)
	for _, v := range xTicks {
		p.Line(p.PX(v), foot, p.PX(v), foot+4, Axis, 1)
		p.Text(p.PX(v), foot+17, Tidy(xTicks)(v), Style{Size: 11, Colour: Soft, Anchor: "middle"})
	}
	p.Text(p.Left+p.Width, foot+32, unit, Style{Size: 11, Colour: Soft, Anchor: "end"})
	p.Text(p.Left, p.Top-9, title, Style{Size: 13, Weight: 600})
}

// Inside clips what draw draws to the panel.
func (p *Panel) Inside(draw func()) {
	p.clips++
	fmt.Fprintf(p, `<clipPath id="c%d"><rect x="%s" y="%s" width="%s" height="%s"/></clipPath><g `+
		`clip-path="url(#c%[1]d)">`+"\n",
		p.clips, px(p.Left), px(p.Top-1), px(p.Width), px(p.Height+2))
	draw()
	fmt.Fprint(p, "</g>\n")
}

// Ticks are about n round numbers within the Interval.
func Ticks(i Interval, n int) (at []float64) {
	if !(i.High > i.Low) || math.IsInf(i.High-i.Low, 0) {
		return nil
	}
	raw := (i.High - i.Low) / float64(n)
	step := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 5, 10} {
		if m*step >= raw {
			step *= m
			break
		}
	}
	for k := math.Ceil(i.Low/step - 1e-9); k*step <= i.High+1e-9*step; k++ {
		at = append(at, k*step+0) // +0: no minus zero
	}
	return at
}

// Tidy writes ticks, all with as many digits as their distance needs.
func Tidy(at []float64) func(float64) string {
	digits := 0
	if len(at) > 1 {
		digits = max(0, -int(math.Floor(math.Log10(at[1]-at[0])+1e-9)))
	}
	return func(v float64) string {
		return strings.ReplaceAll(strconv.FormatFloat(v, 'f', digits, 64), "-", "−")
	}
}

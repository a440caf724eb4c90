package plot

import (
	"fmt"
	"regexp"
	"strings"

	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"
)

// Color is a colour by purpose. Its values for light and dark mode are defined here.
type Color int

// The colours of all pictures. Those of series start at ColorSeries.
const (
	ColorBackground Color = iota
	ColorText
	ColorSecondary // secondary text
	ColorGrid
	ColorAxis   // axes
	ColorOutage // an interval in which a process was unavailable
	ColorFault  // a fault
	ColorMuted  // a less important part
	ColorSeries // the first of NumSeriesColors series
)

// NumSeriesColors is the number of colours of series.
const NumSeriesColors = 7

// hues are the tones in light and dark mode. Those of series are the colours of Okabe and Ito, which are distinct for
// all kinds of colour vision, without their yellow and somewhat darker where they would be hard to read on white. All
// are different and none is black, because named identifies tones by their colours.
var hues = []struct{ name, light, dark string }{
	ColorBackground: {"paper", "FFFFFF", "16191D"},
	ColorText:       {"ink", "22262B", "E9ECEF"}, ColorSecondary: {"soft", "626973", "A2ABB5"},
	ColorGrid: {"grid", "E6E8EB", "2C3238"}, ColorAxis: {"axis", "A9B0B9", "5B646E"},
	ColorOutage: {"away", "F6ECD9", "3A3120"}, ColorFault: {"hit", "A3321F", "FF8A73"},
	ColorMuted: {"pale", "C3CAD4", "57616D"}, ColorSeries: {"s0", "0072B2", "56ADE8"},
	ColorSeries + 1: {"s1", "C8500A", "FF8F4D"}, ColorSeries + 2: {"s2", "00805C", "3FC79A"},
	ColorSeries + 3: {"s3", "A8508A", "DE93C2"}, ColorSeries + 4: {"s4", "8A6A00", "E3B93C"},
	ColorSeries + 5: {"s5", "3B3F46", "D5DAE0"}, ColorSeries + 6: {"s6", "2E86C1", "8FD0F5"},
}

// CSS returns the CSS rules that pictures on a page need once.
func CSS() string {
	var light, dark strings.Builder
	for _, h := range hues {
		fmt.Fprintf(&light, "--draw-%s:#%s;", h.name, h.light)
		fmt.Fprintf(&dark, "--draw-%s:#%s;", h.name, h.dark)
	}
	return fmt.Sprintf(":root{%s}\n@media(prefers-color-scheme:dark){:root{%s}}\n", &light, &dark)
}

var colour = regexp.MustCompile(`(fill|stroke):#([0-9A-F]{6})`)

// useCSSVariables replaces the colours of tones by CSS variables, with the colours as fallback.
func useCSSVariables(svg string) string {
	names := map[string]string{}
	for _, h := range hues {
		names[h.light] = h.name
	}
	return colour.ReplaceAllStringFunc(svg, func(found string) string {
		what, hue, _ := strings.Cut(found, ":#")
		if name, known := names[hue]; known {
			return fmt.Sprintf("%s:var(--draw-%s,#%s)", what, name, hue)
		}
		return found
	})
}

// RGBA returns the colour in light mode.
func (t Color) RGBA() (r, g, b, a uint32) { return ink{t, 1}.RGBA() }

// ink is a tone with an opacity.
type ink struct {
	Color
	opacity float64
}

// RGBA rounds up, so that dividing by the opacity gives exactly the original colour.
func (i ink) RGBA() (r, g, b, a uint32) {
	a = uint32(i.opacity * 0xffff)
	var of [3]uint32
	_, _ = fmt.Sscanf(hues[i.Color].light, "%02X%02X%02X", &of[0], &of[1], &of[2]) // each has six digits
	for n := range of {
		of[n] = min(a, of[n]*a/255+1)
	}
	return of[0], of[1], of[2], a
}

// Style is the look of a series. Without colours, dashes and the shape of points distinguish series.
type Style struct {
	Color  Color
	Dashes int  // index into dashing; 0: none
	Shape  int  // index into shapes; 0: no points
	Area   bool // an area, in keys
	Cross  bool // a mark, in keys
}

// SeriesStyle returns the look of the n-th series.
func SeriesStyle(n int) Style {
	return Style{Color: ColorSeries + Color(n%NumSeriesColors), Dashes: n % len(dashing), Shape: 1 + n%(len(shapes)-1)}
}

var dashing = [][]vg.Length{nil, {7, 3}, {2, 2.5}, {9, 3, 2, 3}, {12, 3}}

var shapes = []vgdraw.GlyphDrawer{
	nil,
	vgdraw.CircleGlyph{},
	vgdraw.BoxGlyph{},
	vgdraw.PyramidGlyph{},
	hollow{vgdraw.CircleGlyph{}},
	hollow{vgdraw.BoxGlyph{}},
	hollow{vgdraw.PyramidGlyph{}},
}

// hollow is a shape with an empty interior.
type hollow struct{ of vgdraw.GlyphDrawer }

// DrawGlyph draws the shape, and a smaller one in the background colour on top of it.
func (h hollow) DrawGlyph(c *vgdraw.Canvas, s vgdraw.GlyphStyle, at vg.Point) {
	h.of.DrawGlyph(c, s, at)
	s.Color, s.Radius = ColorBackground, s.Radius*.55
	h.of.DrawGlyph(c, s, at)
}

func (l Style) lineStyle() vgdraw.LineStyle {
	return vgdraw.LineStyle{Color: l.Color, Width: 1.9, Dashes: dashing[l.Dashes%len(dashing)]}
}

func (l Style) pointStyle(radius vg.Length) vgdraw.GlyphStyle {
	return vgdraw.GlyphStyle{Color: l.Color, Radius: radius, Shape: shapes[l.Shape%len(shapes)]}
}

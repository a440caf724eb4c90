package plot

import (
	"fmt"
	"regexp"
	"strings"

	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"
)

// Tone is a colour by purpose. Its values for light and dark mode are defined here.
type Tone int

// The tones of all pictures. Those of series start at Series.
const (
	Paper Tone = iota
	Ink
	Soft // secondary text
	Grid
	Axle   // axes
	Away   // an interval in which a process was unavailable
	Hit    // a fault
	Pale   // a less important part
	Series // the first of Distinct series
)

// Distinct is the number of tones of series.
const Distinct = 7

// hues are the tones in light and dark mode. Those of series are the colours of Okabe and Ito, which are distinct for
// all kinds of colour vision, without their yellow and somewhat darker where they would be hard to read on white. All
// are different and none is black, because named identifies tones by their colours.
var hues = []struct{ name, light, dark string }{
	Paper: {"paper", "FFFFFF", "16191D"}, Ink: {"ink", "22262B", "E9ECEF"}, Soft: {"soft", "626973", "A2ABB5"},
	Grid: {"grid", "E6E8EB", "2C3238"}, Axle: {"axis", "A9B0B9", "5B646E"}, Away: {"away", "F6ECD9", "3A3120"},
	Hit: {"hit", "A3321F", "FF8A73"}, Pale: {"pale", "C3CAD4", "57616D"},
	Series: {"s0", "0072B2", "56ADE8"}, Series + 1: {"s1", "C8500A", "FF8F4D"}, Series + 2: {"s2", "00805C", "3FC79A"},
	Series + 3: {"s3", "A8508A", "DE93C2"}, Series + 4: {"s4", "8A6A00", "E3B93C"},
	Series + 5: {"s5", "3B3F46", "D5DAE0"}, Series + 6: {"s6", "2E86C1", "8FD0F5"},
}

// Styles returns the CSS rules that pictures on a page need once.
func Styles() string {
	var light, dark strings.Builder
	for _, h := range hues {
		fmt.Fprintf(&light, "--draw-%s:#%s;", h.name, h.light)
		fmt.Fprintf(&dark, "--draw-%s:#%s;", h.name, h.dark)
	}
	return fmt.Sprintf(":root{%s}\n@media(prefers-color-scheme:dark){:root{%s}}\n", &light, &dark)
}

var colour = regexp.MustCompile(`(fill|stroke):#([0-9A-F]{6})`)

// named replaces the colours of tones by CSS variables, with the colours as fallback.
func named(svg string) string {
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
func (t Tone) RGBA() (r, g, b, a uint32) { return ink{t, 1}.RGBA() }

// ink is a tone with an opacity.
type ink struct {
	Tone
	opacity float64
}

// RGBA rounds up, so that dividing by the opacity gives exactly the original colour.
func (i ink) RGBA() (r, g, b, a uint32) {
	a = uint32(i.opacity * 0xffff)
	var of [3]uint32
	_, _ = fmt.Sscanf(hues[i.Tone].light, "%02X%02X%02X", &of[0], &of[1], &of[2]) // each has six digits
	for n := range of {
		of[n] = min(a, of[n]*a/255+1)
	}
	return of[0], of[1], of[2], a
}

// Look is the look of a series. Without colours, dashes and the shape of points distinguish series.
type Look struct {
	Tone   Tone
	Dashes int  // index into dashing; 0: none
	Shape  int  // index into shapes; 0: no points
	Area   bool // an area, in keys
	Cross  bool // a mark, in keys
}

// LookOf returns the look of the n-th series.
func LookOf(n int) Look {
	return Look{Tone: Series + Tone(n%Distinct), Dashes: n % len(dashing), Shape: 1 + n%(len(shapes)-1)}
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
	s.Color, s.Radius = Paper, s.Radius*.55
	h.of.DrawGlyph(c, s, at)
}

func (l Look) line() vgdraw.LineStyle {
	return vgdraw.LineStyle{Color: l.Tone, Width: 1.9, Dashes: dashing[l.Dashes%len(dashing)]}
}

func (l Look) point(radius vg.Length) vgdraw.GlyphStyle {
	return vgdraw.GlyphStyle{Color: l.Tone, Radius: radius, Shape: shapes[l.Shape%len(shapes)]}
}

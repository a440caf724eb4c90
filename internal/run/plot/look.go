package plot

import (
	"fmt"
	"regexp"
	"strings"

	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"
)

// Tone is a colour of a picture by what it is for: what that is in light and in dark is chosen here.
type Tone int

// The tones that every picture has, and those of series, from Series on.
const (
	Paper Tone = iota
	Ink
	Soft // of what is read second
	Grid
	Axle   // of the axes
	Away   // of a stretch in which something was not there
	Hit    // of a fault
	Pale   // of a part that matters less
	Series // the first series, of Distinct
)

// Distinct is how many tones of series there are.
const Distinct = 7

// hues are the tones in light and in dark. Those of series are Okabe and Ito's, which stay apart for all
// kinds of colour vision, a little darker where they would not be read on white, and without their yellow.
// No two are the same, and none is black: a picture is told apart by them.
var hues = []struct{ name, light, dark string }{
	Paper: {"paper", "FFFFFF", "16191D"}, Ink: {"ink", "22262B", "E9ECEF"}, Soft: {"soft", "626973", "A2ABB5"},
	Grid: {"grid", "E6E8EB", "2C3238"}, Axle: {"axis", "A9B0B9", "5B646E"}, Away: {"away", "F6ECD9", "3A3120"},
	Hit: {"hit", "A3321F", "FF8A73"}, Pale: {"pale", "C3CAD4", "57616D"},
	Series: {"s0", "0072B2", "56ADE8"}, Series + 1: {"s1", "C8500A", "FF8F4D"}, Series + 2: {"s2", "00805C", "3FC79A"},
	Series + 3: {"s3", "A8508A", "DE93C2"}, Series + 4: {"s4", "8A6A00", "E3B93C"},
	Series + 5: {"s5", "3B3F46", "D5DAE0"}, Series + 6: {"s6", "2E86C1", "8FD0F5"},
}

// Styles are the rules of style that pictures on a page need, once.
func Styles() string {
	var light, dark strings.Builder
	for _, h := range hues {
		fmt.Fprintf(&light, "--draw-%s:#%s;", h.name, h.light)
		fmt.Fprintf(&dark, "--draw-%s:#%s;", h.name, h.dark)
	}
	return fmt.Sprintf(":root{%s}\n@media(prefers-color-scheme:dark){:root{%s}}\n", &light, &dark)
}

var colour = regexp.MustCompile(`(fill|stroke):#([0-9A-F]{6})`)

// named puts the names of tones in place of their colours, which stay for who knows no styles.
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

// RGBA is the tone in light.
func (t Tone) RGBA() (r, g, b, a uint32) { return ink{t, 1}.RGBA() }

// ink is a tone that what is behind can be seen through.
type ink struct {
	Tone
	opacity float64
}

// RGBA rounds up: who divides by the opacity again comes to the very colour.
func (i ink) RGBA() (r, g, b, a uint32) {
	a = uint32(i.opacity * 0xffff)
	var of [3]uint32
	_, _ = fmt.Sscanf(hues[i.Tone].light, "%02X%02X%02X", &of[0], &of[1], &of[2]) // each has six digits
	for n := range of {
		of[n] = min(a, of[n]*a/255+1)
	}
	return of[0], of[1], of[2], a
}

// Look is how a series is told apart: by its tone, and where there are no colours by dashes and the shape
// of its points.
type Look struct {
	Tone   Tone
	Dashes int  // of dashing; 0: none
	Shape  int  // of shapes; 0: no points
	Area   bool // it is an area, in keys
	Cross  bool // it is a mark, in keys
}

// LookOf is that of the n-th series.
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

// hollow is a shape that is empty inside.
type hollow struct{ of vgdraw.GlyphDrawer }

// DrawGlyph draws the shape, and a smaller one of the ground into it.
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

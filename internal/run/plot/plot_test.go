package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// everything returns a figure with every kind of item.
func everything() *Figure {
	nan, far := math.NaN(), math.Inf(1)
	return &Figure{
		Name: "a < b & c", Width: 500, Columns: 2, PanelHeight: 200,
		Keys: []Key{
			{strings.Repeat("a long name ", 20), SeriesStyle(0)},
			{"area", Style{Color: ColorOutage, Area: true}},
			{"mark", Style{Color: ColorFault, Cross: true}},
		},
		Panels: []Panel{
			{
				Title: "curves", X: Axis{Name: "seconds", FromZero: true}, Y: Axis{Name: "accuracy", Percent: true},
				Items: []Item{
					&Span{From: 2, To: 2.001, Color: ColorOutage}, &VerticalLine{X: 3, Color: ColorFault},
					&Curve{
						Style: SeriesStyle(1), X: []float64{1, 2, 3, 4, 5}, Mid: []float64{.1, .2, nan, .3, far},
						Low: []float64{0, .1, nan, .2, .2}, High: []float64{.2, .3, nan, far, far},
					},
					&Curve{Style: SeriesStyle(2), X: []float64{1, 2}, Mid: []float64{.1, .4}},
					&Mark{X: 2, Y: .2, Color: ColorFault},
				},
			},
			{
				Title: "rows", X: Axis{Integer: true}, Rows: []string{"first", "second <b>"},
				Items: []Item{
					&Bar{Row: 0, From: 0, To: 12000, Style: Style{Color: ColorSeries}, Inside: "in"},
					&Dot{Row: 1, Mid: 5000, Low: 2000, High: 9000, Style: SeriesStyle(3), Text: "5,000"},
					&Dot{Row: 0, Mid: nan, Low: nan, High: nan},
				},
			},
			{Title: "nothing"},
			{Title: "one value", Items: []Item{&Curve{Style: SeriesStyle(0), X: []float64{7}, Mid: []float64{7}}}},
		},
	}
}

// TestSVG checks that a picture is well-formed and deterministic, contains no invalid numbers, and that all colours
// change in dark mode.
func TestSVG(t *testing.T) {
	svg := everything().SVG(true)
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v\n%s", err, svg)
		}
	}
	for _, bad := range []string{"NaN", "Inf", "fill:#", "stroke:#", "pt\"", "e+"} {
		if bytes.Contains(svg, []byte(bad)) {
			t.Errorf("the picture contains %q", bad)
		}
	}
	for _, want := range []string{
		"<title>a &lt; b &amp; c</title>", "second &lt;b&gt;", "prefers-color-scheme:dark", "10,000", "40%",
		">seconds</text>", "…</text>",
	} {
		if !bytes.Contains(svg, []byte(want)) {
			t.Errorf("%q is missing", want)
		}
	}
	if !bytes.Equal(svg, everything().SVG(true)) {
		t.Error("the same figure is rendered in two ways")
	}
	if in := everything().SVG(false); bytes.Contains(in, []byte("<style>")) {
		t.Error("a picture for a page has its own styles")
	}
}

// TestInside checks that all items, and the start of all texts, are inside the picture.
func TestInside(t *testing.T) {
	f := everything()
	svg := string(f.SVG(false))
	for _, m := range regexp.MustCompile(`<text x="([^"]*)"[^>]*>([^<]*)`).FindAllStringSubmatch(svg, -1) {
		x, err := strconv.ParseFloat(m[1], 64)
		if err != nil || x < 0 || x > f.Width {
			t.Errorf("%q begins at %s", m[2], m[1])
		}
	}
	for _, m := range regexp.MustCompile(`[ML](-?[0-9.]+),(-?[0-9.]+)`).FindAllStringSubmatch(svg, -1) {
		for _, text := range m[1:] {
			if v, err := strconv.ParseFloat(text, 64); err != nil || v < -10 || v > 2000 {
				t.Errorf("drawn at %s", m[0])
			}
		}
	}
}

// TestLooks checks that no two series look the same, even in greyscale.
func TestLooks(t *testing.T) {
	colours, greys := map[Color]bool{}, map[string]bool{}
	for i := range NumSeriesColors {
		l := SeriesStyle(i)
		colours[l.Color] = true
		greys[fmt.Sprint(l.Dashes, l.Shape)] = true
	}
	if len(colours) != NumSeriesColors || len(greys) != NumSeriesColors {
		t.Errorf("%d series have %d different colours, and %d different dashes and shapes", NumSeriesColors,
			len(colours), len(greys))
	}
}

// TestTones checks that each tone keeps its colour at any opacity, and that it is readable on the background in light
// and dark mode.
func TestTones(t *testing.T) {
	seen := map[string]bool{}
	for i, h := range hues {
		if seen[h.light] || h.light == "000000" {
			t.Errorf("%s appears twice, or is black", h.light)
		}
		seen[h.light] = true
		for _, opacity := range []float64{1, .55, .17} {
			r, g, b, a := ink{Color(i), opacity}.RGBA()
			back := func(v uint32) int { return int(float64(v) * 255 / float64(a)) }
			if is := fmt.Sprintf("%02X%02X%02X", back(r), back(g), back(b)); is != h.light {
				t.Errorf("%s through %v is %s", h.light, opacity, is)
			}
		}
		if tone := Color(i); tone < ColorSeries && tone != ColorText && tone != ColorSecondary && tone != ColorFault {
			continue
		}
		if c := contrast(h.light, hues[ColorBackground].light); c < 3.9 {
			t.Errorf("%s in light: contrast %.2f", h.name, c)
		}
		if c := contrast(h.dark, hues[ColorBackground].dark); c < 3.9 {
			t.Errorf("%s in dark: contrast %.2f", h.name, c)
		}
	}
}

// contrast returns the contrast of two colours as defined by WCAG.
func contrast(a, b string) float64 {
	light := func(hue string) (sum float64) {
		var of [3]uint8
		_, _ = fmt.Sscanf(hue, "%02X%02X%02X", &of[0], &of[1], &of[2])
		for i, weight := range []float64{.2126, .7152, .0722} {
			v := float64(of[i]) / 255
			if v <= .04045 {
				v /= 12.92
			} else {
				v = math.Pow((v+.055)/1.055, 2.4)
			}
			sum += weight * v
		}
		return sum
	}
	x, y := light(a), light(b)
	return (max(x, y) + .05) / (min(x, y) + .05)
}

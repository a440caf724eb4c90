package terminal

import "math"

// maxPoints is how many points of a curve are kept. Each is the mean of the same number of values.
const maxPoints = 256

// boundedCurve is a growing curve in bounded memory.
type boundedCurve struct {
	points        []float64
	each, n       int     // values per point, and those of the next point so far
	sum           float64 // of the values of the next point
	first, newest float64
}

// add appends a value. Values that are not finite are ignored.
func (t *boundedCurve) add(v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return
	}
	if t.each == 0 {
		t.each, t.first = 1, v
	}
	t.newest = v
	if t.sum, t.n = t.sum+v, t.n+1; t.n < t.each {
		return
	}
	t.points, t.sum, t.n = append(t.points, t.sum/float64(t.n)), 0, 0
	if len(t.points) == maxPoints {
		for i := range maxPoints / 2 {
			t.points[i] = (t.points[2*i] + t.points[2*i+1]) / 2
		}
		t.points, t.each = t.points[:maxPoints/2], 2*t.each
	}
}

// draw draws the curve if it has at least two points.
func (t *boundedCurve) draw(width int) string {
	if len(t.points) < 2 || width < 2 {
		return ""
	}
	return Curve(t.points, width)
}

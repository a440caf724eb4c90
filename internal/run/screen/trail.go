package screen

import "math"

// mostPoints is how many points of a curve are kept, a mean of as many values each.
const mostPoints = 256

// trail is a curve that grows, in bounded memory.
type trail struct {
	points        []float64
	each, n       int     // values that a point is the mean of; of the next one so far
	sum           float64 // of these
	first, newest float64
}

// add appends a value. What is no finite number is left out.
func (t *trail) add(v float64) {
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
	if len(t.points) == mostPoints {
		for i := range mostPoints / 2 {
			t.points[i] = (t.points[2*i] + t.points[2*i+1]) / 2
		}
		t.points, t.each = t.points[:mostPoints/2], 2*t.each
	}
}

// draw draws the curve, where there is something to see yet.
func (t *trail) draw(width int) string {
	if len(t.points) < 2 || width < 2 {
		return ""
	}
	return Curve(t.points, width)
}

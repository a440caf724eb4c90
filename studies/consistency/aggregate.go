package main

import (
	"maps"
	"math"
	"slices"

	"github.com/perdure/perdure/internal/run/study"
)

// curvePoint is what the seeds of one setting had at one clock.
type curvePoint struct {
	Clock   int
	Seconds float64 // median of those that got there, and not before the clock before
	Loss    study.Spread
}

// merge puts the seeds of one setting together, clock by clock. A run that ended
// before a clock because it diverged has an infinite loss there; one that was not
// evaluated there, or was ended, does not count.
func merge(results []*result) (curve []curvePoint) {
	clocks := map[int]bool{}
	for _, r := range results {
		for _, p := range r.Points {
			clocks[p.Clock] = true
		}
	}
	latest := 0.0
	for _, c := range slices.Sorted(maps.Keys(clocks)) {
		var losses, seconds []float64
		for _, r := range results {
			i, found := slices.BinarySearchFunc(r.Points, c, func(p point, c int) int { return p.Clock - c })
			switch {
			case found:
				losses, seconds = append(losses, r.Points[i].Loss), append(seconds, r.Points[i].Seconds)
			case r.Outcome == diverged && i == len(r.Points):
				losses = append(losses, math.Inf(1))
			}
		}
		latest = max(latest, study.SpreadOf(seconds).Mid)
		curve = append(curve, curvePoint{c, latest, study.SpreadOf(losses)})
	}
	return curve
}

// reach returns the first evaluation with a loss of at most target.
func reach(points []point, target float64) (point, bool) {
	i := slices.IndexFunc(points, func(p point) bool { return p.Loss <= target })
	if i < 0 {
		return point{}, false
	}
	at := points[i]
	if i > 0 { // between two evaluations the loss is taken to fall evenly
		before := points[i-1]
		part := (before.Loss - target) / (before.Loss - at.Loss)
		at.Seconds = before.Seconds + part*(at.Seconds-before.Seconds)
		at.Clock = before.Clock + int(math.Round(part*float64(at.Clock-before.Clock)))
	}
	return at, true
}

// histogram is the shares of reads by their clock differential.
type histogram map[int]float64

func shares(counts map[int]int64) histogram {
	total := int64(0)
	for _, n := range counts {
		total += n
	}
	h := histogram{}
	for d, n := range counts {
		if n > 0 {
			h[d] = float64(n) / float64(total)
		}
	}
	return h
}

// moments returns the mean and the standard deviation.
func (h histogram) moments() (mean, deviation float64) {
	square := 0.0
	for _, d := range slices.Sorted(maps.Keys(h)) {
		mean += h[d] * float64(d)
		square += h[d] * float64(d) * float64(d)
	}
	return mean, math.Sqrt(max(0, square-mean*mean))
}

// bounds returns the least and the highest differential that leave out at most
// the given share on their side.
func (h histogram) bounds(outside float64) (low, high int) {
	keys := slices.Sorted(maps.Keys(h))
	if len(keys) == 0 {
		return -1, -1
	}
	i, j := 0, len(keys)-1
	for below := h[keys[0]]; i < j && below <= outside; below += h[keys[i]] {
		i++
	}
	for above := h[keys[j]]; j > i && above <= outside; above += h[keys[j]] {
		j--
	}
	return keys[i], keys[j]
}

func byModel(r *result) string { return r.Model }

package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
)

// spread is what several seeds gave: their median, and the least and the most.
// A seed that diverged counts as +Inf.
type spread struct{ Mid, Low, High float64 }

// spreadOf aggregates values; of none it is NaN.
func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{math.NaN(), math.NaN(), math.NaN()}
	}
	v := slices.Sorted(slices.Values(values))
	mid := v[len(v)/2]
	if len(v)%2 == 0 {
		mid = (v[len(v)/2-1] + mid) / 2
	}
	return spread{mid, v[0], v[len(v)-1]}
}

// String is the median, with least and most where they differ from it.
func (s spread) String() string {
	if short(s.Low) == short(s.High) {
		return short(s.Mid)
	}
	return fmt.Sprintf("%s (%s to %s)", short(s.Mid), short(s.Low), short(s.High))
}

// curvePoint is what the seeds of one setting had at one clock.
type curvePoint struct {
	Clock   int
	Seconds float64 // median of those that got there, and not before the clock before
	Loss    spread
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
		latest = max(latest, spreadOf(seconds).Mid)
		curve = append(curve, curvePoint{c, latest, spreadOf(losses)})
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

// group puts the results of each key together, in the order of their coming.
func group[K comparable](results []*result, key func(*result) K) (keys []K, groups map[K][]*result) {
	groups = map[K][]*result{}
	for _, r := range results {
		k := key(r)
		if groups[k] == nil {
			keys = append(keys, k)
		}
		groups[k] = append(groups[k], r)
	}
	return keys, groups
}

func byModel(r *result) string { return r.Model }

// where keeps the results that a condition holds for.
func where(results []*result, keep func(*result) bool) (kept []*result) {
	for _, r := range results {
		if keep(r) {
			kept = append(kept, r)
		}
	}
	return kept
}

// Numbers for people.

// format writes a number in the fewest digits that give it back.
func format(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// round keeps three significant digits.
func round(v float64) float64 {
	r, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 3, 64), 64) // its own output
	return r
}

// short writes a number in four digits; what is not finite is a word.
func short(v float64) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case math.IsInf(v, 0):
		return "∞"
	case v == math.Round(v) && math.Abs(v) < 1e5:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v != 0 && (math.Abs(v) >= 1e5 || math.Abs(v) < 1e-3):
		return strconv.FormatFloat(v, 'e', 2, 64)
	case math.Abs(v) >= 1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'f', max(0, 3-int(math.Floor(math.Log10(max(math.Abs(v), 1))))), 64)
}

// percent writes a share; of a fraction of 0, which is the workload's own batch,
// nothing.
func percent(share float64) string {
	if share == 0 {
		return ""
	}
	return strconv.FormatFloat(100*share, 'g', 3, 64) + "%"
}

// roughly writes how long something will take.
func roughly(d time.Duration) string {
	if d < 90*time.Second {
		return fmt.Sprintf("about %.0f s", d.Seconds())
	}
	return fmt.Sprintf("about %.0f min", d.Minutes())
}

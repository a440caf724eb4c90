package itercost

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestSummarize(t *testing.T) {
	known := func(clocks int) Cost { return Cost{clocks, false} }
	atLeast := func(clocks int) Cost { return Cost{clocks, true} }
	infinite := math.Inf(1)
	for _, c := range []struct {
		costs    []Cost
		censored int
		mean     float64
		median   Range
	}{
		{[]Cost{known(4), known(1), known(9)}, 0, 14.0 / 3, Range{4, 4}},
		{[]Cost{known(4), known(1)}, 0, 2.5, Range{2.5, 2.5}},
		{[]Cost{known(4), known(1), atLeast(9)}, 1, 2.5, Range{4, 4}},
		{[]Cost{known(4), known(1), atLeast(2)}, 1, 2.5, Range{2, 4}},
		{[]Cost{known(4), atLeast(1), atLeast(2)}, 2, 4, Range{2, infinite}},
		{[]Cost{known(1), atLeast(2)}, 1, 1, Range{1.5, infinite}},
		{[]Cost{atLeast(2)}, 1, math.NaN(), Range{2, infinite}},
	} {
		s, err := Summarize(c.costs)
		if err != nil || s.Runs != len(c.costs) || s.Censored != c.censored || s.Median != c.median ||
			math.Abs(s.Mean-c.mean) > 1e-12 || math.IsNaN(s.Mean) != math.IsNaN(c.mean) {
			t.Errorf("%v: %+v, %v; want %d censored, mean %v, median %v", c.costs, s, err, c.censored, c.mean, c.median)
		}
	}
}

// complete replaces a censored cost by a possible value.
func complete(r *rand.Rand, c Cost) float64 {
	v := float64(c.Clocks)
	if c.Censored {
		switch r.IntN(3) {
		case 0:
			v += float64(r.IntN(4))
		case 1:
			return math.Inf(1)
		}
	}
	return v
}

func someCost(r *rand.Rand) Cost { return Cost{r.IntN(6) - 1, r.IntN(3) == 0} }

// TestMedianHoldsWhatMayBe completes censored costs at random: the median of the completed costs must always be in the
// range, and must reach both of its ends.
func TestMedianHoldsWhatMayBe(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 0))
	for range 200 {
		costs := make([]Cost, 1+r.IntN(6))
		for i := range costs {
			costs[i] = someCost(r)
		}
		seen := Range{math.Inf(1), math.Inf(-1)}
		for range 3000 {
			values := make([]float64, len(costs))
			for i, c := range costs {
				values[i] = complete(r, c)
			}
			slices.Sort(values)
			n := len(values)
			v := (values[(n-1)/2] + values[n/2]) / 2
			seen = Range{min(seen.Low, v), max(seen.High, v)}
		}
		if want := median(costs); seen != want {
			t.Fatalf("%v: medians %v, want %v", costs, seen, want)
		}
	}
}

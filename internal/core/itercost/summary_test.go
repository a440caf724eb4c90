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
		{[]Cost{known(4), known(1), known(9)}, 0, 14.0 / 3, Exactly(4)},
		{[]Cost{known(4), known(1)}, 0, 2.5, Exactly(2.5)},
		{[]Cost{known(4), known(1), atLeast(9)}, 1, 2.5, Exactly(4)},
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
		if want := float64(c.censored) / float64(len(c.costs)); s.Share() != want {
			t.Errorf("%v: share %v, want %v", c.costs, s.Share(), want)
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

// TestRangesHoldWhatMayBe completes censored costs at random: the statistic of the completed costs must always be in
// the range, and must reach both of its ends.
func TestRangesHoldWhatMayBe(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 0))
	for range 200 {
		pairs := make([]Pair, 1+r.IntN(6))
		costs := make([]Cost, len(pairs))
		for i := range pairs {
			pairs[i] = Pair{someCost(r), someCost(r)}
			costs[i] = pairs[i].First
		}
		median, less := medianCost(costs), less(pairs)
		seen, seenLess := unseen(), unseen()
		for range 3000 {
			first, below := make([]float64, len(pairs)), 0.0
			for i, p := range pairs {
				a, b := complete(r, p.First), complete(r, p.Second)
				first[i] = a
				switch {
				case a < b:
					below++
				case a == b && !math.IsInf(a, 1):
					below += 0.5
				case math.IsInf(a, 1) && math.IsInf(b, 1): // it is unknown which one is larger
					below += []float64{0, 0.5, 1}[r.IntN(3)]
				}
			}
			slices.Sort(first)
			n := len(first)
			seen = seen.with((first[(n-1)/2] + first[n/2]) / 2)
			seenLess = seenLess.with(below / float64(n))
		}
		if seen != median || seenLess != less {
			t.Fatalf("%v: medians %v, want %v; less %v, want %v", pairs, seen, median, seenLess, less)
		}
	}
}

// unseen returns an empty Range.
func unseen() Range { return Range{math.Inf(1), math.Inf(-1)} }

func (r Range) with(v float64) Range { return Range{min(r.Low, v), max(r.High, v)} }

func TestCompare(t *testing.T) {
	pairs := []Pair{
		{Cost{2, false}, Cost{10, false}},
		{Cost{4, false}, Cost{4, false}},
		{Cost{3, false}, Cost{20, true}},
		{Cost{6, true}, Cost{5, false}},
		{Cost{6, true}, Cost{6, true}},
	}
	c, err := Compare(pairs)
	want := Comparison{
		Pairs: 5, Censored: 3, Difference: -4, Ratio: 6.0 / 14,
		MedianDifference: Range{-8, 0}, // −8, at most −17, 0, at least 1, and one that can have any value
		Less:             Range{2.5 / 5, 3.5 / 5},
	}
	if err != nil || c != want {
		t.Errorf("%+v, %v; want %+v", c, err, want)
	}
	helped, err := Compare([]Pair{{Cost{2, false}, Cost{-1, false}}})
	if err != nil || !math.IsNaN(helped.Ratio) || helped.Difference != 3 {
		t.Errorf("a failure that helped: %+v, %v; want no ratio, and a difference of 3", helped, err)
	}
}

func TestRangeString(t *testing.T) {
	for r, want := range map[Range]string{
		Exactly(3): "3", {2, math.Inf(1)}: "≥ 2", {math.Inf(-1), 2}: "≤ 2", {1, 2.5}: "1 to 2.5", unknown: "unknown",
	} {
		if r.String() != want {
			t.Errorf("%#v is written %q, want %q", r, r.String(), want)
		}
	}
}

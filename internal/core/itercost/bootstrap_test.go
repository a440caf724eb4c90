package itercost

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

func longTail(r *rand.Rand, n int) []Cost {
	costs := make([]Cost, n)
	for i := range costs {
		costs[i].Clocks = int(1000 * r.ExpFloat64())
	}
	return costs
}

// TestCoverage counts how many of 200 intervals of 95% contain the true value.
func TestCoverage(t *testing.T) {
	// Costs are whole clocks: ⌊1000·Exp⌋ has the mean 1/(e^0.001 − 1).
	mean := 1 / math.Expm1(0.001)
	for _, c := range []struct {
		name        string
		costs       int
		truth       float64
		of          func(Bootstrap, []Cost) (Interval, error)
		least, most float64
	}{
		{"mean", 20, mean, Bootstrap.Mean, 0.84, 0.92},
		{"mean", 100, mean, Bootstrap.Mean, 0.91, 0.97},
	} {
		r, held := rand.New(rand.NewPCG(6, 0)), 0
		for seed := range uint64(200) {
			i, err := c.of(Bootstrap{Seed: seed}, longTail(r, c.costs))
			if err != nil {
				t.Fatal(err)
			}
			if i.Low <= c.truth && c.truth <= i.High {
				held++
			}
		}
		if share := float64(held) / 200; share < c.least || share > c.most {
			t.Errorf("%s of %d: %.3f of the intervals hold it, want %v to %v", c.name, c.costs, share, c.least, c.most)
		}
	}
}

// TestSeed checks that the same seed always gives the same interval, and that another seed gives another one.
func TestSeed(t *testing.T) {
	costs := longTail(rand.New(rand.NewPCG(7, 0)), 30)
	one, err := Bootstrap{Seed: 1}.Mean(costs)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprintf("%.4g", one), "{865.8 598.7 1169}"; got != want {
		t.Errorf("%s, want %s: seeds mean something else than before", got, want)
	}
	if two, err := (Bootstrap{Seed: 2}).Mean(costs); err != nil || two == one {
		t.Errorf("another seed gives %v, %v again", two, err)
	}
}

// TestTwins checks that a cost that occurs three times for one undisturbed run counts as one observation.
func TestTwins(t *testing.T) {
	once := longTail(rand.New(rand.NewPCG(8, 0)), 25)
	var thrice []Cost
	var twins []int
	for i, c := range once {
		thrice, twins = append(thrice, c, c, c), append(twins, i, i, i)
	}
	want, err := Bootstrap{Seed: 1}.Mean(once)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Bootstrap{Seed: 1, Baselines: twins}.Mean(thrice)
	if err != nil || !near(got.Low, want.Low, 1e-12) || !near(got.High, want.High, 1e-12) {
		t.Errorf("three times each: %v, %v; want %v", got, err, want)
	}
	narrow, err := Bootstrap{Seed: 1}.Mean(thrice)
	if err != nil || narrow.High-narrow.Low > 0.7*(want.High-want.Low) {
		t.Errorf("as if they were independent: %v, %v; that is to be narrower than %v", narrow, err, want)
	}
}

// TestPairs checks that the costs' common part within a pair does not widen the interval of their difference.
func TestPairs(t *testing.T) {
	var pairs []Pair
	for _, c := range longTail(rand.New(rand.NewPCG(9, 0)), 40) {
		pairs = append(pairs, Pair{c, Cost{c.Clocks + 10, false}})
	}
	if i, err := (Bootstrap{}).Difference(pairs); err != nil || i != (Interval{-10, -10, -10}) {
		t.Errorf("difference %v, %v", i, err)
	}
}

// TestCensoredIntervals checks that draws without a value are not discarded: they open the interval on both sides.
func TestCensoredIntervals(t *testing.T) {
	i, err := Bootstrap{}.Mean([]Cost{{1, false}, {50, true}}) // a quarter of the draws has no mean
	if err != nil || i.Estimate != 1 || !math.IsInf(i.Low, -1) || !math.IsInf(i.High, 1) {
		t.Errorf("mean %v, %v; want 1 [-Inf, +Inf]", i, err)
	}
}

func near(a, b, tolerance float64) bool {
	return math.Abs(a-b) <= tolerance*max(math.Abs(a), math.Abs(b))
}

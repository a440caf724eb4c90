package itercost

import (
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
	mean, median := 1/math.Expm1(0.001), 1000*math.Ln2
	for _, c := range []struct {
		name        string
		costs       int
		truth       float64
		of          func(Bootstrap, []Cost) (Interval, error)
		least, most float64
	}{
		{"mean", 20, mean, Bootstrap.Mean, 0.84, 0.92},
		{"mean", 100, mean, Bootstrap.Mean, 0.91, 0.97},
		{"median", 100, median, Bootstrap.Median, 0.91, 0.98},
	} {
		r, held := rand.New(rand.NewPCG(6, 0)), 0
		for seed := range uint64(200) {
			i, err := c.of(Bootstrap{Seed: seed, Draws: 300}, longTail(r, c.costs))
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
	if want := "865.8 [598.7, 1169]"; one.String() != want {
		t.Errorf("%v, want %s: seeds mean something else than before", one, want)
	}
	if two, err := (Bootstrap{Seed: 2}).Mean(costs); err != nil || two == one {
		t.Errorf("another seed gives %v, %v again", two, err)
	}
	wide, err := Bootstrap{Seed: 1, Level: 0.99}.Mean(costs)
	if err != nil || wide.Low >= one.Low || wide.High <= one.High {
		t.Errorf("an interval of 99%% is %v, %v", wide, err)
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
	ten := Interval{Exactly(-10), -10, -10}
	if i, err := (Bootstrap{}).Difference(pairs); err != nil || i != ten {
		t.Errorf("difference %v, %v", i, err)
	}
	if i, err := (Bootstrap{}).MedianDifference(pairs); err != nil || i != ten {
		t.Errorf("median difference %v, %v", i, err)
	}
	if i, err := (Bootstrap{}).Less(pairs); err != nil || i != (Interval{Exactly(1), 1, 1}) {
		t.Errorf("less %v, %v", i, err)
	}
	i, err := Bootstrap{}.Ratio(pairs)
	if err != nil || !(i.Low < i.Estimate.Low && i.Estimate.Low < i.High && i.High < 1 && i.Low > 0.9) {
		t.Errorf("ratio %v, %v", i, err)
	}
}

// TestCensoredIntervals checks that censored runs open an interval on the side on which they leave the statistic
// undetermined, and that draws without a value are not discarded.
func TestCensoredIntervals(t *testing.T) {
	costs := []Cost{{1, false}, {2, false}, {3, false}, {50, true}, {60, true}}
	i, err := Bootstrap{}.Median(costs)
	if err != nil || i.Estimate != Exactly(3) || i.Low != 1 || !math.IsInf(i.High, 1) {
		t.Errorf("median %v, %v; want 3 [1, +Inf]", i, err)
	}
	i, err = Bootstrap{}.Mean([]Cost{{1, false}, {50, true}}) // a quarter of the draws has no mean
	if err != nil || i.Estimate != Exactly(1) || !math.IsInf(i.Low, -1) || !math.IsInf(i.High, 1) {
		t.Errorf("mean %v, %v; want 1 [-Inf, +Inf]", i, err)
	}
}

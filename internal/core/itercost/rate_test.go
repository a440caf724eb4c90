package itercost

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestRateOfALine(t *testing.T) {
	var s Series
	for clock := 3; clock < 400; clock += 1 + clock%4 { // with gaps
		s = append(s, Point{clock, 7 * math.Pow(0.9, float64(clock))})
	}
	r, err := Bootstrap{}.Rate(s)
	for _, got := range []float64{r.C, r.Low, r.High, r.Worst} {
		if err != nil || !near(got, 0.9, 1e-9) {
			t.Fatalf("%+v, %v; want 0.9 and nothing else", r, err)
		}
	}
}

// TestWorst checks that Worst is the smallest rate for which the series satisfies the hypothesis of Bound.
func TestWorst(t *testing.T) {
	s := Series{{0, 100}, {1, 50}, {2, 40}, {4, 10}, {5, 7}} // factors of 0.5, 0.8, twice 0.5, 0.7
	r, err := Bootstrap{}.Rate(s)
	if err != nil || !near(r.Worst, 0.8, 1e-12) || !(r.C < r.Worst && 0.5 < r.C) || !(r.Low <= r.C && r.C <= r.High) {
		t.Errorf("%+v, %v; want 0.8 as the worst", r, err)
	}
}

// TestRateCoverage counts how many of 300 intervals of 95% contain the true c, for series of 100 clocks whose noise is
// correlated between clocks.
func TestRateCoverage(t *testing.T) {
	for _, c := range []struct{ hold, least, most float64 }{{0, 0.88, 0.98}, {0.5, 0.78, 0.95}} {
		r, held := rand.New(rand.NewPCG(10, 0)), 0
		for seed := range uint64(300) {
			values, noise := make([]float64, 100), 0.0
			for i := range values {
				noise = c.hold*noise + 0.2*r.NormFloat64()
				values[i] = math.Exp(float64(i)*math.Log(0.95) + noise)
			}
			rate, err := Bootstrap{Seed: seed, Draws: 400}.Rate(EachClock(values))
			if err != nil {
				t.Fatal(err)
			}
			if rate.Low <= 0.95 && 0.95 <= rate.High {
				held++
			}
		}
		if share := float64(held) / 300; share < c.least || share > c.most {
			t.Errorf("noise of which %v stays: %.3f of the intervals hold c, want %v to %v", c.hold, share, c.least,
				c.most)
		}
	}
}

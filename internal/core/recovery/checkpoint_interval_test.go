package recovery_test

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure/internal/core/recovery"
)

// TestInterval checks the papers' formulas against values computed by hand.
func TestInterval(t *testing.T) {
	for _, c := range []struct {
		save, mtbf, want float64
		why              string
	}{
		{1, 20_000, 200, "Young: a save takes 1 s, and a failure occurs every 20000 s"},
		{0.01, 2, 0.2, "Young: a save takes 0.01 s, and a failure occurs every 2 s"},
		{2, 100, 40, "saving may take at most 1/20 of the time: a save takes 2 s, and a failure occurs every 100 s"},
		{10, 4, 200, "saving may take at most 1/20"},
		{0.0158, 1800.35, 7.542616257, "Young"}, // a failure after 0.7 s: see ExpectedMTBF
		{1, 0, 0, "not known"},
		{-1, 3600, 0, "not known"},
		{1, math.Inf(1), 0, "not known"},
		{math.NaN(), 1, 0, "not known"},
	} {
		got, why := recovery.CheckpointInterval(c.save, c.mtbf)
		if math.Abs(got-c.want) > 1e-6 || !strings.Contains(why, c.why) {
			t.Errorf("a save of %v s, a failure every %v s: %v (%s), want %v (%s)", c.save, c.mtbf, got, why, c.want,
				c.why)
		}
	}
}

// lost returns the fraction of time that is not spent on training if failures are random: Daly's exact model, minus 1,
// with an instant restart.
func lost(interval, save, mtbf float64) float64 {
	return mtbf/interval*math.Expm1((interval+save)/mtbf) - 1
}

// TestExpectedMTBF checks that one observation counts little, while many, or a long time without failures, count fully.
func TestExpectedMTBF(t *testing.T) {
	for _, c := range []struct {
		failures  int64
		ran, want float64
	}{
		{0, 0, 3600},
		{0, 7 * 86400, 608_400}, // a week and an hour
		{1, 0.7, 1800.35},
		{1, 3600, 3600},
		{3, 60, 915},
		{99, 86400, 900}, // of a machine that dies every 873 s
	} {
		if got := recovery.ExpectedMTBF(c.failures, c.ran); math.Abs(got-c.want) > 1e-6 {
			t.Errorf("%d failures in %v s: one every %v s, want %v", c.failures, c.ran, got, c.want)
		}
	}
}

// TestIntervalIsNearTheBest checks that no other interval costs much less in the model that the estimate approximates,
// unless saving would take more than a twentieth of the time.
func TestIntervalIsNearTheBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mtbf := math.Pow(10, rapid.Float64Range(0, 6).Draw(t, "log10 of seconds between failures"))
		save := mtbf * math.Pow(10, rapid.Float64Range(-7, 1).Draw(t, "log10 of a save's part of it"))
		interval, why := recovery.CheckpointInterval(save, mtbf)
		if interval < 20*save*0.9999 {
			t.Fatalf("%v s between saves of %v s (%s)", interval, save, why)
		}
		if save > mtbf/200 {
			return
		}
		chosen, best := lost(interval, save, mtbf), math.Inf(1)
		for x := save / 100; x < 20*mtbf; x *= 1.01 {
			best = min(best, lost(x, save, mtbf))
		}
		if chosen > best*1.03 {
			t.Fatalf("%v s costs %.6f, the best %.6f (%s)", interval, chosen, best, why)
		}
	})
}

func TestClocks(t *testing.T) {
	for _, c := range []struct {
		interval, clock float64
		want            int64
	}{{10, 1, 10}, {10, 3, 3}, {0.001, 1, 1}, {1, 0, math.MaxInt32}, {0, 0, 1}} {
		if got := recovery.IntervalClocks(c.interval, c.clock); got != c.want {
			t.Errorf("every %v s, clocks of %v s: every %d clocks, want %d", c.interval, c.clock, got, c.want)
		}
	}
}

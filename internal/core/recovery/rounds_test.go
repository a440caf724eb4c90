package recovery_test

import (
	"math"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
)

// TestRounds checks that the k-th round is due at the first MinClock that is at least k·R·C, whole number or not.
func TestRounds(t *testing.T) {
	for _, name := range []string{
		"scar:20,1/8", "scar:1,1", "scar:3,1/3", "scar:7,0.3", "scar:1,1/100", "scar:1000000,1/7", "scar:13,2/3",
	} {
		r := parse(t, name)
		rounds := recovery.RoundsOf(r)
		if !rounds.Any() || rounds.Timed() {
			t.Errorf("%s: %+v", name, rounds)
		}
		period := r.Share * float64(r.Every)
		for _, min := range []perdure.Clock{0, 1, 2, 3, 19, 20, 21, 40, 999, 1_000_000, 1_000_000_000} {
			k := rounds.Done(min)
			if due := float64(k) * period; due > float64(min)*(1+1e-9) {
				t.Errorf("%s: %d rounds at clock %d, the last of which is due at %g", name, k, min, due)
			}
			if next := float64(k+1) * period; next <= float64(min)*(1-1e-12) {
				t.Errorf("%s: %d rounds at clock %d, another is due at %g", name, k, min, next)
			}
		}
	}
	if n := recovery.RoundsOf(parse(t, "scar:20,1/8")).Done(20); n != 8 {
		t.Errorf("after C clocks %d rounds of 1/8 are due", n)
	}
	if r := recovery.RoundsOf(parse(t, "scar")); !r.Timed() || r.Done(math.MaxInt32) != 0 {
		t.Errorf("of auto: %+v", r)
	}
	if recovery.RoundsOf(parse(t, "checkpoint:20")).Any() || recovery.RoundsOf(perdure.Recovery{}).Any() {
		t.Error("rounds of a job that saves no rows")
	}
}

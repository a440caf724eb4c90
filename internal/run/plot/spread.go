package plot

import (
	"fmt"
	"math"
	"slices"

	"github.com/perdure/perdure/internal/run/plain"
)

// Spread is what several seeds gave: their median, and the least and the most.
// A seed that diverged counts as +Inf.
type Spread struct {
	Mid, Low, High float64
	N              int // how many values there were; 0: that is not known
}

// SpreadOf aggregates values; of none it is NaN.
func SpreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{Mid: math.NaN(), Low: math.NaN(), High: math.NaN()}
	}
	v := slices.Sorted(slices.Values(values))
	mid := v[len(v)/2]
	if len(v)%2 == 0 {
		mid = (v[len(v)/2-1] + mid) / 2
	}
	return Spread{mid, v[0], v[len(v)-1], len(v)}
}

// String is the median, with least and most where they differ from it.
func (s Spread) String() string { return s.Text(plain.Short) }

// Text is String with values written by write.
func (s Spread) Text(write func(float64) string) string {
	if write(s.Low) == write(s.High) {
		return write(s.Mid)
	}
	return fmt.Sprintf("%s (%s to %s)", write(s.Mid), write(s.Low), write(s.High))
}

// Where keeps the results that a condition holds for.
func Where[T any](results []T, keep func(T) bool) (kept []T) {
	for _, r := range results {
		if keep(r) {
			kept = append(kept, r)
		}
	}
	return kept
}

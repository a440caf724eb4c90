package plot

import (
	"fmt"
	"math"
	"slices"

	"github.com/perdure/perdure/internal/run/humanize"
)

// Spread is the median, the minimum and the maximum over several seeds. A seed that diverged counts as +Inf.
type Spread struct {
	Mid, Low, High float64
	N              int // number of values; 0: unknown
}

// SpreadOf returns the spread of values. It is NaN for no values.
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

// String returns the median, and the range if it has more than one value.
func (s Spread) String() string { return s.Text(humanize.Short) }

// Text is like String with values formatted by write.
func (s Spread) Text(write func(float64) string) string {
	if write(s.Low) == write(s.High) {
		return write(s.Mid)
	}
	return fmt.Sprintf("%s (%s to %s)", write(s.Mid), write(s.Low), write(s.High))
}

// Where returns the results for which keep returns true.
func Where[T any](results []T, keep func(T) bool) (kept []T) {
	for _, r := range results {
		if keep(r) {
			kept = append(kept, r)
		}
	}
	return kept
}

package trials

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
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
func (s Spread) String() string { return s.Text(Short) }

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

// Numbers for people.

// Format writes a number in the fewest digits that give it back.
func Format(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// Short writes a number in four digits; what is not finite is a word.
func Short(v float64) string {
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

// Roughly writes how long something will take.
func Roughly(d time.Duration) string {
	if d < 90*time.Second {
		return fmt.Sprintf("about %.0f s", d.Seconds())
	}
	return fmt.Sprintf("about %.0f min", d.Minutes())
}

// Percent0 writes a share in whole percents.
func Percent0(v float64) string { return fmt.Sprintf("%.0f%%", 100*v) }

// Percent1 is a share in percent, with a digit behind the point.
func Percent1(v float64) string { return fmt.Sprintf("%.1f%%", 100*v) }

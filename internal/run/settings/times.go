package settings

import (
	"fmt"
	"strconv"
	"time"

	"github.com/perdure/perdure"
)

// Limits of the time between two evaluations.
const (
	minEval = 10 * time.Millisecond
	maxEval = time.Hour
)

// ParseEvalEvery reads --eval-every: a number of clocks, or a time; "" is none.
func ParseEvalEvery(s string) (clocks perdure.Clock, ms int64, err error) {
	if s == "" {
		return 0, 0, nil
	}
	if n, err := strconv.ParseInt(s, 10, 32); err == nil && n >= 0 {
		return perdure.Clock(n), 0, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < minEval || d > maxEval {
		return 0, 0, fmt.Errorf("%w: --eval-every %s; choose 0 or more clocks, or a time from %v to %v, for example 2s",
			perdure.ErrUsage, s, minEval, maxEval)
	}
	return 0, d.Milliseconds(), nil
}

// suspendUsually is after how long a worker is suspended that nobody came for, where
// people do not say.
const suspendUsually = 30 * time.Second

// SuspendMs reads --suspend-after.
func SuspendMs(text string, twoStep bool) (int64, error) {
	switch {
	case text == "" && twoStep:
		return 0, nil
	case text == "":
		return suspendUsually.Milliseconds(), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > 0 && d < time.Millisecond {
		return 0, fmt.Errorf("%w: --suspend-after %q; write a time, for example 30s, or 0s for never", perdure.ErrUsage,
			text)
	}
	return d.Milliseconds(), nil
}

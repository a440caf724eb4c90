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

// parseEvalEvery reads --eval-every: a number of clocks, or a time; "" is none.
func parseEvalEvery(s string) (clocks perdure.Clock, ms int64, err error) {
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

// usually is after how long a worker is suspended that has no process, and others take over from a dead server, where
// the user does not say.
const usually = 30 * time.Second

// afterMs reads a flag for such a time; without it, it is as usual, or 0 where that is never.
func afterMs(flag, text string, never bool) (int64, error) {
	switch {
	case text == "" && never:
		return 0, nil
	case text == "":
		return usually.Milliseconds(), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > 0 && d < time.Millisecond {
		return 0, fmt.Errorf("%w: --%s %q; write a time, for example 30s, or 0s for never", perdure.ErrUsage, flag,
			text)
	}
	return d.Milliseconds(), nil
}

// mtbf reads --mtbf, in seconds; 0: it is not given.
func (a *Asked) mtbf() (float64, error) {
	if a.MTBF == "" && !a.Given["mtbf"] {
		return 0, nil
	}
	d, err := time.ParseDuration(a.MTBF)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%w: --mtbf %q; write the time between two failures, above 0, for example 6h",
			perdure.ErrUsage, a.MTBF)
	}
	return d.Seconds(), nil
}

// parseGrace reads --grace; "": no last checkpoint is made.
func parseGrace(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%w: --grace %q; write how long a last checkpoint may take, for example 10s, or 0s to "+
			"make none", perdure.ErrUsage, text)
	}
	return d, nil
}

package settings

import (
	"strconv"
	"time"

	"github.com/perdure/perdure"
)

// Limits of the time between two evaluations.
const (
	minEval = 10 * time.Millisecond
	maxEval = time.Hour
)

// parseEvalEvery parses --eval-every: a number of clocks or a time; "" means no evaluations.
func parseEvalEvery(s string) (clocks perdure.Clock, ms int64, err error) {
	if s == "" {
		return 0, 0, nil
	}
	if n, err := strconv.ParseInt(s, 10, 32); err == nil && n >= 0 {
		return perdure.Clock(n), 0, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < minEval || d > maxEval {
		return 0, 0, perdure.Usagef("invalid --eval-every %s; choose 0 or more clocks, or a time from %v to %v, for "+
			"example 2s", s, minEval, maxEval)
	}
	return 0, d.Milliseconds(), nil
}

// defaultAfter is the default time after which a worker without a process is suspended, and after which other servers
// take over from a dead server.
const defaultAfter = 30 * time.Second

// afterMs parses a flag for such a time. Without the flag it returns the default, or 0 if never is set.
func afterMs(flag, text string, never bool) (int64, error) {
	switch {
	case text == "" && never:
		return 0, nil
	case text == "":
		return defaultAfter.Milliseconds(), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > 0 && d < time.Millisecond {
		return 0, perdure.Usagef("invalid --%s %q; write a time, for example 30s, or 0s for never", flag, text)
	}
	return d.Milliseconds(), nil
}

// mtbf parses --mtbf, in seconds; 0 if it is not given.
func (a *Flags) mtbf() (float64, error) {
	if a.MTBF == "" && !a.Given["mtbf"] {
		return 0, nil
	}
	d, err := time.ParseDuration(a.MTBF)
	if err != nil || d <= 0 {
		return 0, perdure.Usagef("invalid --mtbf %q; write the mean time between failures, above 0, for example 6h",
			a.MTBF)
	}
	return d.Seconds(), nil
}

// parseGrace parses --grace; "" means that no final checkpoint is made.
func parseGrace(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, perdure.Usagef("invalid --grace %q; give the maximum time for the final checkpoint, for example "+
			"10s, or 0s to skip it", text)
	}
	return d, nil
}

package recovery

import (
	"fmt"
	"math"
)

// minIntervalFactor is the minimum interval in multiples of the duration of a checkpoint, so that saving takes at most
// a twentieth of the time.
const minIntervalFactor = 20

// CheckpointInterval chooses how long to train between two checkpoints, given the duration of one checkpoint and the
// mean time between failures, all in seconds. A shorter interval costs more saves; a longer one costs more clocks that
// are redone. The interval is Young's sqrt(2·save·mtbf) (CACM 1974), but at least 20 saves, which is longer if failures
// occur every 200 saves or more often. (Up to that point Daly's estimate, FGCS 2006, is within 4 % of Young's.) why
// describes the choice in a few words. The interval is 0 if one of the times is unknown, that is, not finite and
// positive.
func CheckpointInterval(save, mtbf float64) (interval float64, why string) {
	if known := save > 0 && mtbf > 0 && save+mtbf < math.Inf(1); !known {
		return 0, "the duration of a save or the rate of failures is not known"
	}
	interval, by := math.Sqrt(2*save*mtbf), "Young"
	if least := minIntervalFactor * save; interval < least {
		interval, by = least, "saving may take at most 1/20 of the time"
	}
	return interval, fmt.Sprintf("%s: a save takes %s, and a failure occurs every %s", by, FormatTime(save),
		FormatTime(mtbf))
}

// priorMTBF is the assumed mean time between failures of a new job, in seconds.
const priorMTBF = 3600.0

// ExpectedMTBF estimates the mean time between failures, in seconds, after a number of failures in a time. One early
// failure does not establish a rate. The prior weighs as much as one failure in an hour: with a Gamma(1, 1 h) prior of
// the failure rate, and failures at random times, the estimate is the reciprocal of the posterior mean. So the first
// few failures change it little, while many failures, or a long time without any, dominate it.
func ExpectedMTBF(failures int64, ran float64) float64 {
	return (priorMTBF + ran) / float64(1+failures)
}

// FormatTime formats a time for users.
func FormatTime(s float64) string {
	if s < 100 {
		return fmt.Sprintf("%.3g s", s)
	}
	return fmt.Sprintf("%.0f s", s)
}

// IntervalClocks converts an interval to clocks, given the duration of a clock in seconds. It returns at least 1.
func IntervalClocks(interval, clock float64) (clocks int64) {
	if n := math.Round(interval / clock); n > 1 {
		return int64(min(n, math.MaxInt32))
	}
	return 1
}

package membership

import (
	"fmt"
	"math"
)

// leastInterval is how many times as long as a save it is at least from one to the next: so
// saving takes no more than a twentieth of the time.
const leastInterval = 20

// CheckpointInterval chooses how long to train between two checkpoints, given how long one takes and
// how long it is between two failures on average, all in seconds. A shorter interval costs more
// in saves, a longer one more in clocks that are done again. It is Young's
// sqrt(2·save·mtbf) (CACM 1974), and at least 20 saves, which is more where failures come
// every 200 saves or more often. (Up to there Daly's estimate, FGCS 2006, is within 4 % of
// Young's.) why says how it was chosen, in a few words. It is 0 where one of the times is
// not known: not finite and positive.
func CheckpointInterval(save, mtbf float64) (interval float64, why string) {
	if known := save > 0 && mtbf > 0 && save+mtbf < math.Inf(1); !known {
		return 0, "it is not known how long a save takes, or how often something fails"
	}
	interval, by := math.Sqrt(2*save*mtbf), "Young"
	if least := leastInterval * save; interval < least {
		interval, by = least, "at most a 20th of the time is for saving"
	}
	return interval, fmt.Sprintf("%s: a save takes %s, and something fails every %s", by, Seconds(save), Seconds(mtbf))
}

// priorMTBF is what is taken for the time between two failures, in seconds, of a job that
// has just begun.
const priorMTBF = 3600.0

// ExpectedMTBF is the time between two failures to reckon with, in seconds, after a number
// of them in a time. One failure early on is no rate. What is believed before anything is
// seen weighs as much as one failure in an hour: with a Gamma(1, an hour) prior of the rate
// of failures, and failures at random, this is 1 over the mean of what is believed
// afterwards. So the first failures change little, and many, or a long calm, count for
// themselves.
func ExpectedMTBF(failures int64, ran float64) float64 {
	return (priorMTBF + ran) / float64(1+failures)
}

// Seconds writes a time for people.
func Seconds(s float64) string {
	if s < 100 {
		return fmt.Sprintf("%.3g s", s)
	}
	return fmt.Sprintf("%.0f s", s)
}

// IntervalClocks turns an interval into clocks, given how long a clock takes, in seconds: at least 1.
func IntervalClocks(interval, clock float64) (clocks int64) {
	if n := math.Round(interval / clock); n > 1 {
		return int64(min(n, math.MaxInt32))
	}
	return 1
}

package membership

import (
	"fmt"
	"math"
)

// SaveInterval chooses how long to train between two checkpoints, given how long one
// takes and how long it is between two failures on average, all in seconds: where more is
// saved than needed, and where more is done again, each costs more than this. It is
// Young's sqrt(2·save·mtbf) (CACM 1974) where a save is short beside the time between
// failures, else Daly's higher-order estimate (FGCS 2006), and never less than the save
// itself. why says how it was chosen, in a few words. It is 0 where one of the times is not
// known: not finite and positive.
func SaveInterval(save, mtbf float64) (interval float64, why string) {
	if known := save > 0 && mtbf > 0 && save+mtbf < math.Inf(1); !known {
		return 0, "it is not known how long a save takes, or how often something fails"
	}
	interval, by := math.Sqrt(2*save*mtbf), "Young"
	switch ratio := save / (2 * mtbf); {
	case ratio >= 1:
		interval, by = mtbf, "Daly, a save takes longer than twice the time between failures"
	case save > mtbf*youngUpTo:
		interval, by = interval*(1+math.Sqrt(ratio)/3+ratio/9)-save, "Daly"
	}
	return max(interval, save), fmt.Sprintf("%s: a save takes %s, and something fails every %s", by, Seconds(save), Seconds(mtbf))
}

// Seconds writes a time for people.
func Seconds(s float64) string {
	if s < 100 {
		return fmt.Sprintf("%.3g s", s)
	}
	return fmt.Sprintf("%.0f s", s)
}

// youngUpTo is up to which part of the time between failures a save is short beside it:
// the two estimates differ by less than 2 % there.
const youngUpTo = 1e-3

// SaveClocks turns an interval into clocks, given how long a clock takes, in seconds: at
// least 1.
func SaveClocks(interval, clock float64) (clocks int64) {
	if n := math.Round(interval / clock); n > 1 {
		return int64(min(n, math.MaxInt32))
	}
	return 1
}

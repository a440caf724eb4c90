package humanize

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// Format formats a number with the fewest digits that represent it exactly.
func Format(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// Short formats a number with four digits, and NaN and infinities as symbols.
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

// Count formats a number of things.
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Roughly formats an approximate duration.
func Roughly(d time.Duration) string {
	if d < 90*time.Second {
		return fmt.Sprintf("about %.0f s", d.Seconds())
	}
	return fmt.Sprintf("about %.0f min", d.Minutes())
}

// Percent0 formats a fraction as a whole percentage.
func Percent0(v float64) string { return fmt.Sprintf("%.0f%%", 100*v) }

// Percent1 formats a fraction as a percentage with one decimal.
func Percent1(v float64) string { return fmt.Sprintf("%.1f%%", 100*v) }

// Bytes formats a number of bytes.
func Bytes(n int64) string {
	v := float64(n)
	for _, unit := range []string{"B", "kB", "MB", "GB"} {
		switch {
		case v < 999.95 && unit == "B":
			return fmt.Sprintf("%.0f B", v)
		case v < 999.95:
			return fmt.Sprintf("%.1f %s", v, unit)
		}
		v /= 1000
	}
	return fmt.Sprintf("%.1f TB", v)
}

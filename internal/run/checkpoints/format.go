package checkpoints

import (
	"fmt"
	"time"

	"github.com/perdure/perdure"
)

// size formats a number of bytes.
func size(n int64) string {
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

// age formats a duration since an event.
func age(d time.Duration) string {
	s := int64(max(d, 0) / time.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	case s < 24*3600:
		return fmt.Sprintf("%dh%02dm", s/3600, s/60%60)
	}
	return fmt.Sprintf("%dd%02dh", s/86400, s/3600%24)
}

// clockText formats a clock, which may be unknown if a manifest cannot be read.
func clockText(c perdure.Clock) string {
	if c < 0 {
		return "?"
	}
	return fmt.Sprint(c)
}

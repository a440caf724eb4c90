package checkpoints

import (
	"fmt"
	"time"

	"github.com/perdure/perdure"
)

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

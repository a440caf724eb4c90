package registry

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// Holder says, for people, which process has the lease. Nothing is decided by
// it: Since is whatever that machine's wall clock showed.
type Holder struct {
	PID   int
	Host  string // a word
	Since time.Time
}

// Self returns this process as a holder from now on.
func Self() Holder {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return Holder{PID: os.Getpid(), Host: host, Since: time.Now()}
}

// String is how a message names the holder.
func (h Holder) String() string {
	return fmt.Sprintf("pid %d on %s since %s", h.PID, h.Host, h.Since.UTC().Format(time.RFC3339))
}

// Line is how a registry notes who has its lease.
//
//	<pid, decimal> <host> <since, RFC 3339 in UTC>
func (h Holder) Line() string {
	host := strings.Join(strings.Fields(h.Host), "-")
	return fmt.Sprintf("%d %s %s", h.PID, host, h.Since.UTC().Format(time.RFC3339))
}

// NameOf is what a message calls the holder that wrote a line, which may be damaged.
func NameOf(line string) string {
	var h Holder
	var since string
	n, _ := fmt.Sscanf(line, "%d %s %s", &h.PID, &h.Host, &since) // n says what was there
	at, err := time.Parse(time.RFC3339, since)
	if h.Since = at; n == 3 && err == nil && line == h.Line() {
		return h.String()
	}
	return "it has not written who it is"
}

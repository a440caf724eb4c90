package registry

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// Holder describes the process that has the lease, for people. No decision depends on it: Since is that machine's
// wall-clock time.
type Holder struct {
	PID   int
	Host  string // host name, without spaces
	Since time.Time
}

// Self returns a Holder that describes this process, starting now.
func Self() Holder {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return Holder{PID: os.Getpid(), Host: host, Since: time.Now()}
}

// String returns the holder for messages.
func (h Holder) String() string {
	return fmt.Sprintf("pid %d on %s since %s", h.PID, h.Host, h.Since.UTC().Format(time.RFC3339))
}

// Line returns the form in which a registry stores the holder of its lease.
//
//	<pid, decimal> <host> <since, RFC 3339 in UTC>
func (h Holder) Line() string {
	host := strings.Join(strings.Fields(h.Host), "-")
	return fmt.Sprintf("%d %s %s", h.PID, host, h.Since.UTC().Format(time.RFC3339))
}

// HolderName returns the name, for messages, of the holder that wrote a line, which may be damaged.
func HolderName(line string) string {
	var h Holder
	var since string
	n, _ := fmt.Sscanf(line, "%d %s %s", &h.PID, &h.Host, &since) // n is the number of fields found
	at, err := time.Parse(time.RFC3339, since)
	if h.Since = at; n == 3 && err == nil && line == h.Line() {
		return h.String()
	}
	return "an unknown process"
}

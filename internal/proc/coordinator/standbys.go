package coordinator

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/wire"
)

const (
	// maxStandbys limits how many standby processes are remembered. Their names come from the peers, so the number
	// could otherwise grow without bound.
	maxStandbys = 4096
	// standbyTimeout is how long after its last request a standby process counts as alive. It asks about once a second.
	standbyTimeout = 3 * time.Second
)

// Standby describes a process that waits for a free slot or server index.
type Standby struct {
	Role    wire.Role
	PID     int
	Process string // its name, for Latest.Host
	Version string // of Perdure; "": unknown

	asked time.Time // time of its last request
}

// standbys remembers the processes that wait for a free slot or server index, with the time of their last request. Each
// is logged once, and receives the end of the job. The zero value is empty.
type standbys struct{ all map[string]Standby }

// add records a request. It reports whether it is the first one of the process. Beyond maxStandbys processes, all are
// forgotten and count as new again.
func (s *standbys) add(hello *wire.Hello, now time.Time) (isNew bool) {
	_, known := s.all[hello.Process]
	if s.all == nil || !known && len(s.all) >= maxStandbys {
		s.all = map[string]Standby{}
	}
	s.all[hello.Process] = Standby{
		Role: hello.Role, PID: hello.PID, Process: hello.Process, Version: printable(hello.Version), asked: now,
	}
	return !known
}

// remove forgets a process that has received the end of the job or has a slot.
func (s *standbys) remove(process string) { delete(s.all, process) }

// anyAlive reports whether a standby process has asked recently.
func (s *standbys) anyAlive(now time.Time) bool { return len(s.alive(now)) > 0 }

// alive returns the processes that were on standby at a time, in a fixed order.
func (s *standbys) alive(now time.Time) (list []Standby) {
	for _, p := range s.all {
		if now.Sub(p.asked) < standbyTimeout {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b Standby) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.PID, b.PID), cmp.Compare(a.Process, b.Process))
	})
	return list
}

// versionOf returns the version of Perdure of the connected process that holds a server index or slot; "" if it is
// unknown.
func (c *memberSet) versionOf(k membership.Kind, index int, process string) string {
	if m := c.newest[memberID{k, index}]; m != nil && m.hello.Process == process {
		return printable(m.hello.Version)
	}
	return ""
}

// printable returns a peer's text, or "" if it could change a user's terminal.
func printable(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return ""
	}
	return text
}

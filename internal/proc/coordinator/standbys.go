package coordinator

import "time"

const (
	// maxStandbys limits how many standby processes are remembered. Their names come from the peers, so the number
	// could otherwise grow without bound.
	maxStandbys = 4096
	// standbyTimeout is how long after its last request a standby process counts as alive. It asks about once a second.
	standbyTimeout = 3 * time.Second
)

// standbys remembers the processes that wait for a free slot or server index, with the time of their last request. Each
// is logged once, and receives the end of the job. The zero value is empty.
type standbys struct{ asked map[string]time.Time }

// add records a request. It reports whether it is the first one of the process. Beyond maxStandbys processes, all are
// forgotten and count as new again.
func (s *standbys) add(process string, now time.Time) (isNew bool) {
	_, known := s.asked[process]
	if s.asked == nil || !known && len(s.asked) >= maxStandbys {
		s.asked = map[string]time.Time{}
	}
	s.asked[process] = now
	return !known
}

// remove forgets a process that has received the end of the job or has a slot.
func (s *standbys) remove(process string) { delete(s.asked, process) }

// anyAlive reports whether a standby process has asked recently.
func (s *standbys) anyAlive(now time.Time) bool {
	for _, t := range s.asked {
		if now.Sub(t) < standbyTimeout {
			return true
		}
	}
	return false
}

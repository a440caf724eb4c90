package host

import (
	"sync"
	"time"

	"github.com/perdure/perdure/internal/proc/httpdebug"
)

const (
	// slowRequest is the time after which a request for the lease counts as slow. It is shorter than a health check's
	// timeout.
	slowRequest = time.Second
	// maxRequestTime is longer than any request to a registry can take, even to an unavailable one. A longer wait means
	// that the loop is stuck.
	maxRequestTime = 30 * time.Second
)

// standbyState is the state of a standby coordinator for health checks.
type standbyState struct {
	mu    sync.Mutex // guards the fields below
	since time.Time  // start of the pending request; zero: none is pending
	why   string     // reason for the standby
	ended bool
}

// startRequest records the start of a request for the lease.
func (s *standbyState) startRequest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = time.Now()
}

// endRequest records that the registry has answered, and the reason for the standby. Without an error, the standby
// ends.
func (s *standbyState) endRequest(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since, s.ended = (time.Time{}), err == nil; err != nil {
		s.why = err.Error()
	}
}

// state returns the state once no request is pending, or the pending one is slow. It does not return while the loop is
// stuck.
func (s *standbyState) state() httpdebug.State {
	for ; ; time.Sleep(slowRequest / 20) {
		s.mu.Lock()
		why, ended, pending, took := s.why, s.ended, !s.since.IsZero(), time.Since(s.since)
		s.mu.Unlock()
		switch {
		case ended:
			return httpdebug.State{NotReady: "it is no longer on standby: it is about to lead, or to end"}
		case !pending:
			return httpdebug.State{NotReady: "it is on standby: " + why}
		case took >= slowRequest && took < maxRequestTime:
			return httpdebug.State{BlockedOn: "it is on standby and waits for its registry"}
		}
	}
}

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

// standbyState is the state of a standby coordinator for health checks. The loop that requests the lease answers
// between two requests.
type standbyState struct {
	queries chan chan<- string // the loop replies with the reason for the standby
	ended   chan struct{}      // closed when the standby ends

	mu    sync.Mutex // guards since
	since time.Time  // start of the pending request; zero: none is pending
}

func newStandbyState() *standbyState {
	return &standbyState{queries: make(chan chan<- string), ended: make(chan struct{})}
}

// startRequest records the start of a request for the lease.
func (s *standbyState) startRequest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = time.Now()
}

// endRequest records that the registry has answered.
func (s *standbyState) endRequest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = time.Time{}
}

// isWaiting reports whether the loop waits for a slow registry but is not stuck.
func (s *standbyState) isWaiting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := time.Since(s.since)
	return !s.since.IsZero() && t >= slowRequest && t < maxRequestTime
}

// state asks the loop for the state.
func (s *standbyState) state() httpdebug.State {
	again := time.NewTicker(slowRequest / 20)
	defer again.Stop()
	why := make(chan string, 1)
	for {
		select {
		case s.queries <- why:
			return httpdebug.State{NotReady: "it is on standby: " + <-why}
		case <-s.ended:
			return httpdebug.State{NotReady: "it is no longer on standby: it is about to lead, or to end"}
		case <-again.C:
		}
		if s.isWaiting() {
			return httpdebug.State{BlockedOn: "it is on standby and waits for its registry"}
		}
	}
}

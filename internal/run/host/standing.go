package host

import (
	"sync"
	"time"

	"github.com/perdure/perdure/internal/proc/httpdebug"
)

const (
	// slowTry is the time after which a request for the lease counts as slow. It is shorter than a health check's
	// timeout.
	slowTry = time.Second
	// longestTry is longer than any request to a registry can take, even to an unavailable one. A longer wait means
	// that the loop is stuck.
	longestTry = 30 * time.Second
)

// standing is the state of a standby coordinator for health checks. The loop that requests the lease answers between
// two requests.
type standing struct {
	asks  chan chan<- string // the loop replies with the reason for the standby
	ended chan struct{}      // closed when the standby ends

	mu    sync.Mutex // guards since
	since time.Time  // start of the pending request; zero: none is pending
}

func newStanding() *standing {
	return &standing{asks: make(chan chan<- string), ended: make(chan struct{})}
}

// begin records the start of a request for the lease.
func (s *standing) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = time.Now()
}

// end records that the registry has answered.
func (s *standing) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = time.Time{}
}

// waits reports whether the loop waits for a slow registry but is not stuck.
func (s *standing) waits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := time.Since(s.since)
	return !s.since.IsZero() && t >= slowTry && t < longestTry
}

// look asks the loop for the state.
func (s *standing) look() httpdebug.State {
	again := time.NewTicker(slowTry / 20)
	defer again.Stop()
	why := make(chan string, 1)
	for {
		select {
		case s.asks <- why:
			return httpdebug.State{NotReady: "it stands by: " + <-why}
		case <-s.ended:
			return httpdebug.State{NotReady: "it no longer stands by, and starts to lead or ends"}
		case <-again.C:
		}
		if s.waits() {
			return httpdebug.State{BlockedOn: "it stands by and waits for its registry"}
		}
	}
}

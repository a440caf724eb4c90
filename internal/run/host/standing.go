package host

import (
	"sync"
	"time"

	"github.com/perdure/perdure/internal/proc/httpdebug"
)

const (
	// slowTry is how long a registry takes at least that is said to keep one waiting who stands by. It is less than
	// who looks waits.
	slowTry = time.Second
	// longestTry is more than any registry takes over one try, also one that is away: whoever waits longer is stuck.
	longestTry = 30 * time.Second
)

// standing is how a coordinator stands by, for whoever watches it. The loop that asks for the lease answers itself,
// between two tries.
type standing struct {
	asks  chan chan<- string // the loop says why it stands by
	ended chan struct{}      // closed when it stands by no more

	mu    sync.Mutex // guards since
	since time.Time  // when the try began that is under way; zero: none is
}

func newStanding() *standing {
	return &standing{asks: make(chan chan<- string), ended: make(chan struct{})}
}

// begin notes that the registry is asked for the lease now.
func (s *standing) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = time.Now()
}

// end notes that it has answered.
func (s *standing) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = time.Time{}
}

// waits reports whether the loop waits for a registry that may take so long.
func (s *standing) waits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := time.Since(s.since)
	return !s.since.IsZero() && t >= slowTry && t < longestTry
}

// look asks the loop.
func (s *standing) look() httpdebug.Look {
	again := time.NewTicker(slowTry / 20)
	defer again.Stop()
	why := make(chan string, 1)
	for {
		select {
		case s.asks <- why:
			return httpdebug.Look{NotReady: "it stands by: " + <-why}
		case <-s.ended:
			return httpdebug.Look{NotReady: "it stands by no more, and begins to lead or ends"}
		case <-again.C:
		}
		if s.waits() {
			return httpdebug.Look{Waits: "it stands by, and waits for its registry"}
		}
	}
}

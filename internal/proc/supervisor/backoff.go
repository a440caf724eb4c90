package supervisor

import "time"

const (
	shortLife = time.Second // a shorter life counts as a failed start
	minPause  = 100 * time.Millisecond
	maxPause  = 5 * time.Second
)

// Backoff computes the pause before a place's next process. A process that has run for a while is replaced immediately.
// The pause grows while processes end right after they start, so that a permanent fault does not overload the machine.
type Backoff struct {
	pause time.Duration
}

// Next returns the pause after a process that ran for the given time.
func (b *Backoff) Next(lived time.Duration) time.Duration {
	if lived >= shortLife {
		b.pause = 0
	}
	now := b.pause
	b.pause = min(max(2*b.pause, minPause), maxPause)
	return now
}

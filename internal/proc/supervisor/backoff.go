package supervisor

import "time"

const (
	shortLife  = time.Second // a process that lives for less has ended as soon as it began
	leastPause = 100 * time.Millisecond
	mostPause  = 5 * time.Second
)

// Backoff chooses how long a place stays empty before its next process: not at all
// after one that has lived for a while, and ever longer while they end as soon as they
// begin, so that a fault that nobody mends does not take the machine.
type Backoff struct {
	pause time.Duration
}

// Next returns the pause after a process that has lived for so long.
func (b *Backoff) Next(lived time.Duration) time.Duration {
	if lived >= shortLife {
		b.pause = 0
	}
	now := b.pause
	b.pause = min(max(2*b.pause, leastPause), mostPause)
	return now
}

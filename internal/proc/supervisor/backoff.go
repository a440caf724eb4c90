package supervisor

import (
	"time"

	"github.com/perdure/perdure"
)

const (
	shortLife  = time.Second // a process that lives for less has ended as soon as it began
	leastPause = 100 * time.Millisecond
	mostPause  = 5 * time.Second
)

// Backoff chooses how long a place stays empty before its next process: not at all
// after one that has lived for a while, and ever longer while they end as soon as they
// begin, so that a fault that nobody mends does not take the machine.
type Backoff struct {
	pause  time.Duration
	failed int           // one after the other, each of which ended as soon as it had begun its work
	clock  perdure.Clock // of the job, the furthest when one of them ended
}

// An own program that fails is started again: it may have failed with what it ran on. One that
// fails always ends the job.
const (
	earlyLife  = 10 * time.Second // a program that lives for longer has done some work
	mostFailed = 5
)

// hopeless takes in the end of a program of the user's, by itself, and says that starting it again is of no use. The
// job's clock is that of the slot which is least far: where it has gone on so has the program.
func (b *Backoff) hopeless(lived time.Duration, clock perdure.Clock) bool {
	if lived >= earlyLife || clock > b.clock {
		b.failed = 0
	}
	b.clock = max(b.clock, clock)
	b.failed++
	return b.failed >= mostFailed
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

package server

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// lock is a mutex whose holder can be observed without waiting for it. The heartbeat reports how long each lock has
// been held without progress, so that a deadlocked server is replaced and a busy one is not.
type lock struct {
	mu sync.Mutex
	// seq is odd while the mutex is held, and changes whenever the holder makes progress. A counter costs the hot path
	// less than reading the time.
	seq atomic.Uint64
}

// Progress records that the goroutine that holds l is making progress.
func (l *lock) Progress() { l.seq.Add(2) }

// Lock implements sync.Locker.
func (l *lock) Lock() {
	l.mu.Lock()
	l.seq.Add(1)
}

// TryLock locks l unless another goroutine holds it, and reports whether it did.
func (l *lock) TryLock() bool {
	if !l.mu.TryLock() {
		return false
	}
	l.seq.Add(1)
	return true
}

// Unlock implements sync.Locker.
func (l *lock) Unlock() {
	l.seq.Add(1)
	l.mu.Unlock()
}

// hold is what the samples so far say about one lock.
type hold struct {
	seq    uint64        // at the last sample, if the lock was held then
	lasted time.Duration // how long that turn has lasted, according to the samples
}

// holdMonitor estimates how long the locks of a server and of its shards have been held without progress. To do so, it
// samples them at regular intervals. Only the goroutine that sends heartbeats may use it.
type holdMonitor struct {
	every   time.Duration // interval between samples
	sampled time.Time     // when the last sample was taken
	server  hold          // of Server.mu
	shards  map[*shard]hold
	longest time.Duration // the longest hold that has ended
}

// sample inspects the locks of the server and its shards and returns the longest hold. Shards that are not in the list
// are forgotten. A late sample counts at most two intervals: the whole process was stalled then, so no single lock
// caused the delay.
func (h *holdMonitor) sample(now time.Time, server *lock, shards []*shard) protocol.LockHold {
	passed := min(now.Sub(h.sampled), 2*h.every)
	h.sampled = now
	h.server = h.measure(h.server, server, passed)
	most, of := h.server.lasted, perdure.ShardID(-1)
	known := make(map[*shard]hold, len(shards))
	for _, sh := range shards {
		next := h.measure(h.shards[sh], &sh.mu, passed)
		if next.lasted > most {
			most, of = next.lasted, sh.id
		}
		if next != (hold{}) {
			known[sh] = next
		}
	}
	h.shards = known
	if most == 0 {
		of = 0 // no lock
	}
	return protocol.LockHold{Shard: of, Ms: most.Milliseconds(), LongestMs: h.longest.Milliseconds()}
}

// measure samples lock l once and returns its new state. before is its state at the last sample, and passed the time
// since then. If the lock has been held without progress since, passed is added to the time of that hold.
func (h *holdMonitor) measure(before hold, l *lock, passed time.Duration) (now hold) {
	turn := l.seq.Load()
	if before.seq == turn && turn%2 == 1 {
		return hold{turn, before.lasted + passed}
	}
	h.longest = max(h.longest, before.lasted)
	if turn%2 == 0 {
		return hold{}
	}
	return hold{seq: turn}
}

package registry

import (
	"context"
	"errors"
	"sync"
	"time"
)

// SaveCounter wraps a Registry and counts saves. Reading the counters never blocks on a save.
type SaveCounter struct {
	Registry

	mu           sync.Mutex // guards the fields below
	stats        SaveStats
	pendingSince time.Time // first attempt of the pending save; zero: none is pending
}

// SaveStats holds the statistics of a registry's saves.
type SaveStats struct {
	Saves, Failures int64
	TotalDuration   time.Duration // total duration of successful saves
	PendingFor      time.Duration // time since the first attempt of the pending save; 0: none is pending
	LastError       string        // error of the last attempt; "" if it succeeded
}

// CountSaves returns r with counted saves.
func CountSaves(r Registry) *SaveCounter { return &SaveCounter{Registry: r} }

// Stats returns the statistics so far.
func (c *SaveCounter) Stats() SaveStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	so := c.stats
	if !c.pendingSince.IsZero() {
		so.PendingFor = time.Since(c.pendingSince)
	}
	return so
}

// Acquire implements Registry.
func (c *SaveCounter) Acquire(ctx context.Context, holder Holder) (Lease, error) {
	l, err := c.Registry.Acquire(ctx, holder)
	if err != nil {
		return nil, err
	}
	return countingLease{l, c}, nil
}

// start records the start of an attempt.
func (c *SaveCounter) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pendingSince.IsZero() {
		c.pendingSince = time.Now()
	}
}

// finish records the result of an attempt.
func (c *SaveCounter) finish(took time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.stats.Saves++
		c.stats.TotalDuration += took
		c.stats.LastError = ""
	} else {
		c.stats.Failures++
		c.stats.LastError = err.Error()
	}
	if err == nil || errors.Is(err, ErrConflict) || errors.Is(err, ErrLost) { // other errors are retried
		c.pendingSince = time.Time{}
	}
}

// countingLease counts the saves of a lease.
type countingLease struct {
	Lease
	counter *SaveCounter
}

// Save implements Lease.
func (l countingLease) Save(ctx context.Context, doc []byte, previous uint64) (revision uint64, err error) {
	l.counter.start()
	began := time.Now()
	revision, err = l.Lease.Save(ctx, doc, previous)
	l.counter.finish(time.Since(began), err)
	return revision, err
}

package registry

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Counted wraps a Registry and counts saves. Reading the counters never blocks on a save.
type Counted struct {
	Registry

	mu     sync.Mutex // guards the fields below
	counts Counts
	since  time.Time // first attempt of the pending save; zero: none is pending
}

// Counts holds the statistics of a registry's saves.
type Counts struct {
	Saves, Failures int64
	Took            time.Duration // total duration of successful saves
	Waits           time.Duration // time since the first attempt of the pending save; 0: none is pending
	Failing         string        // error of the last attempt; "" if it succeeded
}

// Count returns r with counted saves.
func Count(r Registry) *Counted { return &Counted{Registry: r} }

// Counts returns the statistics so far.
func (c *Counted) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	so := c.counts
	if !c.since.IsZero() {
		so.Waits = time.Since(c.since)
	}
	return so
}

// Acquire implements Registry.
func (c *Counted) Acquire(ctx context.Context, holder Holder) (Lease, error) {
	l, err := c.Registry.Acquire(ctx, holder)
	if err != nil {
		return nil, err
	}
	return countedLease{l, c}, nil
}

// begin records the start of an attempt.
func (c *Counted) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since.IsZero() {
		c.since = time.Now()
	}
}

// end records the result of an attempt.
func (c *Counted) end(took time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.counts.Saves++
		c.counts.Took += took
		c.counts.Failing = ""
	} else {
		c.counts.Failures++
		c.counts.Failing = err.Error()
	}
	if err == nil || errors.Is(err, ErrConflict) || errors.Is(err, ErrLost) { // other errors are retried
		c.since = time.Time{}
	}
}

// countedLease counts the saves of a lease.
type countedLease struct {
	Lease
	by *Counted
}

// Save implements Lease.
func (l countedLease) Save(ctx context.Context, doc []byte, previous uint64) (revision uint64, err error) {
	l.by.begin()
	began := time.Now()
	revision, err = l.Lease.Save(ctx, doc, previous)
	l.by.end(time.Since(began), err)
	return revision, err
}

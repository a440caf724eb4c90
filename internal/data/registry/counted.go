package registry

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Counted is a registry whose saves are counted. Who reads the counts waits for no save.
type Counted struct {
	Registry

	mu    sync.Mutex // guards what follows
	so    Counts
	since time.Time // when what is to be saved now was tried first; zero: nothing is
}

// Counts are what a registry has done for a process.
type Counts struct {
	Saves, Failures int64
	Took            time.Duration // of the saves that succeeded
	Waits           time.Duration // since what is to be saved now was tried first; 0: nothing is
	Failing         string        // why the last try has failed; "": it has not
}

// Count counts the saves of a registry.
func Count(r Registry) *Counted { return &Counted{Registry: r} }

// Counts returns what was counted so far.
func (c *Counted) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	so := c.so
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

// begin notes that something is tried.
func (c *Counted) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since.IsZero() {
		c.since = time.Now()
	}
}

// end notes how it went.
func (c *Counted) end(took time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.so.Saves++
		c.so.Took += took
		c.so.Failing = ""
	} else {
		c.so.Failures++
		c.so.Failing = err.Error()
	}
	if err == nil || errors.Is(err, ErrConflict) || errors.Is(err, ErrLost) { // else it is tried again
		c.since = time.Time{}
	}
}

// countedLease counts what is saved by it.
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

package registry

import (
	"bytes"
	"context"
	"fmt"
	"sync"
)

// Memory is one client of an in-memory registry.
type Memory struct {
	shared    *sharedRegistry
	closed    chan struct{}
	closeOnce func()
}

// sharedRegistry is the state that all clients of an in-memory registry share.
type sharedRegistry struct {
	mu       sync.Mutex // guards the fields below
	doc      []byte
	revision uint64
	lease    *memoryLease // nil: the lease is free
}

type memoryLease struct {
	client *Memory
	holder Holder
	done   chan struct{}
}

// NewMemory returns the first client of a new registry.
func NewMemory() *Memory { return (&sharedRegistry{}).client() }

// NewClient returns another client of the same registry, like another process.
func (r *Memory) NewClient() *Memory { return r.shared.client() }

func (s *sharedRegistry) client() *Memory {
	closed := make(chan struct{})
	return &Memory{shared: s, closed: closed, closeOnce: sync.OnceFunc(func() { close(closed) })}
}

// checkOpen returns an error if a client with the given closed channel cannot be used.
func checkOpen(ctx context.Context, closed <-chan struct{}) error {
	select {
	case <-closed:
		return ErrClosed
	default:
		return ctx.Err()
	}
}

// Load implements Registry.
func (r *Memory) Load(ctx context.Context) ([]byte, uint64, error) {
	r.shared.mu.Lock()
	defer r.shared.mu.Unlock()
	if err := checkOpen(ctx, r.closed); err != nil {
		return nil, 0, err
	}
	return bytes.Clone(r.shared.doc), r.shared.revision, nil
}

// Acquire implements Registry.
func (r *Memory) Acquire(ctx context.Context, holder Holder) (Lease, error) {
	r.shared.mu.Lock()
	defer r.shared.mu.Unlock()
	if err := checkOpen(ctx, r.closed); err != nil {
		return nil, err
	}
	if l := r.shared.lease; l != nil {
		return nil, fmt.Errorf("%w: %s", ErrHeld, l.holder)
	}
	r.shared.lease = &memoryLease{client: r, holder: holder, done: make(chan struct{})}
	return r.shared.lease, nil
}

// Expire ends the current lease, like a service that has not heard from the holder for too long.
func (r *Memory) Expire() {
	r.shared.mu.Lock()
	defer r.shared.mu.Unlock()
	r.shared.expire()
}

func (s *sharedRegistry) expire() {
	if s.lease != nil {
		close(s.lease.done)
		s.lease = nil
	}
}

// Close implements Registry.
func (r *Memory) Close() error {
	r.shared.mu.Lock()
	defer r.shared.mu.Unlock()
	if l := r.shared.lease; l != nil && l.client == r {
		r.shared.expire()
	}
	r.closeOnce()
	return nil
}

func (l *memoryLease) Save(ctx context.Context, doc []byte, previous uint64) (uint64, error) {
	s := l.client.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := checkOpen(ctx, l.client.closed); err != nil {
		return 0, err
	}
	if s.lease != l {
		return 0, ErrLost
	}
	if s.revision != previous {
		return 0, conflict(s.revision, previous)
	}
	s.doc = bytes.Clone(doc)
	s.revision++
	return s.revision, nil
}

func (l *memoryLease) Done() <-chan struct{} { return l.done }

func (l *memoryLease) Release() error {
	s := l.client.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == l {
		s.expire()
	}
	return nil
}

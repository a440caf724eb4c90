package registry

import (
	"bytes"
	"context"
	"sync"
)

type memory struct {
	mu       sync.Mutex // guards everything below
	doc      []byte
	revision uint64
	closed   bool
}

// NewMemory returns a registry that lives as long as its process.
func NewMemory() Registry { return &memory{} }

func (r *memory) usable(ctx context.Context) error {
	if r.closed {
		return errClosed
	}
	return ctx.Err()
}

func (r *memory) Load(ctx context.Context) ([]byte, uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usable(ctx); err != nil {
		return nil, 0, err
	}
	return bytes.Clone(r.doc), r.revision, nil
}

func (r *memory) Save(ctx context.Context, doc []byte, previous uint64) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usable(ctx); err != nil {
		return 0, err
	}
	if r.revision != previous {
		return 0, conflict(r.revision, previous)
	}
	r.doc = bytes.Clone(doc)
	r.revision++
	return r.revision, nil
}

func (r *memory) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return nil
}

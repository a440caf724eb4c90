package updatelog

import (
	"context"
	"slices"
	"sync"
)

// room bounds the bytes on their way. Whoever waits is served in order.
type room struct {
	bound int

	mu      sync.Mutex // guards what follows
	used    int
	waiting []*waiter
}

type waiter struct {
	n       int
	granted chan struct{}
}

// fits reports whether n bytes may go; anything may go alone.
func (r *room) fits(n int) bool { return r.used == 0 || r.used+n <= r.bound }

// take waits until n bytes may go.
func (r *room) take(ctx context.Context, closed <-chan struct{}, n int) error {
	r.mu.Lock()
	if len(r.waiting) == 0 && r.fits(n) {
		r.used += n
		r.mu.Unlock()
		return nil
	}
	w := &waiter{n: n, granted: make(chan struct{})}
	r.waiting = append(r.waiting, w)
	r.mu.Unlock()
	var err error
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-closed:
		err = ErrClosed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.waiting, w); i >= 0 {
		r.waiting = slices.Delete(r.waiting, i, i+1)
	} else {
		r.used -= n
	}
	r.grant()
	return err
}

// give takes n bytes off.
func (r *room) give(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used -= n
	r.grant()
}

// grant lets those go who fit now.
func (r *room) grant() {
	for len(r.waiting) > 0 && r.fits(r.waiting[0].n) {
		w := r.waiting[0]
		r.waiting = r.waiting[1:]
		r.used += w.n
		close(w.granted)
	}
}

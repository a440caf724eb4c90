// Package room bounds the bytes that are on their way. Whoever waits is served in order, so that nobody is overtaken
// for ever. A Room is safe for concurrent use.
package room

import (
	"context"
	"slices"
	"sync"
)

// Room is how many bytes may be on their way.
type Room struct {
	Bound  int
	Closed error // what who waits is told when nothing is let go any more

	mu      sync.Mutex // guards what follows
	used    int
	waiting []*waiter
}

type waiter struct {
	n       int
	granted chan struct{}
}

// fits reports whether n bytes may go; anything may go alone.
func (r *Room) fits(n int) bool { return r.used == 0 || r.used+n <= r.Bound }

// Take waits until n bytes may go.
func (r *Room) Take(ctx context.Context, closed <-chan struct{}, n int) error {
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
		err = r.Closed
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

// Give takes n bytes off.
func (r *Room) Give(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used -= n
	r.grant()
}

// grant lets those go who fit now.
func (r *Room) grant() {
	for len(r.waiting) > 0 && r.fits(r.waiting[0].n) {
		w := r.waiting[0]
		r.waiting = r.waiting[1:]
		r.used += w.n
		close(w.granted)
	}
}

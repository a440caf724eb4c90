package worker

import (
	"context"
	"slices"
	"sync"
	"time"
)

// waiters holds the waiting calls, and the error that ends them all. A call waits for a condition, and checks it again
// whenever the state has changed. Mu guards waits: callers must hold it, and waiting calls release it meanwhile.
type waiters struct {
	Mu  *sync.Mutex
	Err error // why all calls fail; nil: they do not

	waiting []chan struct{} // of capacity 1: receives when a call must check again
	since   time.Time       // when waiting became non-empty
	free    []chan struct{} // channels for reuse
}

// Until waits until ready returns true or an error, the client ends, or ctx ends.
func (w *waiters) Until(ctx context.Context, ready func() (bool, error)) error {
	if over, err := w.over(ready); over {
		return err
	}
	woken := w.begin()
	defer w.end(woken)
	for {
		w.Mu.Unlock()
		select {
		case <-woken:
		case <-ctx.Done():
		}
		w.Mu.Lock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if over, err := w.over(ready); over {
			return err
		}
	}
}

// WaitWhile waits while busy returns true, even if the client has ended.
func (w *waiters) WaitWhile(busy func() bool) {
	if !busy() {
		return
	}
	woken := w.begin()
	defer w.end(woken)
	for busy() {
		w.Mu.Unlock()
		<-woken
		w.Mu.Lock()
	}
}

// over reports whether a wait is over, and how.
func (w *waiters) over(ready func() (bool, error)) (over bool, err error) {
	if w.Err != nil {
		return true, w.Err
	}
	ok, err := ready()
	return ok || err != nil, err
}

// begin registers a waiting call. The returned channel receives when the state has changed. The caller must call end.
func (w *waiters) begin() (woken chan struct{}) {
	if n := len(w.free); n > 0 {
		woken, w.free = w.free[n-1], w.free[:n-1]
	} else {
		woken = make(chan struct{}, 1)
	}
	if len(w.waiting) == 0 {
		w.since = time.Now()
	}
	w.waiting = append(w.waiting, woken)
	return woken
}

func (w *waiters) end(woken chan struct{}) {
	i := slices.Index(w.waiting, woken)
	w.waiting = slices.Delete(w.waiting, i, i+1)
	select {
	case <-woken:
	default:
	}
	w.free = append(w.free, woken)
}

// Wake makes all waiting calls check again.
func (w *waiters) Wake() {
	for _, woken := range w.waiting {
		select {
		case woken <- struct{}{}:
		default: // a wake-up is already pending
		}
	}
}

// Pause waits for d, the end of the client, or the end of ctx.
func (w *waiters) Pause(ctx context.Context, d time.Duration) error {
	over, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	err := w.Until(over, func() (bool, error) { return false, nil })
	if w.Err != nil {
		return w.Err
	}
	if ctx.Err() == nil && over.Err() != nil {
		return nil
	}
	return err
}

// WaitingFor reports whether calls have been waiting without interruption for at least d.
func (w *waiters) WaitingFor(d time.Duration, now time.Time) bool {
	return len(w.waiting) > 0 && now.Sub(w.since) >= d
}

package worker

import (
	"context"
	"slices"
	"sync"
	"time"
)

// waits are the calls that wait, and the error that ends them all. A call waits until what
// it asks for is so, and looks again whenever something has changed. Mu guards it, and
// needs to be held: whoever waits gives it up meanwhile.
type waits struct {
	Mu  *sync.Mutex
	Err error // why no call can go on, if none can

	waiting []chan struct{} // of capacity 1: it is to look again
	since   time.Time       // there are some
	free    []chan struct{} // to be used again
}

// Until waits until ready, an error of its own, the client's end or ctx's end.
func (w *waits) Until(ctx context.Context, ready func() (bool, error)) error {
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

// While waits as long as busy, whatever else ends.
func (w *waits) While(busy func() bool) {
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
func (w *waits) over(ready func() (bool, error)) (over bool, err error) {
	if w.Err != nil {
		return true, w.Err
	}
	ok, err := ready()
	return ok || err != nil, err
}

// begin begins to wait: what it returns receives when something has changed. end ends it.
func (w *waits) begin() (woken chan struct{}) {
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

func (w *waits) end(woken chan struct{}) {
	i := slices.Index(w.waiting, woken)
	w.waiting = slices.Delete(w.waiting, i, i+1)
	select {
	case <-woken:
	default:
	}
	w.free = append(w.free, woken)
}

// Wake has all calls that wait look again.
func (w *waits) Wake() {
	for _, woken := range w.waiting {
		select {
		case woken <- struct{}{}:
		default: // it will look anyway
		}
	}
}

// Pause lets time pass.
func (w *waits) Pause(ctx context.Context, d time.Duration) error {
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

// Longer reports whether some call has waited for longer than d.
func (w *waits) Longer(d time.Duration, now time.Time) bool {
	return len(w.waiting) > 0 && now.Sub(w.since) >= d
}

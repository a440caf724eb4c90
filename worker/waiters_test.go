package worker

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestWaits checks that a call waits until its condition holds, its context ends, or an error ends all waits.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		w := waiters{Mu: &mu}
		start := func(ctx context.Context, ready *bool) chan error {
			done := make(chan error, 1)
			go func() {
				mu.Lock()
				defer mu.Unlock()
				done <- w.Until(ctx, func() (bool, error) { return *ready, nil })
			}()
			synctest.Wait()
			return done
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var now, never bool
		first, second, third := start(t.Context(), &now), start(short, &never), start(t.Context(), &never)
		mu.Lock()
		now = true
		w.Wake()
		mu.Unlock()
		if err := <-first; err != nil {
			t.Errorf("what it asked for is so: %v", err)
		}
		if err := <-second; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("its context has ended: %v", err)
		}
		mu.Lock()
		if !w.WaitingFor(time.Second, time.Now()) || w.WaitingFor(2*time.Second, time.Now()) {
			t.Error("one waits, for a second")
		}
		began := time.Now()
		if err := w.Pause(t.Context(), time.Second); err != nil || time.Since(began) != time.Second {
			t.Errorf("a pause of %v: %v", time.Since(began), err)
		}
		w.Err = errors.New("over")
		w.Wake()
		mu.Unlock()
		if err := <-third; !errors.Is(err, w.Err) {
			t.Errorf("all is over: %v", err)
		}
	})
}

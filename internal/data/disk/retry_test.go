package disk

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestRetry checks which errors are retried, how often, and how long that takes.
func TestRetry(t *testing.T) {
	broken, gone := errors.New("broken"), errors.New("gone")
	full := fmt.Errorf("write: %w", syscall.ENOSPC)
	for name, c := range map[string]struct {
		errs  []error // of successive attempts; later ones succeed
		tries int     // expected number of attempts
		want  error
	}{
		"it succeeds":                   {nil, 1, nil},
		"it succeeds in the end":        {[]error{broken, broken}, 3, nil},
		"it does not":                   {[]error{broken, broken, broken, broken}, 3, broken},
		"a full disk does not count":    {[]error{full, full, full, full, full}, 6, nil},
		"nor after other errors":        {[]error{broken, broken, full, full}, 5, nil},
		"another error after many does": {[]error{full, full, full, broken}, 4, broken},
		"one that cannot be helped":     {[]error{broken, gone}, 2, gone},
	} {
		synctest.Test(t, func(t *testing.T) {
			tried := 0
			r := Retry{
				MaxAttempts: 3, Pause: time.Second,
				Permanent: func(err error) bool { return errors.Is(err, gone) },
			}
			start := time.Now()
			err := r.Do(t.Context(), func() error {
				if tried++; tried <= len(c.errs) {
					return c.errs[tried-1]
				}
				return nil
			})
			if !errors.Is(err, c.want) || tried != c.tries {
				t.Errorf("%s: %v after %d tries; want %v after %d", name, err, tried, c.want, c.tries)
			}
			if took := time.Since(start); took != time.Duration(c.tries-1)*r.Pause {
				t.Errorf("%s: %d tries took %v", name, tried, took)
			}
		})
	}
}

// TestRetryEnds: Do stops during a pause, and does not retry once over reports true.
func TestRetryEnds(t *testing.T) {
	full := fmt.Errorf("write: %w", syscall.ENOSPC)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		tried := 0
		err := Retry{Pause: time.Second}.Do(ctx, func() error { tried++; return full })
		if tried != 3 || !IsFull(err) {
			t.Errorf("%v after %d tries in 2.5 s; want 3 tries", err, tried)
		}
		tried = 0
		start := time.Now()
		over := func(error) bool { return time.Since(start) >= 1500*time.Millisecond }
		err = Retry{Pause: time.Second, Permanent: over}.Do(t.Context(), func() error { tried++; return full })
		if tried != 2 || !IsFull(err) {
			t.Errorf("%v after %d tries, although it was over after 1.5 s; want 2 tries", err, tried)
		}
	})
}

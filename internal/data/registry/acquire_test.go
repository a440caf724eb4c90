package registry_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure/internal/data/registry"
)

// moody is a registry whose Acquire fails while refuses returns an error.
type moody struct {
	*registry.Memory
	refuses func() error
}

func (m moody) Acquire(ctx context.Context, h registry.Holder) (registry.Lease, error) {
	if err := m.refuses(); err != nil {
		return nil, err
	}
	return m.Memory.Acquire(ctx, h)
}

// TestTake checks that AcquireWait waits for the lease of a possibly dead holder and for an unavailable registry, and
// fails if the lease certainly belongs to a live process: immediately, or after the waiting time.
func TestTake(t *testing.T) {
	held := &registry.LingeringLeaseError{Err: registry.ErrHeld, ExpiresWithin: 10 * time.Second}
	between := func(from, until time.Duration, err error) func(time.Duration) error {
		return func(at time.Duration) error {
			if from <= at && at < until {
				return err
			}
			return nil
		}
	}
	for _, c := range []struct {
		name  string
		why   func(at time.Duration) error
		after time.Duration
		want  error
		told  string
	}{
		{"free", between(0, 0, nil), 0, nil, ""},
		{"of the dead", between(0, 2500*time.Millisecond, held), 2500 * time.Millisecond, nil, "held"},
		{"of the living", between(0, time.Hour, held), 10 * time.Second, registry.ErrHeld, "held"},
		{"held, and not for a while", between(0, time.Hour, registry.ErrHeld), 0, registry.ErrHeld, ""},
		{"away", between(0, time.Minute, registry.ErrUnavailable), time.Minute, nil, "away"},
		{"away, then of the dead", func(at time.Duration) error {
			switch {
			case at < 9*time.Second || at >= time.Minute && at < 69*time.Second:
				return held
			case at < time.Minute:
				return registry.ErrUnavailable
			}
			return nil
		}, 69 * time.Second, nil, "held away held"},
		{
			"until it ends", between(0, time.Hour, registry.ErrUnavailable), 30 * time.Minute,
			context.DeadlineExceeded, "away",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
				defer cancel()
				r := moody{registry.NewMemory(), func() error { return c.why(time.Since(began)) }}
				var sent []string
				l, err := registry.AcquireWait(ctx, r, registry.Self(), func(err error) {
					sent = append(sent, map[bool]string{true: "held", false: "away"}[errors.Is(err, registry.ErrHeld)])
				})
				if !errors.Is(err, c.want) || (err == nil) != (l != nil) {
					t.Errorf("got lease %v, error %v", l, err)
				}
				if took := time.Since(began); took < c.after || took > c.after+200*time.Millisecond {
					t.Errorf("took %v, want %v", took, c.after)
				}
				if got := strings.Join(sent, " "); got != c.told {
					t.Errorf("waiting was called with %q, want %q", got, c.told)
				}
			})
		})
	}
}

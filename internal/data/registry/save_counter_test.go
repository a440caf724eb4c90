package registry_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure/internal/data/registry"
)

// slow is a registry whose saves take a second, and fail on request.
type slow struct {
	registry.Registry
	fails error
}

func (s *slow) Acquire(context.Context, registry.Holder) (registry.Lease, error) {
	return slowLease{s}, nil
}

type slowLease struct{ *slow }

func (l slowLease) Save(context.Context, []byte, uint64) (uint64, error) {
	<-time.After(time.Second)
	return 1, l.fails
}

func (slowLease) Done() <-chan struct{} { return nil }
func (slowLease) Release() error        { return nil }

// TestCounted checks the counts of saves, and the reported duration of a save in progress.
func TestCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{}
		c := registry.CountSaves(s)
		l, err := c.Acquire(t.Context(), registry.Self())
		if err != nil {
			t.Fatal(err)
		}
		save := func(fails error) {
			s.fails = fails
			if _, err := l.Save(t.Context(), nil, 0); !errors.Is(err, fails) {
				t.Errorf("Save returned %[2]v, want %[1]v", fails, err)
			}
		}
		want := func(w registry.SaveStats) {
			t.Helper()
			if got := c.Stats(); got != w {
				t.Errorf("got counts %+v, want %+v", got, w)
			}
		}
		save(nil)
		want(registry.SaveStats{Saves: 1, TotalDuration: time.Second})
		save(errors.New("no room"))
		save(errors.New("no room"))
		want(
			registry.SaveStats{
				Saves: 1, Failures: 2, TotalDuration: time.Second, PendingFor: 2 * time.Second,
				LastError: "no room",
			},
		)
		save(nil)
		want(registry.SaveStats{Saves: 2, Failures: 2, TotalDuration: 2 * time.Second})
		save(registry.ErrLost) // ErrLost is not retried
		want(
			registry.SaveStats{
				Saves: 2, Failures: 3, TotalDuration: 2 * time.Second,
				LastError: registry.ErrLost.Error(),
			},
		)
	})
}

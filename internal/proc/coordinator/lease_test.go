package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/testcluster"
)

// TestLease checks that a second coordinator on one registry does not start and names the first one. A coordinator that
// loses its lease ends and saves nothing afterwards, and then another one can continue.
func TestLease(t *testing.T) {
	ctx, h := testcluster.NewForTest(t, time.Minute, testcluster.Options{Ended: func(*testcluster.Process, error) {}})
	start := membership.NewJobRecord(testcluster.Job("bsp", "none", 1, 1, 1), 1, 0, nil)
	life := func(host string, r registry.Registry) (*testcluster.Process, *coordinator.Coordinator, error) {
		p := h.NewProcess(host)
		c, err := p.NewCoordinator(start, func(cfg *coordinator.Config) { cfg.Registry = r })
		return p, c, err
	}
	first := registry.NewMemory()
	p, c, err := life("first", first)
	if err != nil {
		t.Fatal(err)
	}
	second := first.NewClient()
	_, _, err = life("second", second)
	if !errors.Is(err, registry.ErrHeld) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d on ", os.Getpid())) {
		t.Errorf("the second coordinator returned %v", err)
	}

	p.Go(c.Run)
	if err := c.Ask(ctx, func(*membership.Core, coordinator.Latest) {}); err != nil {
		t.Fatal(err) // it is running
	}
	first.Expire()
	if err := p.Wait(); !errors.Is(err, registry.ErrLost) || !errors.Is(err, perdure.ErrFenced) {
		t.Errorf("it ended with %v after losing its lease", err)
	}
	if err := c.Save(ctx); !errors.Is(err, registry.ErrLost) || !errors.Is(err, perdure.ErrFenced) {
		t.Errorf("saving without the lease returned %v", err)
	}

	other := start
	other.Job.ID += "-other"
	third := second.NewClient()
	_, err = h.NewProcess("third").NewCoordinator(other, func(cfg *coordinator.Config) { cfg.Registry = third })
	if !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("a coordinator of another job starts from the facts of this one: %v", err)
	}
	third.Expire() // its process has ended

	if p, c, err = life("second", second); err != nil {
		t.Fatal(err)
	}
	p.Go(c.Run)
	p.Stop()
	if err := p.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("the second coordinator ended with %v", err)
	}
}

// absent is a registry that does not answer while away is set.
type absent struct {
	registry.Registry
	away *atomic.Bool
}

func (a absent) Acquire(ctx context.Context, h registry.Holder) (registry.Lease, error) {
	if a.away.Load() {
		return nil, registry.ErrUnavailable
	}
	l, err := a.Registry.Acquire(ctx, h)
	return absentLease{l, a.away}, err
}

type absentLease struct {
	registry.Lease
	away *atomic.Bool
}

func (a absentLease) Save(ctx context.Context, doc []byte, previous uint64) (uint64, error) {
	if a.away.Load() {
		return 0, registry.ErrUnavailable
	}
	return a.Lease.Save(ctx, doc, previous)
}

// TestRegistryAway checks that a coordinator waits for an unavailable registry without limit, at its start and when it
// saves, and continues when the registry is back.
func TestRegistryAway(t *testing.T) {
	const while = time.Minute
	testcluster.RunVirtual(
		t,
		time.Hour,
		testcluster.Options{Ended: func(*testcluster.Process, error) {}},
		func(t *testing.T, ctx context.Context,
			h *testcluster.Hosts,
		) {
			var away atomic.Bool
			leave := func() (back func()) {
				away.Store(true)
				left := time.Now()
				time.AfterFunc(while, func() { away.Store(false) })
				return func() {
					if took := time.Since(left); took < while || took > while+2*time.Second {
						t.Errorf("it continued after %v; the registry was unavailable for %v", took, while)
					}
				}
			}
			back := leave()
			p := h.NewProcess("coordinator")
			start := membership.NewJobRecord(testcluster.Job("bsp", "none", 1, 1, 1), 1, 0, nil)
			c, err := p.NewCoordinator(start, func(cfg *coordinator.Config) {
				cfg.Registry = absent{registry.NewMemory(), &away}
			})
			if err != nil {
				t.Fatal(err)
			}
			back()
			p.Go(c.Run)
			back = leave()
			c.Occupy(ctx, func() { err = c.Save(ctx) })
			if asked := c.Ask(ctx, func(*membership.Core, coordinator.Latest) {}); asked != nil || err != nil {
				t.Fatalf("it ended: %v, %v", asked, err)
			}
			back()
			p.Stop()
			if err := p.Wait(); !errors.Is(err, context.Canceled) {
				t.Errorf("it ended with %v", err)
			}
		},
	)
}

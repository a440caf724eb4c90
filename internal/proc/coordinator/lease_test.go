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
	"github.com/perdure/perdure/internal/rig"
)

// TestLease: of two coordinators on one registry the second does not begin, and
// says who is there; one whose lease is taken away ends by itself, having saved
// nothing after that; then another can go on.
func TestLease(t *testing.T) {
	ctx, h := rig.For(t, time.Minute, rig.Options{Ended: func(*rig.Process, error) {}})
	begin := membership.Begin(rig.Job("bsp", "none", 1, 1, 1), 1, 0, nil)
	life := func(host string, r registry.Registry) (*rig.Process, *coordinator.Coordinator, error) {
		p := h.Life(host)
		c, err := p.Coordinator(begin, func(cfg *coordinator.Config) { cfg.Registry = r })
		return p, c, err
	}
	first := registry.NewMemory()
	p, c, err := life("first", first)
	if err != nil {
		t.Fatal(err)
	}
	second := first.Another()
	_, _, err = life("second", second)
	if !errors.Is(err, registry.ErrHeld) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d on ", os.Getpid())) {
		t.Errorf("a second coordinator gets %v", err)
	}

	p.Go(c.Run)
	if err := c.Ask(ctx, func(*membership.Core, coordinator.Latest) {}); err != nil {
		t.Fatal(err) // it runs
	}
	first.Expire()
	if err := p.Wait(); !errors.Is(err, registry.ErrLost) || !errors.Is(err, perdure.ErrFenced) {
		t.Errorf("without its lease it ends with %v", err)
	}
	if err := c.Save(ctx); !errors.Is(err, registry.ErrLost) || !errors.Is(err, perdure.ErrFenced) {
		t.Errorf("without its lease it saves: %v", err)
	}

	other := begin
	other.Job.ID += "-other"
	third := second.Another()
	_, err = h.Life("third").Coordinator(other, func(cfg *coordinator.Config) { cfg.Registry = third })
	if !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("a coordinator of another job begins with the facts of this one: %v", err)
	}
	third.Expire() // its process has ended

	if p, c, err = life("second", second); err != nil {
		t.Fatal(err)
	}
	p.Go(c.Run)
	p.Stop()
	if err := p.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("the second ends with %v", err)
	}
}

// absent is a registry that does not answer while it is away.
type absent struct {
	registry.Registry
	away *atomic.Bool
}

func (a absent) Acquire(ctx context.Context, h registry.Holder) (registry.Lease, error) {
	if a.away.Load() {
		return nil, registry.ErrAway
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
		return 0, registry.ErrAway
	}
	return a.Lease.Save(ctx, doc, previous)
}

// TestRegistryAway: a coordinator waits for a registry that is away, however long, when it begins and when it is to
// save, and goes on when that is back.
func TestRegistryAway(t *testing.T) {
	const while = time.Minute
	rig.In(t, time.Hour, rig.Options{Ended: func(*rig.Process, error) {}}, func(t *testing.T, ctx context.Context,
		h *rig.Hosts,
	) {
		var away atomic.Bool
		leave := func() (back func()) {
			away.Store(true)
			left := time.Now()
			time.AfterFunc(while, func() { away.Store(false) })
			return func() {
				if took := time.Since(left); took < while || took > while+2*time.Second {
					t.Errorf("it went on after %v; the registry was away for %v", took, while)
				}
			}
		}
		back := leave()
		p := h.Life("coordinator")
		begin := membership.Begin(rig.Job("bsp", "none", 1, 1, 1), 1, 0, nil)
		c, err := p.Coordinator(begin, func(cfg *coordinator.Config) {
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
			t.Fatalf("it ends: %v, %v", asked, err)
		}
		back()
		p.Stop()
		if err := p.Wait(); !errors.Is(err, context.Canceled) {
			t.Errorf("it ends with %v", err)
		}
	})
}

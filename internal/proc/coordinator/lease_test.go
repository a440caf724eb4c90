package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

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
	if err := p.Wait(); !errors.Is(err, registry.ErrLost) {
		t.Errorf("without its lease it ends with %v", err)
	}
	if err := c.Save(ctx); !errors.Is(err, registry.ErrLost) {
		t.Errorf("without its lease it saves: %v", err)
	}

	if p, c, err = life("second", second); err != nil {
		t.Fatal(err)
	}
	p.Go(c.Run)
	p.Stop()
	if err := p.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("the second ends with %v", err)
	}
}

package coordinator_test

import (
	"context"
	"errors"
	"fmt"
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

// TestLookAway checks that Look answers promptly while the registry is unavailable. It shows the current state, only
// saved facts as facts, and how long and why the loop has been waiting. A caller that has given up sees nothing. When
// the registry is back, everything is as before.
func TestLookAway(t *testing.T) {
	withRegistry(t, func(t *testing.T, ctx context.Context, c *coordinator.Coordinator, away *atomic.Bool) {
		sees := func(tables, known int, waits time.Duration, why string) {
			t.Helper()
			seesSoon(ctx, t, c, tables, known, waits, why)
		}
		sees(0, 0, 0, "")
		away.Store(true)
		const while = time.Minute
		time.AfterFunc(while, func() { away.Store(false) })
		table := perdure.TableSpec{
			Name: "weights", Rows: 8, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd},
			Consistency: perdure.Consistency{Kind: perdure.BSP},
		}
		var err error
		asked := c.Ask(ctx, func(core *membership.Core, _ coordinator.Latest) { err = core.AddTable(table) })
		if asked != nil || err != nil {
			t.Fatal(asked, err)
		}
		sees(0, 1, time.Millisecond, "no answer")
		for range 3000 { // more than the inbox can hold
			go c.Occupy(ctx, func() {})
		}
		<-time.After(20 * time.Second)
		for range 3 {
			sees(0, 1, 20*time.Second, "no answer")
		}
		soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		if err := c.Inspect(soon, func(*coordinator.Snapshot) {
			t.Error("a caller that had given up was answered")
		}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller that gives up gets %v", err)
		}
		<-time.After(while)
		sees(1, 1, 0, "")
	})
}

// TestAskSaved checks that AskSaved returns after the registry has the effects, and Ask earlier. Until then, Inspect
// does not show them as saved.
func TestAskSaved(t *testing.T) {
	withRegistry(t, func(t *testing.T, ctx context.Context, c *coordinator.Coordinator, away *atomic.Bool) {
		for i := range 2 {
			away.Store(true)
			time.AfterFunc(time.Minute, func() { away.Store(false) })
			began := time.Now()
			table := perdure.TableSpec{
				Name: fmt.Sprintf("weights-%d", i), Rows: 8, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd},
				Consistency: perdure.Consistency{Kind: perdure.BSP},
			}
			var asked, err error
			add := func(core *membership.Core, _ coordinator.Latest) { err = core.AddTable(table) }
			if i == 0 {
				asked = c.Ask(ctx, add)
			} else {
				asked = coordinator.AskSaved(ctx, c, add)
			}
			if took := time.Since(began); asked != nil || err != nil || (took >= time.Minute) != (i == 1) {
				t.Errorf("call %d returned after %v: %v, %v", i, took, asked, err)
			}
			seesSoon(ctx, t, c, i*2, i+1, time.Duration(1-i)*time.Millisecond, "no answer")
			<-time.After(time.Minute)
		}
	})
}

// withRegistry runs a function in virtual time with a coordinator whose registry is unavailable while away is set.
func withRegistry(t *testing.T, f func(*testing.T, context.Context, *coordinator.Coordinator, *atomic.Bool)) {
	t.Helper()
	testcluster.RunVirtual(
		t,
		time.Hour,
		testcluster.Options{Ended: func(*testcluster.Process, error) {}},
		func(t *testing.T, ctx context.Context, h *testcluster.Hosts) {
			var away atomic.Bool
			start := membership.NewJobRecord(testcluster.Job("bsp", "none", 1, 1, 1), 1, 0, nil)
			p := h.NewProcess("coordinator")
			c, err := p.NewCoordinator(start, func(cfg *coordinator.Config) {
				cfg.Registry = absent{registry.NewMemory(), &away}
			})
			if err != nil {
				t.Fatal(err)
			}
			p.Go(c.Run)
			f(t, ctx, c, &away)
			p.Stop()
			if err := p.Wait(); !errors.Is(err, context.Canceled) {
				t.Errorf("it ended with %v", err)
			}
		},
	)
}

// seesSoon checks that Look promptly shows the given numbers of saved and known tables, and the duration and reason of
// the wait.
func seesSoon(ctx context.Context, t *testing.T, c *coordinator.Coordinator, tables, known int, waits time.Duration,
	why string,
) {
	t.Helper()
	began := time.Now()
	err := c.Inspect(ctx, func(s *coordinator.Snapshot) {
		if n := len(s.Facts.View.Tables); n != tables {
			t.Errorf("it shows %d tables; %d are saved", n, tables)
		}
		if n := len(s.Core.Record().View.Tables); n != known {
			t.Errorf("it knows %d tables; want %d", n, known)
		}
		switch w := s.RegistryWait; {
		case w == nil && waits > 0, w != nil && waits == 0:
			t.Errorf("the wait is %v; want %v", w, waits)
		case w != nil && (w.Duration < waits || w.Duration > waits+time.Second || !strings.Contains(w.LastError, why)):
			t.Errorf("the wait is %v, %q; want %v, %q", w.Duration, w.LastError, waits, why)
		}
	})
	if took := time.Since(began); err != nil || took > time.Second/2 {
		t.Errorf("seen after %v: %v", took, err)
	}
}

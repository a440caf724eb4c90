package role

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/testcluster"
)

// absent is a registry that saves nothing while it is unavailable.
type absent struct {
	registry.Registry
	away *atomic.Bool
}

func (a absent) Acquire(ctx context.Context, h registry.Holder) (registry.Lease, error) {
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

// TestStatusAway checks that status and view arrive within one second together while the registry is unavailable. They
// show since when it is, and nothing that is not recorded. Changes wait.
func TestStatusAway(t *testing.T) {
	testcluster.RunVirtual(
		t,
		time.Hour,
		testcluster.Options{Ended: func(*testcluster.Process, error) {}},
		func(t *testing.T, ctx context.Context,
			h *testcluster.Hosts,
		) {
			var away atomic.Bool
			job := testcluster.Job("bsp", "none", 2, 1, 1)
			p := h.NewProcess("coordinator")
			co, err := p.NewCoordinator(membership.NewJobRecord(job, 1, 0, nil), func(cfg *coordinator.Config) {
				cfg.Registry = absent{registry.NewMemory(), &away}
			})
			if err != nil {
				t.Fatal(err)
			}
			p.Go(co.Run)
			b := &backend{co: co, began: time.Now()}
			look := func() (control.Status, protocol.View) {
				t.Helper()
				began := time.Now()
				s, err := b.Status(ctx)
				v, errView := b.View(ctx)
				if took := time.Since(began); errors.Join(err, errView) != nil || took > time.Second {
					t.Fatalf("after %v: %v", took, errors.Join(err, errView))
				}
				return s, v
			}
			<-time.After(settleFor)
			before, viewBefore := look()
			away.Store(true)
			if err := co.Ask(ctx, func(core *membership.Core, _ coordinator.Latest) {
				core.Join(membership.Worker, 0, membership.Applicant{Process: "w", PID: 7}) // this creates a place
			}); err != nil {
				t.Fatal(err)
			}
			<-time.After(10 * time.Second)
			s, v := look()
			if a := s.RegistryAway; a == nil || a.Seconds < 10 || a.Seconds > 11 ||
				a.Why != registry.ErrUnavailable.Error() {
				t.Errorf("registry status: %+v", a)
			}
			of := func(s *control.Status) control.Process { return s.Processes[len(s.Processes)-2] }
			if got := of(&s); got.PID != 0 || got.Incarnation != 0 || v.Revision != viewBefore.Revision {
				t.Errorf("shows an unrecorded state: %+v, view %d after %d", got, v.Revision, viewBefore.Revision)
			}
			soon, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			if _, err := b.Scale(soon, control.Scale{Workers: 3}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a change during the outage: %v", err)
			}
			away.Store(false)
			<-time.After(2 * time.Second)
			after, viewAfter := look()
			if got := of(&after); before.RegistryAway != nil || after.RegistryAway != nil || got.PID != 7 ||
				viewAfter.Revision <= viewBefore.Revision {
				t.Errorf("after the outage: %+v, view %d after %d, away %v and %v", got, viewAfter.Revision,
					viewBefore.Revision, before.RegistryAway, after.RegistryAway)
			}
			p.Stop()
			if err := p.Wait(); !errors.Is(err, context.Canceled) {
				t.Errorf("ended with %v", err)
			}
		},
	)
}

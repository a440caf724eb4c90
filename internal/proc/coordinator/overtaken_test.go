package coordinator_test

import (
	"context"
	"errors"
	"io"
	"path"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/testcluster"
)

// heldStore delays the first manifest that is put into it until release is closed.
type heldStore struct {
	store.Store
	first   atomic.Bool // a manifest has been put
	held    chan struct{}
	release chan struct{}
}

func (s *heldStore) Put(name string, write func(io.Writer) error) error {
	if path.Ext(name) == ".manifest" && s.first.CompareAndSwap(false, true) {
		close(s.held)
		<-s.release
	}
	return s.Store.Put(name, write)
}

// TestOvertakenManifest checks a manifest that reaches the store only after a rollback, when checkpoints of the next
// generation are durable and have pruned its segments. The coordinator deletes it, even if its loop has ended by then,
// so every checkpoint in the store is complete.
func TestOvertakenManifest(t *testing.T) {
	for when, ended := range map[string]bool{"while the loop runs": false, "after the loop has ended": true} {
		t.Run(when, func(t *testing.T) {
			testcluster.RunVirtual(t, time.Hour, testcluster.Options{Ended: func(*testcluster.Process, error) {}},
				func(t *testing.T, ctx context.Context, h *testcluster.Hosts) { overtake(t, ctx, h, ended) })
		})
	}
}

// overtake runs a job that rolls back while its first manifest is held, and releases the manifest before or after the
// coordinator's loop ends.
func overtake(t *testing.T, ctx context.Context, h *testcluster.Hosts, ended bool) {
	job := testcluster.Job("bsp", "checkpoint:2", 1, 1, 1)
	job.Clocks = 6
	var s *heldStore
	leader, err := h.StartCoordinator(job, func(cfg *coordinator.Config) {
		s = &heldStore{Store: cfg.Store, held: make(chan struct{}), release: make(chan struct{})}
		cfg.Store = s
	})
	if err != nil {
		t.Fatal(err)
	}
	h.StartServer("server:0")
	w, err := h.NewProcess("worker:0").Dial(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	table, err := w.Table(ctx, perdure.TableSpec{Name: "t", Rows: 1, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd}})
	if err != nil {
		t.Fatal(err)
	}
	killed := false
	for clock := w.Now(); clock < w.End(); {
		if clock == 3 && !killed {
			killed = true
			<-s.held
			h.Kill("server:0")
			h.StartServer("server:0")
		}
		if err := table.Inc(0, []float32{1}); err != nil && !errors.Is(err, perdure.ErrRolledBack) {
			t.Fatal(err)
		}
		if clock, err = w.Clock(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(ctx); err != nil {
		t.Fatal(err)
	}
	<-time.After(time.Minute) // the last checkpoint is durable, and the store is pruned
	if ended {
		leader.Stop()
		<-time.After(time.Minute)
	}
	close(s.release)
	<-time.After(time.Minute)
	found, err := checkpoint.List(s.Store)
	if err != nil || len(found.Checkpoints) != 1 || found.Checkpoints[0].Cut != job.Clocks ||
		!found.Checkpoints[0].IsComplete() {
		t.Errorf("the store has %d checkpoints (%v), want one complete checkpoint of clock %d", len(found.Checkpoints),
			err, job.Clocks)
	}
}

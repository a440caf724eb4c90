package coordinator_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/transport"
)

// rig is a coordinator on a network in memory, at coordinator/1. The test connects whoever is
// to talk to it.
type rig struct {
	*coordinator.Coordinator
	mem   *transport.Memory
	ended chan error // why it has ended
	stop  func()     // ends it, and waits for that
}

// start runs a coordinator of a job that begins. The rest of its settings may be changed
// before.
func start(t *testing.T, job perdure.JobSpec, change ...func(cfg *coordinator.Config)) *rig {
	t.Helper()
	return startOn(t, transport.NewMemory(1, transport.MemoryOptions{}), job, change...)
}

// startOn runs one on a network that there is.
func startOn(t *testing.T, mem *transport.Memory, job perdure.JobSpec, change ...func(cfg *coordinator.Config)) *rig {
	t.Helper()
	begin := membership.Begin(job, 1, 0, nil)
	cfg := coordinator.Config{Registry: registry.NewMemory(), Begin: &begin, Log: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&cfg)
	}
	r := &rig{mem: mem, ended: make(chan error, 1)}
	var err error
	if cfg.Listener, err = mem.Host("coordinator").Listen("coordinator/1"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if r.Coordinator, err = coordinator.New(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.ended <- r.Run(ctx)
	}()
	r.stop = func() { cancel(); <-done }
	return r
}

package coordinator_test

import (
	"context"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/testcluster"
)

// lone is a coordinator without other processes. The test connects its peers.
type lone struct {
	*coordinator.Coordinator
	*testcluster.Hosts
	process *testcluster.Process
}

// inJob runs a test in virtual time with the coordinator of a new job. change may modify its configuration. The
// coordinator may end by itself.
func inJob(t *testing.T, job perdure.JobSpec, test func(t *testing.T, on *lone), change ...func(*coordinator.Config)) {
	t.Helper()
	o := testcluster.Options{Seed: 1, Ended: func(*testcluster.Process, error) {}}
	testcluster.RunVirtual(t, time.Hour, o, func(t *testing.T, _ context.Context, h *testcluster.Hosts) {
		on := &lone{Hosts: h}
		on.start(t, job, change...)
		test(t, on)
	})
}

// start starts the coordinator, also after it has ended.
func (on *lone) start(t *testing.T, job perdure.JobSpec, change ...func(*coordinator.Config)) {
	t.Helper()
	var err error
	if on.process, err = on.StartCoordinator(job, change...); err != nil {
		t.Fatal(err)
	}
	on.Coordinator = on.Leader()
}

package runs

import (
	"math"
	"testing"

	"github.com/perdure/perdure/internal/run/rundir"
)

// TestUsed checks that a machine taken away by a planned fault does not count until it is replaced or the run ends.
func TestUsed(t *testing.T) {
	r := &Run{Summary: &rundir.Summary{
		WallSeconds: 20, Servers: 2, Workers: 3,
		Usage: map[string]rundir.RoleUsage{"worker": {CPUSeconds: 7}},
		TimeSplit: &rundir.TimeSplit{Workers: []rundir.WorkerTime{
			{StalenessS: 1, CommunicationS: 2}, {StalenessS: 4, CommunicationS: 8},
		}},
		Failures: []rundir.Failure{
			{Kind: "kill", Target: "server:1", AtSeconds: 2},   // by clock, for 3 s
			{Kind: "kill", Target: "worker:0", AtSeconds: 5},   // of all workers
			{Kind: "kill", Target: "worker:2", AtSeconds: 5.1}, // of all workers
			{Kind: "freeze", Target: "server:0", AtSeconds: 6}, // does not remove the machine
			{Kind: "death", Target: "server:0", AtSeconds: 7},  // not planned
			{Kind: "term", Target: "server:1", AtSeconds: 16},  // until the end
			{Kind: "kill", Target: "server:1", AtSeconds: 19},  // replaced immediately
		},
	}}
	r.Settings.Faults = []string{
		"term:server:1@16s+1h", "kill:server:1@clock:10+3s", "kill:worker:*@5s+2s", "freeze:server:0@6s+2s",
		"kill:server:1@18s",
	}
	u := r.used()
	server, worker := u.Roles["server"], u.Roles["worker"]
	if server.Machines != 2 || math.Abs(server.Absent-7) > 1e-9 {
		t.Errorf("servers %+v", server)
	}
	if worker.Machines != 3 || math.Abs(worker.Absent-4) > 1e-9 || worker.Waiting != 15 || worker.CPU != 7 {
		t.Errorf("workers %+v", worker)
	}
	if u.Roles["coordinator"].Machines != 1 || u.Puts != 0 || u.Seconds != 20 {
		t.Errorf("%+v", u)
	}
	if r.Cost(nil) != nil {
		t.Error("a bill without prices")
	}
}

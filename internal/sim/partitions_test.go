package sim_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/sim"
)

// TestRifts partitions a worker and a server, or two servers, permanently while both reach the coordinator. The job
// must still end with all guarantees kept.
func TestRifts(t *testing.T) { runSeeds(t, drawLastingPartition) }

// TestRiftsControl checks that jobs stall until their deadline unless the coordinator resolves partitions.
func TestRiftsControl(t *testing.T) {
	stood := 0
	const tries = 10
	for seed := range uint64(tries) {
		s, rng := drawLastingPartition(seed)
		if err := run(t, seed, s, rng, func(o *sim.Options) { o.Mutations.Partitions = true }); err != nil {
			if !strings.Contains(err.Error(), forever) {
				t.Errorf("seed %d: %v", seed, err)
			}
			stood++
		}
	}
	if stood == 0 {
		t.Errorf("none of %d jobs stalled", tries)
	}
}

// drawLastingPartition draws a job of replicated shards without deaths.
func drawLastingPartition(seed uint64) (scenario, *rand.Rand) {
	s, rng := drawChain(seed)
	more := rand.New(rand.NewPCG(seed, 24))
	s.calm()
	s.job.Servers = max(s.job.Servers, 3)
	s.job.Shards = max(s.job.Shards, s.job.Servers)
	s.pace = max(s.pace, time.Duration(1+more.IntN(60))*time.Millisecond)
	s.rift, s.parent = true, false // no process is restarted on the same host
	return s, rng
}

// planLastingPartition plans a partition that lasts until the end.
func (f *faults) planLastingPartition(rng *rand.Rand) {
	if !f.s.rift {
		return
	}
	to := rng.IntN(f.s.job.Servers)
	from := fmt.Sprintf("worker:%d", rng.IntN(f.s.job.Slots))
	if other := rng.IntN(f.s.job.Servers); rng.IntN(2) == 0 && other != to {
		from = fmt.Sprintf("server:%d", other)
	}
	f.at(span(rng, clocks*f.s.pace), func() {
		f.c.Partition(from, fmt.Sprintf("server:%d", to), rng.IntN(2) == 0, time.Hour)
	})
}

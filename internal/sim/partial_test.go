package sim_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/sim"
)

// TestPartial checks jobs that count updates without a copy as lost and never roll back. A promised update that a read
// lacks is lost and never appears later. Exactly the counted updates are missing.
func TestPartial(t *testing.T) { runSeeds(t, drawPartial) }

// TestPartialRosters is TestPartial while workers join and leave.
func TestPartialRosters(t *testing.T) { runSeeds(t, drawScaled(drawPartial)) }

// TestPartialOutages is TestPartial while workers continue during a shard's outage.
func TestPartialOutages(t *testing.T) { runOutages(t, drawPartial) }

// drawPartial draws jobs in which workers resend updates and lost updates cause no rollback. Workers and servers die,
// often together.
func drawPartial(seed uint64) (scenario, *rand.Rand) {
	s, rng := drawResend(seed)
	more := rand.New(rand.NewPCG(seed, 16))
	s.job.Recovery.Partial, s.onlyServers = true, false
	s.job.Slots = max(s.job.Slots, 1+more.IntN(3))
	if !s.job.NoReplace {
		s.boths = 1 + more.IntN(5)
	}
	if more.IntN(2) == 0 {
		s.pace = time.Duration(1+more.IntN(20)) * time.Millisecond
	}
	return s, rng
}

// planJointDeaths plans deaths of a worker and of servers shortly after one another, and perhaps of their replacements.
func (f *faults) planJointDeaths(rng *rand.Rand) {
	for range f.s.boths {
		host := fmt.Sprintf("worker:%d", rng.IntN(f.s.job.Slots))
		lost := f.servers[:f.s.job.Servers]
		if rng.IntN(4) > 0 {
			lost = []string{one(rng, lost)}
		}
		soon, pause, late := span(rng, 30*time.Millisecond), span(rng, f.s.pause), span(rng, f.s.pause)
		again, first := rng.IntN(3), rng.IntN(2) == 0
		deaths := []func(){func() { f.kill(pause, host) }, func() { f.kill(late, lost...) }}
		if first {
			deaths[0], deaths[1] = deaths[1], deaths[0]
		}
		f.at(span(rng, clocks*(4*time.Millisecond+f.s.pace)), func() {
			deaths[0]()
			f.at(soon, deaths[1])
			for n := range again {
				f.at(soon+time.Duration(n+1)*f.s.pause, deaths[n])
			}
		})
	}
}

// finalSaved checks the rows of a job's last checkpoint. If lost updates are only counted, there was no rollback and
// exactly the counted updates are missing.
func finalSaved(
	record *membership.JobRecord, h *sim.History, m *checkpoint.Manifest, tables map[string]sim.Contents,
) error {
	if !recovery.Of(record.Job.Recovery).Traits().Partial {
		return h.Final(tables, nil)
	}
	if record.View.Generation > 1 {
		return &sim.Violation{Text: fmt.Sprintf("unexpected rollback to clock %d", record.View.Cut)}
	}
	if sum := total(record.ShardLost); sum != record.UpdatesLost {
		return &sim.Violation{Text: fmt.Sprintf("%d updates are counted as lost, %d by shard", record.UpdatesLost, sum)}
	}
	for i, seg := range m.Segments {
		if missing := record.SlotClocks(record.View.End) - int64(seg.Seq); missing != record.ShardLost[i] {
			return &sim.Violation{Text: fmt.Sprintf("shard %d reports %d lost updates, but the registry %d", i,
				missing, record.ShardLost[i])}
		}
	}
	return h.Final(tables, record.ShardLost)
}

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

// Where what nobody has kept only counts nobody goes back, whoever dies: what a read lacks that
// was promised is lost, no lost update comes later, and exactly those are missing that are counted.
func TestPartial(t *testing.T) { runSeeds(t, drawPartial) }

// The same where workers join and leave, too.
func TestPartialRosters(t *testing.T) { runSeeds(t, drawRoster(drawPartial)) }

// The same where workers go on while a shard is out.
func TestPartialOutages(t *testing.T) { runOutages(t, drawPartial) }

// drawPartial makes a scenario of shards whose updates workers send again, and in which
// nobody goes back for what nobody has kept. Workers and servers die, often together.
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

// planBoths plans deaths of a worker and of servers, one soon after the other, and perhaps of
// their next processes.
func (f *faults) planBoths(rng *rand.Rand) {
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

// finalSaved judges the rows of a job's last checkpoint. Where what nobody has kept only counts,
// nobody has gone back, and exactly those updates are missing that are counted.
func finalSaved(
	facts *membership.Facts, h *sim.History, m *checkpoint.Manifest, tables map[string]sim.Contents,
) error {
	if !recovery.Of(facts.Job.Recovery).Traits().Partial {
		return h.Final(tables, nil)
	}
	if facts.View.Generation > 1 {
		return &sim.Violation{What: fmt.Sprintf("all have rolled back to clock %d", facts.View.Cut)}
	}
	if sum := total(facts.ShardLost); sum != facts.UpdatesLost {
		return &sim.Violation{What: fmt.Sprintf("%d updates are counted as lost, %d by shard", facts.UpdatesLost, sum)}
	}
	for i, seg := range m.Segments {
		if missing := facts.SlotClocks(m.Cut) - int64(seg.Seq); missing != facts.ShardLost[i] {
			return &sim.Violation{What: fmt.Sprintf("shard %d says that it lacks %d updates, the registry %d", i,
				missing, facts.ShardLost[i])}
		}
	}
	return h.Final(tables, facts.ShardLost)
}

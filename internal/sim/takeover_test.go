package sim_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/sim"
)

// TestLate checks that other servers take over from a server that is unavailable for long, and that it is assigned
// shards again when it returns. This holds for every strategy.
func TestLate(t *testing.T) {
	var counts sim.Counts
	runSeeds(t, func(seed uint64) (scenario, *rand.Rand) {
		s, rng := []drawing{draw, drawChain, drawLossy, drawResend, drawStateless, drawScar, drawSaved}[seed%7](seed)
		more := rand.New(rand.NewPCG(seed, 23))
		s.job.NoReplace, s.job.TakeOverMs = false, 100*(1+more.Int64N(4))
		s.job.Servers = max(2, s.job.Servers)
		s.job.Shards = max(s.job.Servers, s.job.Shards)
		s.kills += 1 + more.IntN(3)
		s.late = time.Duration(1 + more.Int64N(int64(2*time.Second)))
		s.pace = max(s.pace, time.Duration(1+more.IntN(60))*time.Millisecond)
		s.counts = &counts
		return s, rng
	})
	if counts.Taken == 0 && manySeeds() {
		t.Error("no server's shards were taken over")
	}
}

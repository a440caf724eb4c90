package membership

import (
	"testing"

	"github.com/perdure/perdure"
)

// TestFiguresOfTheDone checks that the number of updates at completion stays the same once the job is done, whichever
// processes end, and with any coordinator.
func TestFiguresOfTheDone(t *testing.T) {
	for _, recovery := range []perdure.Recovery{
		{Kind: perdure.RecoverNone},
		{Kind: perdure.RecoverCheckpoint, Every: 2},
		{Kind: perdure.RecoverResend, Every: 2},
		{Kind: perdure.RecoverChain, Replicas: 2},
	} {
		job := perdure.JobSpec{
			Slots: 2, Servers: 2, Shards: 4, Clocks: 5, Recovery: recovery,
			Consistency: perdure.Consistency{Kind: perdure.BSP},
		}
		c := newCluster(job, 15)
		for range 100 {
			if c.core.Complete() {
				break
			}
			c.runHealthy(1)
		}
		due := c.saved.SlotClocks(job.Clocks) * int64(job.Shards)
		c.core.Finish()
		c.flush()
		for _, what := range []string{"undisturbed", "its servers killed", "with a new coordinator"} {
			if what == "with a new coordinator" {
				c.restart()
			}
			if in := c.core.NumUpdates(); in != due || !c.core.Complete() || c.wrong != nil {
				t.Errorf("%s, done, %s: %d updates of %d, complete: %v, wrong: %v", recovery, what, in, due,
					c.core.Complete(), c.wrong)
			}
			for i := range c.servers {
				c.kill(Server, i, "gone")
			}
		}
	}
}

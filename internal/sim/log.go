package sim

import (
	"time"

	"github.com/perdure/perdure/internal/data/updatelog"
)

// Log is the update log that all processes share.
func (c *Cluster) Log() *updatelog.Memory { return c.hosts.Logs() }

// LoseLog gives an empty log to all processes that start from now on.
func (c *Cluster) LoseLog() {
	c.fault("the update log is lost")
	c.hosts.LoseLogs()
}

// LogAway makes the update log unavailable for a while, as if its process were dead.
func (c *Cluster) LogAway(d time.Duration) {
	c.fault("the update log is unavailable for %v", d)
	l := c.Log()
	l.SetAway(true)
	l.LoseAcks(1)
	c.hosts.Go(func() {
		select {
		case <-time.After(d):
		case <-c.ctx.Done():
		}
		l.SetAway(false)
	})
}

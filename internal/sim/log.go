package sim

import (
	"time"

	"github.com/perdure/perdure/internal/data/updatelog"
)

// Log is the update log that all processes share.
func (c *Cluster) Log() *updatelog.Memory { return c.hosts.Logs() }

// ReplaceLog gives an empty log to all processes that start from now on.
func (c *Cluster) ReplaceLog() {
	c.fault("the update log is lost")
	c.hosts.ReplaceLogs()
}

// LogOutage makes the update log unavailable for a while, as if its process were dead.
func (c *Cluster) LogOutage(d time.Duration) {
	c.fault("the update log is unavailable for %v", d)
	l := c.Log()
	l.SetUnavailable(true)
	l.LoseAcks(1)
	c.hosts.Go(func() {
		select {
		case <-time.After(d):
		case <-c.ctx.Done():
		}
		l.SetUnavailable(false)
	})
}

package sim

import (
	"context"
	"time"

	"github.com/perdure/perdure/internal/data/updatelog"
)

// openLog returns how a process opens the job's update log: when the process dies, so do
// the entries that it has on their way.
func (c *Cluster) openLog(life context.Context) func(context.Context, string, updatelog.Options) (updatelog.Log,
	error) {
	return func(_ context.Context, _ string, o updatelog.Options) (updatelog.Log, error) {
		l, err := c.Log().Open(o)
		if err == nil {
			context.AfterFunc(life, func() { _ = l.Close() })
		}
		return countedLog{l, c}, err
	}
}

// Log is the update log that all processes share.
func (c *Cluster) Log() *updatelog.Memory {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.logs
}

// LoseLog gives processes that begin from now on an empty log.
func (c *Cluster) LoseLog() {
	c.fault("the update log is lost")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.logs = updatelog.NewMemory()
}

// LogAway makes the update log be away for a while, as while its process is dead.
func (c *Cluster) LogAway(d time.Duration) {
	c.fault("the update log is away for %v", d)
	l := c.Log()
	l.SetAway(true)
	l.LoseAcks(1)
	c.wg.Go(func() {
		select {
		case <-time.After(d):
		case <-c.ctx.Done():
		}
		l.SetAway(false)
	})
}

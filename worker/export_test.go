package worker

import (
	"time"

	"github.com/perdure/perdure"
)

// Counters is what the coordinator is told of a client's work.
func (c *Client) Counters() perdure.WorkerCounters {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats.snapshot(time.Now())
}

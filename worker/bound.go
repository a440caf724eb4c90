package worker

import (
	"context"
	"time"

	"github.com/perdure/perdure"
)

// sendBounded sends this clock's updates once vap allows it. It needs c.mu.
func (c *Client) sendBounded(ctx context.Context) error {
	begin := time.Now()
	defer func() {
		c.waited(begin)
		if !c.stats.began.IsZero() {
			c.stats.stale += time.Since(begin)
		}
	}()
	looked := perdure.Clock(-1)
	err := c.wait(ctx, func() (bool, error) {
		if c.out.Phase().Ended() {
			return true, nil
		}
		seen := c.out.Seen()
		if seen == looked || c.view.Pause {
			return false, nil
		}
		looked = seen
		return c.out.MaySend(), nil
	})
	if err != nil || c.out.Phase().Ended() {
		return err
	}
	c.out.Send()
	c.sendUpdates()
	return nil
}

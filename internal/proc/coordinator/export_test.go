package coordinator

import "context"

// Save saves the facts as they are, as the loop does.
func (c *Coordinator) Save(ctx context.Context) error { return c.save(ctx, c.core.Facts()) }

// Occupy has the loop do something beside its messages.
func (c *Coordinator) Occupy(ctx context.Context, f func()) { c.inbox.gather(ctx, f) }

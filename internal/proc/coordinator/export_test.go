package coordinator

import "context"

// Save saves the current facts as the loop does.
func (c *Coordinator) Save(ctx context.Context) error { return c.save(ctx, c.core.Record()) }

// Occupy runs f in the loop.
func (c *Coordinator) Occupy(ctx context.Context, f func()) { c.inbox.doUnsaved(ctx, f) }

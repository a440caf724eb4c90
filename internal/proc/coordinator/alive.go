package coordinator

import (
	"context"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
)

// diskLook is how often who waits for the loop looks whether that waits for its disk.
const diskLook = 20 * time.Millisecond

// Alive returns nil once the loop has done something, or says that it waits for its disk,
// which takes as long as it takes; and an error if ctx ends before.
func (c *Coordinator) Alive(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answered := make(chan error, 1)
	go func() { answered <- c.Ask(ctx, func(*membership.Core, Latest) {}) }()
	look := time.NewTicker(diskLook)
	defer look.Stop()
	for !c.onDisk.Load() {
		select {
		case err := <-answered:
			return err
		case <-look.C:
		}
	}
	return nil
}

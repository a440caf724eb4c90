package coordinator

import (
	"context"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
)

// diskPoll is how often Alive checks whether the loop is waiting for its disk.
const diskPoll = 20 * time.Millisecond

// Alive returns nil once the loop has run a task, or if the loop is waiting for its disk, which may take any time. It
// returns an error if ctx ends first.
func (c *Coordinator) Alive(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answered := make(chan error, 1)
	go func() { answered <- c.Ask(ctx, func(*membership.Core, Latest) {}) }()
	look := time.NewTicker(diskPoll)
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

package reach

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/worker"
)

// ProcessName is unique to this process, whatever the wall clock shows: in containers numbers of processes are all the
// same. A host that has started it knows how it begins.
func ProcessName() string {
	pid := os.Getpid()
	return fmt.Sprintf("%s%d-%d", wire.OfHost(os.Getenv(wire.HostVariable), pid), pid, rand.Uint64())
}

// Observe joins a job as one who only looks: it has no slot, and no clock waits for it.
func Observe(ctx context.Context, c worker.Config) (*worker.Client, error) {
	c.Observer, c.Process = true, ProcessName()
	return worker.Dial(ctx, c)
}

package locate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/worker"
)

// ProcessName returns a name that is unique to this process and does not depend on the clock: in containers, process
// IDs are often the same. The name starts with a prefix that a host that started the process knows.
func ProcessName() string {
	pid := os.Getpid()
	return fmt.Sprintf("%s%d-%d", wire.OfHost(os.Getenv(wire.HostVariable), pid), pid, rand.Uint64())
}

// Observe joins a job as an observer: without a slot, and without delaying any clock.
func Observe(ctx context.Context, c worker.Config) (*worker.Client, error) {
	c.Observer, c.Process = true, ProcessName()
	return worker.Dial(ctx, c)
}

package reach

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/perdure/perdure/worker"
)

// ProcessName is unique to this process.
func ProcessName() string { return fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano()) }

// Observe joins a job as one who only looks: it has no slot, and no clock waits for it.
func Observe(ctx context.Context, c worker.Config) (*worker.Client, error) {
	c.Observer, c.Process = true, ProcessName()
	return worker.Dial(ctx, c)
}

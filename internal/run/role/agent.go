package role

import (
	"context"
	"log/slog"
	"os"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/machine"
	"github.com/perdure/perdure/internal/run/agent"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/worker"
)

// Agent is the process of a worker for a program that is not written in Go. That program has started it.
type Agent struct {
	FD    int // descriptor of the socket to the program
	Watch Observability
}

// Run serves the program until it says goodbye or dies.
func (c *Agent) Run(ctx context.Context) error {
	ctx, parent, err := agent.WithParent(ctx)
	if err != nil {
		return err
	}
	socket, err := agent.Open(c.FD)
	if err != nil {
		return err
	}
	monitor, err := c.Watch.Open(ctx, slog.New(slog.DiscardHandler)) // standard error is the program's
	if err != nil {
		return err
	}
	defer monitor.Close()
	dial := func(ctx context.Context, cfg worker.Config) (*worker.Client, error) {
		cfg.Log = humanize.NewErrorLog(os.Stderr) // standard error is the program's
		client, err := worker.Dial(ctx, cfg)
		if err == nil {
			// With Go's default pace the updates of a large model, which are on the heap if they are rounded or packed,
			// would let it double.
			machine.LimitGarbage(client.Job().Slots)
			monitor.SetProbe(
				metrics.Worker(client, c.Watch.Identity(client.Job().ID, wire.RoleWorker, int(client.Slot()))))
		}
		return client, err
	}
	return agent.Serve(ctx, socket, agent.Options{Version: c.Watch.Version, PID: parent, Dial: dial})
}

// Package watch serves metrics and health checks of a worker that is written in Go: Prometheus metrics at /metrics,
// liveness at /healthz, and readiness at /readyz. docs/guide/metrics.md lists the metrics.
//
//	seen, err := watch.Open("", nil) // the address that perdure up --metrics sets
//	if err != nil {
//		return err
//	}
//	defer seen.Close()
//	return worker.Run(ctx, worker.Config{}, func(ctx context.Context, c *worker.Client) (worker.Step, error) {
//		seen.Show(c)
//		return begin(ctx, c)
//	})
//
// It is a separate package because the Prometheus client makes a small program larger by two fifths. Programs that do
// not import watch do not link it.
package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/hooks"
	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/worker"
)

// EnvMetrics is the environment variable with the address at which a program serves its metrics. perdure up --metrics
// sets it for each program that it starts.
const EnvMetrics = "PERDURE_METRICS"

// Watch is the metrics and health endpoint of a program. It is safe for concurrent use.
type Watch struct {
	endpoint *httpdebug.Endpoint // nil: no endpoint
}

// Open listens on addr, HOST:PORT, and answers immediately, even before the worker has joined its job. Without a host
// it listens only on the loopback interface. An address in use is an error.
//
// If addr is "", Open uses the address in EnvMetrics, or does not listen if the variable is not set. An address in
// EnvMetrics was chosen by the process that started the program, so an address in use is not an error: the program
// continues, and Open retries every second in the background.
//
// Later errors are logged; a nil log discards them.
func Open(addr string, log *slog.Logger) (*Watch, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	given := addr == ""
	if given {
		if addr = os.Getenv(EnvMetrics); addr == "" {
			return &Watch{}, nil
		}
	}
	full, err := httpdebug.Loopback(addr)
	if err != nil {
		return nil, perdure.Usagef("watch: invalid address %q; write HOST:PORT, for example 127.0.0.1:9464", addr)
	}
	if given {
		return &Watch{httpdebug.OpenRetrying(context.Background(), full, log)}, nil // Close ends it
	}
	monitor, err := httpdebug.Open(full, log)
	if errno, is := errors.AsType[syscall.Errno](err); is {
		err = errno
	}
	if err != nil {
		return nil, fmt.Errorf("watch: cannot listen on %s: %w; choose another address", full, err)
	}
	return &Watch{monitor}, nil
}

// Show sets the client, of a worker or an observer, whose metrics are served from now on. A process shows one client at
// a time.
func (w *Watch) Show(c *worker.Client) {
	if w.endpoint == nil {
		return
	}
	w.endpoint.SetProbe(metrics.Worker(c, metrics.Identity{
		Job: c.Job().ID, Role: string(wire.RoleWorker), ID: int(c.Slot()),
		Version: cmp.Or(hooks.ModuleVersion(), "unversioned"),
	}))
}

// Addr returns the address it listens on; "": it does not listen.
func (w *Watch) Addr() string {
	if w.endpoint == nil {
		return ""
	}
	return w.endpoint.Addr()
}

// Close stops listening. It always returns nil.
func (w *Watch) Close() error { return w.endpoint.Close() }

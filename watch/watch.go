// Package watch serves metrics and health checks of a worker that is written in Go: numbers for Prometheus at
// /metrics, whether it lives at /healthz, and whether it does its work at /readyz. docs/guide/watch.md lists what
// is shown.
//
//	seen, err := watch.Open("", nil) // where perdure up --metrics says
//	if err != nil {
//		return err
//	}
//	defer seen.Close()
//	return worker.Run(ctx, worker.Config{}, func(ctx context.Context, c *worker.Client) (worker.Step, error) {
//		seen.Show(c)
//		return begin(ctx, c)
//	})
//
// It is a package of its own, and no field of worker.Config, for its weight: with Prometheus' client a small program
// is larger by two fifths. Who does not import it has none of that.
package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"syscall"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/worker"
)

// EnvMetrics is the variable of the environment that says where a program shows how it does. perdure up --metrics sets
// it for each program that it starts.
const EnvMetrics = "PERDURE_METRICS"

// Watch is where a program shows how it does. It is safe for concurrent use.
type Watch struct {
	eye *httpdebug.Eye // nil: nobody can watch
}

// Open listens at an address, HOST:PORT, and answers at once, though the worker has not joined its job yet. Without a
// host it is this machine alone. An address in use is an error.
//
// "" is the address that EnvMetrics has, and nowhere if it has none. That one was given to the program by whoever
// started it, and is no reason to end: where it is in use the program goes on, and it is tried again each second.
//
// What goes wrong later is said in the log; nil: nowhere.
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
		return nil, fmt.Errorf("%w: watch: %q is no address; write HOST:PORT, for example 127.0.0.1:9464",
			perdure.ErrUsage, addr)
	}
	if given {
		return &Watch{httpdebug.Insist(context.Background(), full, log)}, nil // Close ends it
	}
	eye, err := httpdebug.Open(full, log)
	var errno syscall.Errno
	if errors.As(err, &errno) {
		err = errno
	}
	if err != nil {
		return nil, fmt.Errorf("watch: cannot listen on %s: %w; choose another address", full, err)
	}
	return &Watch{eye}, nil
}

// Show says whose work is shown from now on: that of a worker, or of an observer. A process shows one.
func (w *Watch) Show(c *worker.Client) {
	if w.eye == nil {
		return
	}
	w.eye.Show(metrics.Worker(c, metrics.Who{
		Job: c.Job().ID, Role: string(wire.RoleWorker), ID: int(c.Slot()), Version: version(),
	}))
}

// Addr is where it listens; "": nobody can watch.
func (w *Watch) Addr() string {
	if w.eye == nil {
		return ""
	}
	return w.eye.Addr()
}

// Close ends it. It returns nil.
func (w *Watch) Close() error { return w.eye.Close() }

// version is which Perdure the program was built with, as Go knows it. Of Perdure's own folder it knows none.
func version() string {
	const module = "github.com/perdure/perdure"
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return "unversioned"
	}
	for _, m := range append(b.Deps, &b.Main) {
		if m.Path == module && m.Version != "" && m.Version != "(devel)" {
			return m.Version
		}
	}
	return "unversioned"
}

package role

import (
	"context"
	"log/slog"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/run/metrics"
)

// Observability configures the metrics and health endpoints of a process.
type Observability struct {
	Metrics     string // HOST:PORT of the endpoints; "": none
	RetryListen bool   // start although that address is in use, and keep trying to listen
	Version     string // of Perdure
}

// Open opens the process's endpoints. It returns nil without an address.
func (w *Observability) Open(ctx context.Context, log *slog.Logger) (*httpdebug.Endpoint, error) {
	if w.Metrics == "" {
		return nil, nil
	}
	addr, err := httpdebug.Loopback(w.Metrics)
	if err != nil {
		return nil, perdure.Usagef("%w", err)
	}
	if w.RetryListen {
		return httpdebug.OpenRetrying(ctx, addr, log), nil
	}
	e, err := httpdebug.Open(addr, log)
	if err == nil {
		log.Info("serving metrics", "address", e.Addr())
	}
	return e, err
}

// Identity returns the identity of the process for its metrics.
func (w *Observability) Identity(job string, role wire.Role, id int) metrics.Identity {
	return metrics.Identity{Job: job, Role: string(role), ID: id, Version: w.Version}
}

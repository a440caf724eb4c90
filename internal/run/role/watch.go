package role

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/run/metrics"
)

// Watched says how a process lets itself be watched.
type Watched struct {
	Metrics string // HOST:PORT where it shows how it does; "": nowhere
	Insist  bool   // it goes on where that address is in use, and tries again
	Version string // of Perdure
}

// Open opens what the process is seen by; nil: nobody can watch it.
func (w *Watched) Open(ctx context.Context, log *slog.Logger) (*httpdebug.Eye, error) {
	if w.Metrics == "" {
		return nil, nil
	}
	addr, err := httpdebug.Loopback(w.Metrics)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", perdure.ErrUsage, err)
	}
	if w.Insist {
		return httpdebug.Insist(ctx, addr, log), nil
	}
	e, err := httpdebug.Open(addr, log)
	if err == nil {
		log.Info("can be watched", "address", e.Addr())
	}
	return e, err
}

// Who is the process, for whoever watches it.
func (w *Watched) Who(job string, role wire.Role, id int) metrics.Who {
	return metrics.Who{Job: job, Role: string(role), ID: id, Version: w.Version}
}

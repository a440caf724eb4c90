package locate

import (
	"context"
	"slices"
	"time"

	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/supervisor"
)

// queryTimeout is how long a coordinator may take to answer.
const queryTimeout = time.Second

// QueryState queries the state of a job. If the coordinator is dead or stalled, QueryState soon returns an error.
func QueryState(ctx context.Context, api *control.Client) (s control.Status, v protocol.View, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if s, err = api.Status(ctx); err == nil {
		v, err = api.View(ctx)
	}
	return s, v, err
}

// ProcessOf returns a status's entry for a process, or the zero Process if it has none.
func ProcessOf(s *control.Status, t supervisor.Target) control.Process {
	at := slices.IndexFunc(s.Processes, func(p control.Process) bool {
		return p.Role == string(t.Role) && p.Index == t.Index
	})
	if at < 0 {
		return control.Process{}
	}
	return s.Processes[at]
}

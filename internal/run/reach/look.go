package reach

import (
	"context"
	"slices"
	"time"

	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/supervisor"
)

// lookPatience is how long a coordinator may take for an answer.
const lookPatience = time.Second

// Look asks a job how it is. A coordinator that is dead or stands still answers
// with an error soon.
func Look(ctx context.Context, api *control.Client) (s control.Status, v words.View, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	if s, err = api.Status(ctx); err == nil {
		v, err = api.View(ctx)
	}
	return s, v, err
}

// ProcessOf is what a status says of a process; the zero Process where it says nothing.
func ProcessOf(s *control.Status, t supervisor.Target) control.Process {
	at := slices.IndexFunc(s.Processes, func(p control.Process) bool {
		return p.Role == string(t.Role) && p.Index == t.Index
	})
	if at < 0 {
		return control.Process{}
	}
	return s.Processes[at]
}

package role

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/eyes"
	"github.com/perdure/perdure/internal/proc/machine"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/reach"
	"github.com/perdure/perdure/internal/run/secrets"
	"github.com/perdure/perdure/internal/run/settings"
)

// Log is the process of an update log: one job's own, or one for jobs on many machines.
type Log struct {
	Dir      string // made where it is not there
	Listen   string
	Sync     string    // when an update counts as in the log
	MB       int       // what all streams take at most; 0: three quarters of what is free
	Inherits bool      // the secret of the run that it belongs to
	Out      io.Writer // what people are told
	Log      *slog.Logger
}

// Run serves the log until ctx ends.
func (c *Log) Run(ctx context.Context) error {
	if c.MB < 0 || c.MB > settings.MostLogMB {
		return fmt.Errorf("%w: --mb %d; choose 1 to %d", perdure.ErrUsage, c.MB, settings.MostLogMB)
	}
	eyes.Name(c.Log, "", string(supervisor.RoleLog), 0)
	machine.Garbage(1)
	var keys wire.Keys
	if c.Inherits {
		var err error
		if keys, err = secrets.Inherited(wire.RoleWorker, reach.FirstFD); err != nil {
			return err
		}
	}
	s, err := updatelog.Serve(c.Dir, updatelog.ServeOptions{
		Listen: c.Listen, Sync: updatelog.Sync(c.Sync), MaxBytes: int64(c.MB) << 20, Token: keys.Job.Reveal(),
		Log: c.Log,
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(c.Out, "the log listens; its URL, which is secret, is in %s\n", filepath.Join(c.Dir, "url"))
	return s.Run(ctx)
}

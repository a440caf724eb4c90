package role

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/logauth"
	"github.com/perdure/perdure/internal/proc/logserver"
	"github.com/perdure/perdure/internal/proc/machine"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/internal/run/settings"
)

// Log is the process of an update log, for a single job or for jobs on many machines.
type Log struct {
	Dir      string `required:"" help:"@serve_dir" placeholder:"DIR" type:"path"`
	Listen   string `help:"@serve_listen" default:"127.0.0.1:0" placeholder:"HOST:PORT"`
	Sync     string `help:"@serve_sync" default:"interval" enum:"interval,always" placeholder:"WHEN"`
	MB       int    `name:"mb" help:"@serve_mb" placeholder:"N"`
	Keys     string `env:"PERDURE_KEYS" help:"@serve_keys" placeholder:"DIR" type:"path"`
	Insecure bool   `help:"@insecure"`
	Inherits bool   `hidden:"" help:"Inherit the secret of the run that the log belongs to."`

	Out   io.Writer     `kong:"-"` // output for the user
	Log   *slog.Logger  `kong:"-"`
	Watch Observability `kong:"-"`
}

// Run serves the log until ctx ends.
func (c *Log) Run(ctx context.Context) error {
	if c.MB < 0 || c.MB > settings.MaxLogMB {
		return perdure.Usagef("invalid --mb %d; choose 1 to %d", c.MB, settings.MaxLogMB)
	}
	httpdebug.SetIdentity(c.Log, "", string(supervisor.RoleLog), 0)
	machine.LimitGarbage(1)
	monitor, err := c.Watch.Open(ctx, c.Log)
	if err != nil {
		return err
	}
	defer monitor.Close()
	var own wire.Keys
	if c.Inherits {
		if own, err = locate.InheritedSecrets(wire.RoleWorker, locate.FirstFD); err != nil {
			return err
		}
	}
	ring, err := c.ring(ctx)
	if err != nil {
		return err
	}
	s, err := logserver.Serve(c.Dir, logserver.ServeOptions{
		Listen: c.Listen, Sync: updatelog.Sync(c.Sync), MaxBytes: int64(c.MB) << 20, Token: own.Job.Reveal(),
		Log: c.Log, Refused: httpdebug.RateLimited(c.Log), Guard: logserver.NewGuard(ring, c.Inherits),
	})
	if err != nil {
		return err
	}
	if ring != nil && !c.Inherits {
		fmt.Fprintf(c.Out, "the log listens at %s and requires keys\n", s.URL())
	} else {
		fmt.Fprintf(c.Out, "the log listens; its URL, which is secret, is in %s\n", filepath.Join(c.Dir, "url"))
	}
	monitor.SetProbe(metrics.Log(ctx, s.State, c.Watch.Identity("", wire.Role(supervisor.RoleLog), 0)))
	return s.Run(ctx)
}

// ring opens the credentials of the log. A log that other machines can reach needs keys unless the user passes
// --insecure. The parent of a run has already checked that for the run's own log.
func (c *Log) ring(ctx context.Context) (*keys.Ring, error) {
	if c.Keys != "" {
		return locate.OpenWatchedRing(ctx, c.Keys, wire.Role(logauth.ServerRole), c.Log)
	}
	at := c.Listen
	if a, err := net.ResolveTCPAddr("tcp", at); err == nil { // otherwise Serve reports the error
		at = a.String()
	}
	switch {
	case c.Inherits || transport.IsLoopback(at):
	case !c.Insecure:
		return nil, perdure.Usagef("other machines can reach a log at %s, and nothing is encrypted: create keys with "+
			"perdure keys new DIR and use --keys DIR, or use --insecure if you trust everyone on that network",
			c.Listen)
	default:
		c.Log.Warn(fmt.Sprintf("INSECURE: other machines can reach the log at %s: they need the secret of its URL, "+
			"but nothing is encrypted, and anyone who can listen on the network learns the secret", c.Listen))
	}
	return nil, nil
}

package role

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"runtime"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/machine"
	"github.com/perdure/perdure/internal/proc/server"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/internal/run/settings"
)

// Server is the process of a server.
type Server struct {
	Job    locate.Job `embed:""`
	Index  int        `hidden:"" help:"The server's index." default:"-1"` // below 0: the job chooses one
	Beside int        `hidden:"" help:"The number of servers on this machine."`
	// Listen is the listen address for workers, and Advertise the address that is published; "": that of Listen.
	Listen    string        `help:"@server_listen (default ${default})." default:"127.0.0.1:0" placeholder:"HOST:PORT"`
	Zone      string        `help:"@server_zone" placeholder:"NAME"`
	Advertise string        `help:"@server_advertise" placeholder:"HOST[:PORT]"`
	Notice    time.Duration `help:"@server_notice" placeholder:"TIME"`

	Watch Observability `kong:"-"`
	Log   *slog.Logger  `kong:"-"`
}

// ErrDrained reports that a server ended because the job ordered it to hand over its replicas. It must not be
// restarted.
var ErrDrained = server.ErrDrained

// Run serves until the job ends. When ctx ends, the server hands over its replicas and then ends. When atOnce ends, it
// ends immediately.
func (c *Server) Run(ctx, atOnce context.Context) error {
	if c.Zone != "" {
		if err := settings.CheckZone(c.Zone); err != nil {
			return perdure.Usagef("--zone: %w", err)
		}
	}
	httpdebug.SetIdentity(c.Log, "", string(wire.RoleServer), c.Index)
	monitor, err := c.Watch.Open(atOnce, c.Log)
	if err != nil {
		return err
	}
	defer monitor.Close()
	s, err := c.Job.Find(ctx, wire.RoleServer)
	if err != nil {
		return err
	}
	httpdebug.SetIdentity(c.Log, s.Job.ID, string(wire.RoleServer), c.Index)
	var in, snapshots store.Store
	strategy := recovery.Of(s.Job.Recovery).Traits()
	switch {
	case c.Job.Run != "", s.Checkpoints.Store != "":
		if in, err = s.OpenStore(atOnce, c.Job.Run); err != nil {
			return err
		}
		if snapshots, err = s.OpenSnapshots(atOnce, c.Job.Run); err != nil {
			return err
		}
	case strategy.UsesLog():
		return c.Job.RequireDir("its servers keep snapshots in it")
	case strategy.SavesAny():
		return c.Job.RequireDir("its servers keep checkpoints in it")
	case s.Job.Init != "":
		return c.Job.RequireDir("its servers read the initial model from it")
	}
	here := cmp.Or(c.Beside, s.Job.Servers)
	machine.LimitGarbage(here)
	machine.LimitCores(here)
	if strategy.UsesLog() {
		machine.SetCores(max(2, runtime.GOMAXPROCS(0))) // one to read the log and one to apply it
	}
	faults, err := s.Network(wire.RoleServer, c.Index, c.Job.Ring)
	if err != nil {
		return err
	}
	return ignoreSignal(server.Run(atOnce, server.Config{
		Index: c.Index,
		Self: server.Identity{
			Process: locate.ProcessName(), PID: os.Getpid(), Zone: c.Zone, Version: c.Watch.Version,
		},
		Network:       faults,
		Listen:        c.Listen,
		Publish:       func(at string) (string, error) { return transport.PublishedAddress(c.Listen, at, c.Advertise) },
		Coordinator:   c.Job.Coordinator,
		Drain:         ctx.Done(),
		Notice:        c.Notice,
		Store:         in,
		Log:           c.Log,
		OpenLog:       s.OpenLog(c.Job.Ring, false),
		LogBytes:      s.LogBytes(),
		Snapshots:     snapshots,
		SnapshotBytes: s.SnapshotBytes(),
		OnJoined: func(sv server.Monitor, index int) {
			httpdebug.SetIdentity(c.Log, s.Job.ID, string(wire.RoleServer), index)
			monitor.SetProbe(metrics.Server(sv, c.Watch.Identity(s.Job.ID, wire.RoleServer, index)))
		},
		Keys:    c.Job.Keys,
		OnOrder: func(o wire.Order) { ApplyFault(o, faults, nil, s.SeedOf(wire.RoleServer, c.Index)) },
	}))
}

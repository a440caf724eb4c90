package role

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/registry"
	_ "github.com/perdure/perdure/internal/data/registry/etcd"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/machine"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/internal/run/reach"
	"github.com/perdure/perdure/internal/run/settings"
)

// Descriptors that the supervisor hands to the coordinator: sockets that stay
// open while no coordinator lives, so that its address is never lost.
const (
	framesFD  = 3
	controlFD = 4
	secretsFD = 5 // of other roles reach.FirstFD
)

// Coordinator is the process of a job's coordinator.
type Coordinator struct {
	Folder string // the run's
	Keys   string // the folder of its keys; "": it has none
	Log    *slog.Logger
	Watch  Watched
	// Open is what the process has opened itself; nil: it inherits its sockets and its secrets from the run's parent.
	Open *Opened
}

// Opened is what a coordinator that has no parent has opened. It belongs to the coordinator, which closes it.
type Opened struct {
	Frames   transport.Listener // where processes of the job connect
	Web      net.Listener       // where the control API is called
	Keys     wire.Keys
	Ring     *keys.Ring // nil: the job has no keys
	Addr     string     // that others are told
	Hosts    []string   // by which the control API is called, beside the address at which it listens
	Registry string     // where it is, see registry.OpenLocation
	// Facts is the registry, and Lease its lease, of who has waited for it; nil: the coordinator opens and takes them.
	Facts  registry.Registry
	Lease  registry.Lease
	Linger time.Duration // as of the coordinator
	// Eye is what the process is seen by already, which the coordinator does not close; nil: it opens one itself.
	Eye *httpdebug.Eye
}

// Run coordinates until the job or ctx ends.
func (c *Coordinator) Run(ctx context.Context) error {
	httpdebug.Name(c.Log, "", string(wire.RoleCoordinator), 0)
	open := Opened{Registry: RegistryOf(c.Folder)}
	if c.Open != nil {
		open = *c.Open
	} else if err := open.inherit(ctx, c); err != nil {
		return err
	}
	api := &lateAPI{there: make(chan struct{})}
	gate := control.Gate{
		Secret: open.Keys.Job, Addrs: append([]string{open.Web.Addr().String()}, open.Hosts...), Alive: api.alive,
		Ring: open.Ring, Log: c.Log, Refused: httpdebug.Sparing(c.Log),
	}
	srv := httpdebug.NewHTTPServer(gate.Guard(api))
	srv.ErrorLog = httpdebug.ErrorLog(c.Log)
	if open.Ring != nil {
		open.Web = tls.NewListener(open.Web, open.Ring.Web())
	}
	go func() { _ = srv.Serve(open.Web) }() // ends with the process
	defer func() {                          // the caller that asked to stop hears that it was done
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = srv.Shutdown(ctx) // the process ends anyway
	}()
	return c.coordinate(ctx, api, &open)
}

// RegistryOf is the registry of a run that has its own.
func RegistryOf(folder string) string { return filepath.Join(folder, "registry", "facts") }

// errNoParent is what a coordinator says that somebody has started as the run's parent does.
var errNoParent = errors.New("a run's coordinator is started, and started again, by perdure train or perdure up, " +
	"which listen for it; write --job and --dir to start one by itself")

// inherit opens what the process has from its parent, but for the socket of frames, for which it is
// not ready yet.
func (o *Opened) inherit(ctx context.Context, c *Coordinator) (err error) {
	o.Web, err = net.FileListener(os.NewFile(controlFD, "control"))
	if err != nil {
		return fmt.Errorf("%w: inherited control socket: %w", errNoParent, err)
	}
	if o.Keys, err = reach.InheritedSecrets(wire.RoleCoordinator, secretsFD); err != nil {
		return errors.Join(err, o.Web.Close())
	}
	if o.Ring, err = reach.Ring(ctx, c.Keys, wire.RoleCoordinator, c.Log); err != nil {
		return errors.Join(err, o.Web.Close())
	}
	return nil
}

// listen completes what the process has from its parent.
func (o *Opened) listen() (err error) {
	if o.Frames != nil {
		return nil
	}
	if o.Frames, err = (transport.TCP{Keys: o.Ring}).ListenFile(os.NewFile(framesFD, "coordinator")); err != nil {
		return fmt.Errorf("%w: %w", errNoParent, err)
	}
	o.Addr = o.Frames.Addr()
	return nil
}

// coordinate is the coordinator itself, which may wait for its disk.
func (c *Coordinator) coordinate(ctx context.Context, api *lateAPI, open *Opened) error {
	eye, err := open.Eye, error(nil)
	if eye == nil {
		if eye, err = c.Watch.Open(ctx, c.Log); err != nil {
			return err
		}
		defer eye.Close()
	}
	s, err := settings.Read(filepath.Join(c.Folder, "run.json"))
	if err != nil {
		return err
	}
	httpdebug.Name(c.Log, s.Job.ID, string(wire.RoleCoordinator), 0)
	faults, err := s.Network(wire.RoleCoordinator, 0, open.Ring)
	if err != nil {
		return err
	}
	if err := open.listen(); err != nil {
		return err
	}
	facts := open.Facts
	if facts == nil {
		if facts, err = registry.OpenLocation(ctx, open.Registry); err != nil {
			return err
		}
	}
	reg := registry.Count(facts)
	defer reg.Close()
	begin, err := s.Begin()
	if err != nil {
		return err
	}
	in, err := s.OpenStore(ctx, c.Folder)
	if err != nil {
		return err
	}
	at, err := s.StoreAt(c.Folder)
	if err != nil {
		return err
	}
	if s.Checkpoints.Store == "" { // workers of this machine save states there under each strategy
		if err := in.Prepare(); err != nil && !store.Passes(err) {
			return err
		}
	}
	told, err := settings.Tell(s)
	if err != nil {
		return err
	}
	co, err := coordinator.New(ctx, coordinator.Config{
		Listener: faults.Around(open.Frames), Registry: reg, Lease: open.Lease, Begin: &begin, Store: in, StoreAt: at,
		StoreLocal: s.Checkpoints.Store == "", Keep: s.Checkpoints.Keep, MaxFailures: s.Checkpoints.MaxFailures,
		Settings: told, Folder: c.Folder, GoesOn: c.Open != nil, Linger: open.Linger,
		Log: c.Log, Keys: open.Keys, TableBytes: machine.Memory(),
		OnOrder: func(o wire.Order) { Obey(o, faults, nil, s.SeedOf(wire.RoleCoordinator, 0)) },
	})
	if err != nil {
		return err
	}
	api.serve(co, control.NewHandler(&backend{
		co: co, run: c.Folder, log: s.HasOwnLog(), addr: open.Addr, alone: c.Open != nil,
		began: time.Now(),
	}))
	eye.Show(metrics.Coordinator(ctx, co, reg, c.Watch.Who(s.Job.ID, wire.RoleCoordinator, 0)))
	return quiet(co.Run(ctx))
}

// quiet makes the end by a signal no error.
func quiet(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, perdure.ErrStopped) {
		return nil
	}
	return err
}

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
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/internal/run/settings"
)

// Descriptors that the supervisor passes to the coordinator. The sockets stay open while no coordinator runs, so that
// its address is never lost.
const (
	framesFD  = 3
	controlFD = 4
	secretsFD = 5 // for other roles locate.FirstFD
)

// Coordinator is the process of a job's coordinator.
type Coordinator struct {
	Folder string // the run's directory
	Keys   string // directory of its keys; "": the job has no keys
	Log    *slog.Logger
	Watch  Observability
	// StartsWorkers reports whether the run's parent starts its workers.
	StartsWorkers bool
	// Resources holds resources that the process has opened itself; nil: it inherits sockets and secrets from the run's
	// parent.
	Resources *Resources
}

// Resources holds the resources of a coordinator without a parent process. The coordinator owns and closes them.
type Resources struct {
	FrameListener   transport.Listener // for processes of the job
	ControlListener net.Listener       // for callers of the control API
	Keys            wire.Keys
	Ring            *keys.Ring // nil: the job has no keys
	Addr            string     // published to other processes
	Hosts           []string   // accepted addresses of the control API in addition to the listen address
	Registry        string     // see registry.OpenLocation
	// OpenRegistry and Lease are an open registry and its lease, if the caller has waited for the lease; nil: the
	// coordinator opens and acquires them.
	OpenRegistry registry.Registry
	Lease        registry.Lease
	Linger       time.Duration // see coordinator.Config
	// Debug serves the process's metrics and health checks, and stays open; nil: the coordinator opens its own.
	Debug *httpdebug.Endpoint
}

// Run coordinates until the job or ctx ends.
func (c *Coordinator) Run(ctx context.Context) error {
	httpdebug.SetIdentity(c.Log, "", string(wire.RoleCoordinator), 0)
	open := Resources{Registry: RegistryOf(c.Folder)}
	if c.Resources != nil {
		open = *c.Resources
	} else if err := open.inherit(ctx, c); err != nil {
		return err
	}
	api := &deferredAPI{ready: make(chan struct{})}
	gate := control.Authorizer{
		Secret: open.Keys.Job,
		Addrs:  append([]string{open.ControlListener.Addr().String()}, open.Hosts...), Alive: api.check,
		Ring: open.Ring, Log: c.Log, Refused: httpdebug.RateLimited(c.Log),
	}
	srv := httpdebug.NewHTTPServer(gate.Guard(api))
	srv.ErrorLog = httpdebug.ErrorLog(c.Log)
	if open.Ring != nil {
		open.ControlListener = tls.NewListener(open.ControlListener, open.Ring.WebServer())
	}
	go func() { _ = srv.Serve(open.ControlListener) }() // ends with the process
	defer func() {                                      // the caller that requested the stop gets a reply
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = srv.Shutdown(ctx) // the process ends anyway
	}()
	return c.coordinate(ctx, api, &open)
}

// RegistryOf returns the location of the registry in a run's directory.
func RegistryOf(dir string) string { return filepath.Join(dir, "registry", "facts") }

// errNoParent is the error of a coordinator that was started by hand with the flags of a run's parent.
var errNoParent = errors.New("a run's coordinator is started and restarted by perdure train or perdure up, which " +
	"open its sockets; use --job and --dir to start one separately")

// inherit opens the resources inherited from the parent, except the socket for frames, because the coordinator cannot
// serve it yet.
func (o *Resources) inherit(ctx context.Context, c *Coordinator) (err error) {
	o.ControlListener, err = net.FileListener(os.NewFile(controlFD, "control"))
	if err != nil {
		return fmt.Errorf("%w: inherited control socket: %w", errNoParent, err)
	}
	if o.Keys, err = locate.InheritedSecrets(wire.RoleCoordinator, secretsFD); err != nil {
		return errors.Join(err, o.ControlListener.Close())
	}
	if o.Ring, err = locate.OpenWatchedRing(ctx, c.Keys, wire.RoleCoordinator, c.Log); err != nil {
		return errors.Join(err, o.ControlListener.Close())
	}
	return nil
}

// listen opens the inherited socket for frames unless a listener is open.
func (o *Resources) listen() (err error) {
	if o.FrameListener != nil {
		return nil
	}
	if o.FrameListener, err = (transport.TCP{Keys: o.Ring}).ListenFile(
		os.NewFile(framesFD, "coordinator"),
	); err != nil {
		return fmt.Errorf("%w: %w", errNoParent, err)
	}
	o.Addr = o.FrameListener.Addr()
	return nil
}

// coordinate runs the coordinator. It may block on the disk.
func (c *Coordinator) coordinate(ctx context.Context, api *deferredAPI, open *Resources) error {
	monitor, err := open.Debug, error(nil)
	if monitor == nil {
		if monitor, err = c.Watch.Open(ctx, c.Log); err != nil {
			return err
		}
		defer monitor.Close()
	}
	s, err := settings.Read(filepath.Join(c.Folder, "run.json"))
	if err != nil {
		return err
	}
	httpdebug.SetIdentity(c.Log, s.Job.ID, string(wire.RoleCoordinator), 0)
	faults, err := s.Network(wire.RoleCoordinator, 0, open.Ring)
	if err != nil {
		return err
	}
	if err := open.listen(); err != nil {
		return err
	}
	record := open.OpenRegistry
	if record == nil {
		if record, err = registry.OpenLocation(ctx, open.Registry); err != nil {
			return err
		}
	}
	reg := registry.CountSaves(record)
	defer reg.Close()
	start, err := s.InitialState()
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
	if s.Checkpoints.Store == "" { // workers on this machine save slot states there with every strategy
		if err := in.Prepare(); err != nil && !store.Retryable(err) {
			return err
		}
	}
	sent, err := settings.Encode(s)
	if err != nil {
		return err
	}
	co, err := coordinator.New(ctx, coordinator.Config{
		Listener: faults.Wrap(open.FrameListener), Registry: reg,
		Lease: open.Lease, NewJob: &start, Store: in, StoreAddr: at, StoreLocal: s.Checkpoints.Store == "",
		Keep: s.Checkpoints.Keep, MaxFailures: s.Checkpoints.MaxFailures, Settings: sent, Dir: c.Folder,
		StartsWorkers:  c.StartsWorkers,
		CancelEarlyEnd: c.Resources != nil, Linger: open.Linger, Log: c.Log, Keys: open.Keys,
		TableBytes: machine.Memory(),
		OnOrder:    func(o wire.Order) { ApplyFault(o, faults, nil, s.SeedOf(wire.RoleCoordinator, 0)) },
	})
	if err != nil {
		return err
	}
	api.serve(co, control.NewHandler(&backend{
		co: co, run: c.Folder, log: s.HasOwnLog(), addr: open.Addr, unsupervised: c.Resources != nil,
		version: c.Watch.Version, began: time.Now(),
	}))
	monitor.SetProbe(metrics.Coordinator(ctx, co, reg, c.Watch.Identity(s.Job.ID, wire.RoleCoordinator, 0)))
	return ignoreSignal(co.Run(ctx))
}

// ignoreSignal returns nil for the error of a process that was ended by a signal.
func ignoreSignal(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, perdure.ErrStopped) {
		return nil
	}
	return err
}

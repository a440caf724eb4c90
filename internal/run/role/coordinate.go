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
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/eyes"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/machine"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/internal/run/reach"
	"github.com/perdure/perdure/internal/run/secrets"
	"github.com/perdure/perdure/internal/run/settings"
)

// Descriptors that the supervisor hands to the coordinator: sockets that stay
// open while no coordinator lives, so that its address is never lost.
const (
	framesFD  = 3
	controlFD = 4
	secretsFD = 5 // of other roles reach.FirstFD
)

// Coordinator is the process of a job's coordinator, which inherits its sockets and its
// secrets.
type Coordinator struct {
	Folder string // the run's
	Keys   string // the folder of its keys; "": it has none
	Log    *slog.Logger
	Watch  Watched
}

// Run coordinates until the job or ctx ends.
func (c *Coordinator) Run(ctx context.Context) error {
	eyes.Name(c.Log, "", string(wire.RoleCoordinator), 0)
	web, err := net.FileListener(os.NewFile(controlFD, "control"))
	if err != nil {
		return fmt.Errorf("%w: inherited control socket: %w", errNoParent, err)
	}
	known, err := secrets.Inherited(wire.RoleCoordinator, secretsFD)
	if err != nil {
		return errors.Join(err, web.Close())
	}
	ring, err := reach.Ring(ctx, c.Keys, wire.RoleCoordinator, c.Log)
	if err != nil {
		return errors.Join(err, web.Close())
	}
	api := &lateAPI{there: make(chan struct{})}
	gate := control.Gate{Secret: known.Job, Addr: web.Addr().String(), Alive: api.alive, Log: c.Log}
	srv := control.NewServer(gate.Guard(api))
	if ring != nil {
		web = tls.NewListener(web, ring.Web())
	}
	go func() { _ = srv.Serve(web) }() // ends with the process
	defer func() {                     // the caller that asked to stop hears that it was done
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = srv.Shutdown(ctx) // the process ends anyway
	}()
	return c.coordinate(ctx, api, known, ring)
}

// errNoParent is what a coordinator says that somebody has started by hand.
var errNoParent = errors.New("a run's coordinator is started, and started again, by perdure train or perdure up, " +
	"which listen for it")

// coordinate is the coordinator itself, which may wait for its disk.
func (c *Coordinator) coordinate(ctx context.Context, api *lateAPI, known wire.Keys, ring *keys.Ring) error {
	eye, err := c.Watch.open(ctx, c.Log)
	if err != nil {
		return err
	}
	defer eye.Close()
	s, err := settings.Read(filepath.Join(c.Folder, "run.json"))
	if err != nil {
		return err
	}
	eyes.Name(c.Log, s.Job.ID, string(wire.RoleCoordinator), 0)
	faults, err := s.Network(wire.RoleCoordinator, 0, ring)
	if err != nil {
		return err
	}
	l, err := transport.TCP{Keys: ring}.ListenFile(os.NewFile(framesFD, "coordinator"))
	if err != nil {
		return fmt.Errorf("%w: %w", errNoParent, err)
	}
	facts, err := registry.OpenFile(disk.OS(), filepath.Join(c.Folder, "registry", "facts"))
	if err != nil {
		return err
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
	co, err := coordinator.New(ctx, coordinator.Config{
		Listener: faults.Around(l), Registry: reg, Begin: &begin, Store: in, StoreAt: at,
		Keep: s.Checkpoints.Keep,
		Log:  c.Log, Keys: known, TableBytes: machine.Memory(),
		OnOrder: func(o wire.Order) { Obey(o, faults, nil, s.SeedOf(wire.RoleCoordinator, 0)) },
	})
	if err != nil {
		return err
	}
	api.serve(co, control.NewHandler(&backend{
		co: co, run: c.Folder, log: s.HasOwnLog(), addr: l.Addr(),
		began: time.Now(),
	}))
	eye.Show(metrics.Coordinator(ctx, co, reg, c.Watch.who(s.Job.ID, wire.RoleCoordinator, 0)))
	return quiet(co.Run(ctx))
}

// quiet makes the end by a signal no error.
func quiet(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, perdure.ErrStopped) {
		return nil
	}
	return err
}

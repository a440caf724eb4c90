package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/server"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/memory"
	"github.com/perdure/perdure/internal/run/pace"
	"github.com/perdure/perdure/internal/run/secrets"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/worker"
	"github.com/perdure/perdure/workload"
)

// Descriptors that the supervisor hands to the coordinator: sockets that stay
// open while no coordinator lives, so that its address is never lost.
const (
	framesFD  = 3
	controlFD = 4
	secretsFD = 5 // of other roles firstFD
	firstFD   = 3
)

func checkpoints(run string) string { return filepath.Join(run, "checkpoint") }

// processName is unique to this process.
func processName() string { return fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano()) }

func roleLog() *slog.Logger {
	return slog.New(slog.NewTextHandler(stdout.file, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

type coordinatorCmd struct {
	Folder string `name:"run" required:"" help:"The run's folder." type:"path"`
}

func (c *coordinatorCmd) Run(ctx context.Context) error {
	web, err := net.FileListener(os.NewFile(controlFD, "control"))
	if err != nil {
		return fmt.Errorf("%w: inherited control socket: %w", errNoParent, err)
	}
	keys, err := secrets.Inherited(wire.RoleCoordinator, secretsFD)
	if err != nil {
		return errors.Join(err, web.Close())
	}
	api := &lateAPI{there: make(chan struct{})}
	srv := control.NewServer(control.Guard(api, keys.Job, web.Addr().String(), api.alive))
	go func() { _ = srv.Serve(web) }() // ends with the process
	defer func() {                     // who asked to stop hears that it was done
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = srv.Shutdown(ctx) // the process ends anyway
	}()
	return c.coordinate(ctx, api, keys)
}

// errNoParent is what a coordinator says that somebody has started by hand.
var errNoParent = errors.New("a run's coordinator is started, and started again, by perdure train or perdure up, which listen for it")

// coordinate is the coordinator itself, which may wait for its disk.
func (c *coordinatorCmd) coordinate(ctx context.Context, api *lateAPI, keys wire.Keys) error {
	s, err := settings.Read(filepath.Join(c.Folder, "run.json"))
	if err != nil {
		return err
	}
	faults, err := s.Network(wire.RoleCoordinator, 0)
	if err != nil {
		return err
	}
	l, err := transport.TCP{}.ListenFile(os.NewFile(framesFD, "coordinator"))
	if err != nil {
		return fmt.Errorf("%w: %w", errNoParent, err)
	}
	reg, err := registry.OpenFile(disk.OS(), filepath.Join(c.Folder, "registry", "facts"))
	if err != nil {
		return err
	}
	defer reg.Close()
	begin, err := s.Begin()
	if err != nil {
		return err
	}
	co, err := coordinator.New(ctx, coordinator.Config{
		Listener: faults.Around(l), Registry: reg, Begin: &begin, Disk: disk.OS(), CheckpointDir: checkpoints(c.Folder),
		Log: roleLog(), Keys: keys, TableBytes: memory.Total(), OnOrder: func(o wire.Order) { applyFault(o, faults, nil, s.SeedOf(wire.RoleCoordinator, 0)) },
	})
	if err != nil {
		return err
	}
	api.serve(co, control.NewHandler(&backend{co: co, run: c.Folder, log: s.HasOwnLog(), addr: l.Addr(), began: time.Now()}))
	return quiet(co.Run(ctx))
}

// lateAPI is a control API that comes once the disk has been read. Who asks for it waits.
type lateAPI struct {
	there   chan struct{} // closed when there is a handler
	handler http.Handler
	co      *coordinator.Coordinator
}

// alive returns when the coordinator shows that it is: at once while its disk is read,
// which takes as long as it takes.
func (a *lateAPI) alive(ctx context.Context) error {
	select {
	case <-a.there:
		return a.co.Alive(ctx)
	default:
		return nil
	}
}

// serve is called once.
func (a *lateAPI) serve(co *coordinator.Coordinator, h http.Handler) {
	a.co, a.handler = co, h
	close(a.there)
}

func (a *lateAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case <-a.there:
		a.handler.ServeHTTP(w, r)
	case <-r.Context().Done():
	}
}

// quiet makes the end by a signal no error.
func quiet(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, perdure.ErrStopped) {
		return nil
	}
	return err
}

type serverCmd struct {
	joinFlags
	Index  int    `hidden:"" help:"The server's number." default:"-1"`
	Listen string `help:"Where to listen for workers: an address at which they reach this machine; port 0 picks a free one (default ${default})." default:"127.0.0.1:0" placeholder:"HOST:PORT"`
	Zone   string `help:"The failure domain that this server is in, such as a rack (default none)." placeholder:"NAME"`
}

func (c *serverCmd) Run(ctx context.Context) error {
	if c.Zone != "" {
		if err := settings.CheckZone(c.Zone); err != nil {
			return fmt.Errorf("%w: --zone: %w", perdure.ErrUsage, err)
		}
	}
	s, err := c.find(ctx, wire.RoleServer)
	if err != nil {
		return err
	}
	dir, snaps := "", ""
	if c.joinFlags.Run != "" {
		dir, snaps = checkpoints(c.joinFlags.Run), settings.SnapshotFolder(c.joinFlags.Run)
	} else if recovery.Of(s.Job.Recovery).Traits().Logged() {
		return c.needsFolder("its servers keep snapshots there")
	} else if recovery.Of(s.Job.Recovery).Traits().Saves() {
		return c.needsFolder("its servers keep checkpoints there")
	}
	pace.Garbage(s.Job.Servers)
	if pace.ShareCores(s.Job.Servers); recovery.Of(s.Job.Recovery).Traits().Logged() {
		pace.UseCores(max(2, runtime.GOMAXPROCS(0))) // to read the log while what was read is applied
	}
	faults, err := s.Network(wire.RoleServer, c.Index)
	if err != nil {
		return err
	}
	run, cancel := untilToldTwice(ctx)
	defer cancel()
	return quiet(server.Run(run, server.Config{
		Index: c.Index, Process: processName(), PID: os.Getpid(), Network: faults, Listen: c.Listen,
		Coordinator: c.Coordinator, Zone: c.Zone, Drain: ctx.Done(), Disk: disk.OS(), CheckpointDir: dir, Log: roleLog(),
		OpenLog: s.OpenLog, LogBytes: s.LogBytes(), SnapshotDir: s.SnapshotDir(snaps), SnapshotBytes: s.SnapshotBytes(),
		Keys: c.keys, OnOrder: func(o wire.Order) { applyFault(o, faults, nil, s.SeedOf(wire.RoleServer, c.Index)) },
	}))
}

// untilToldTwice returns a context that ends with the second signal to end: ctx ends
// with the first, which asks for an orderly end only.
func untilToldTwice(ctx context.Context) (context.Context, context.CancelFunc) {
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	again := make(chan os.Signal, 1)
	context.AfterFunc(ctx, func() {
		signal.Notify(again, os.Interrupt, syscall.SIGTERM)
		defer signal.Stop(again)
		select {
		case <-again:
			cancel()
		case <-run.Done():
		}
	})
	return run, cancel
}

type workerCmd struct {
	joinFlags
	Slot      int           `hidden:"" help:"The slot to take." default:"-1"`
	LostAfter time.Duration `help:"End when no process of the job has been heard for so long; 0s: never (default ${default})." default:"1m" placeholder:"TIME"`
	OutageMB  int           `name:"outage-mb" help:"Most updates that this worker queues for shards that are out, in MiB, where the job goes on without them; 0: as the job says (default ${default})." default:"0" placeholder:"N"`
}

func (c *workerCmd) Run(ctx context.Context) error {
	if c.LostAfter < 0 {
		return fmt.Errorf("%w: --lost-after %v; choose a time, or 0s for never", perdure.ErrUsage, c.LostAfter)
	}
	s, err := c.find(ctx, wire.RoleWorker)
	if err != nil {
		return c.unlessDone(err)
	}
	if s.Job.Workload == settings.OwnWorkload {
		return errOwnWorkers
	}
	if c.OutageMB < 0 || c.OutageMB > settings.MaxOutageMB {
		return fmt.Errorf("%w: --outage-mb %d; choose 0 to %d MiB", perdure.ErrUsage, c.OutageMB, settings.MaxOutageMB)
	}
	if c.OutageMB > 0 && !s.Job.OnOutage.Continue {
		return fmt.Errorf("%w: --outage-mb is for jobs that go on in an outage, and this one waits; leave it out", perdure.ErrUsage)
	}
	if err := c.needsFolder("what its workers train is in its run.json"); err != nil {
		return err
	}
	pace.Garbage(s.Job.Slots)
	pace.ShareCores(s.Job.Slots)
	w, err := workload.New(s.Job.Workload, s.Params)
	if err != nil {
		return err
	}
	faults, err := s.Network(wire.RoleWorker, c.Slot)
	if err != nil {
		return err
	}
	p := &pacer{least: time.Duration(s.ComputeMs) * time.Millisecond}
	patience := time.Duration(0)
	if c.Join == "" { // its slot may have been taken by one that joined: then it stands by
		patience = math.MaxInt64
	}
	client, err := worker.Dial(ctx, worker.Config{
		Network: faults, Coordinator: c.Coordinator, Slot: perdure.Slot(c.Slot), Process: processName(), PID: os.Getpid(),
		CacheBytes: s.CacheMB << 20, OutageBytes: int64(c.OutageMB) << 20, RetainBytes: int64(s.RetainMB) << 20, Patience: patience, LostAfter: cmp.Or(c.LostAfter, worker.NeverLost), Grow: c.Join != "", OpenLog: s.OpenLogToRead,
		Secret: c.keys.Job, Log: roleLog(), OnOrder: func(o wire.Order) { applyFault(o, faults, p, s.SeedOf(wire.RoleWorker, c.Slot)) },
	})
	if err != nil {
		return quiet(c.unlessDone(err))
	}
	defer client.Close()
	if err := s.CheckSameJob(filepath.Join(c.joinFlags.Run, "run.json"), w, client.Job()); err != nil {
		return err
	}
	if c.Join != "" {
		fmt.Fprintf(stdout, "worker:%d joins the job; it takes part from clock %d on\n", client.Slot(), client.Now())
	}
	observe := func(ctx context.Context) (*worker.Client, error) {
		return worker.Dial(ctx, worker.Config{Network: faults, Coordinator: c.Coordinator, Observer: true, Process: processName(), Secret: c.keys.Job, Log: roleLog()})
	}
	err = train(ctx, client, w, s, p, observe)
	farewell(client)
	if ctx.Err() != nil {
		_ = client.Leave() // if it does not hear it, the coordinator notices by the silence
	}
	return quiet(err)
}

// unlessDone returns nil, and says so, where err is that the job is done, or that nobody
// answers while the run's folder has how it ended.
func (c *workerCmd) unlessDone(err error) error {
	over := errors.Is(err, perdure.ErrDone)
	if !over && c.joinFlags.Run != "" && !errors.Is(err, perdure.ErrUsage) {
		_, missing := os.Stat(filepath.Join(c.joinFlags.Run, "summary.json"))
		over = missing == nil
	}
	if !over {
		return err
	}
	fmt.Fprintln(stdout, "the job is done: there is nothing to work on any more")
	return nil
}

// applyFault makes this process's own network, or its computing, fail as asked:
// "cut 0 2s", "slow 3 0s", "jitter 2 1s"; "end 0 0s" makes a worker end the job.
// Jitter is drawn of the seed.
func applyFault(o wire.Order, faults *transport.FaultLayer, p *pacer, seed uint64) {
	var kind, duration string
	var factor float64
	if _, err := fmt.Sscanf(o.Spec, "%s %g %s", &kind, &factor, &duration); err != nil {
		return
	}
	d, err := time.ParseDuration(duration)
	if err != nil {
		return
	}
	switch {
	case kind == "cut":
		faults.Cut(d)
	case p != nil && kind == "end":
		p.enough.Store(true)
	case p != nil:
		p.set(kind, factor, d, seed)
	case kind == "slow":
		faults.Slow(factor, d)
	case kind == "jitter":
		faults.Jitter(factor, d, seed)
	}
}

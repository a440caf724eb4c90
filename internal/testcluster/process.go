package testcluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/hooks"
	"github.com/perdure/perdure/internal/proc/server"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/worker"
)

// anyPort is the listen address of processes that use sockets.
const anyPort = "127.0.0.1:0"

// Process is one incarnation of a host.
type Process struct {
	Host, Name string
	PID        int // start order of the processes
	Net        transport.Network
	Disk       disk.FS // rejects writes once the process is dead
	Log        *slog.Logger

	hosts   *Hosts
	ctx     context.Context
	cancel  context.CancelFunc
	dead    *atomic.Bool
	drain   chan struct{}
	ended   chan struct{} // nil: Go was not called
	err     error         // result of the process; valid once ended is closed
	cleanup func()        // cleanup when it ends; may be nil
}

// store returns the store of the job's checkpoints.
func (p *Process) store() store.Store { return store.NewDir(p.Disk, "checkpoint") }

// NewProcess creates a process of a host: "coordinator", "server:0", or any name.
func (h *Hosts) NewProcess(host string) *Process {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.processCount++
	p := &Process{
		Host:  host,
		Name:  fmt.Sprintf("%s#%d", host, h.processCount),
		PID:   h.processCount,
		Net:   h.network(host),
		hosts: h,
		dead:  new(atomic.Bool),
		drain: make(chan struct{}),
	}
	p.Disk = &processDisk{FS: h.Disk, dead: p.dead, syncDuration: h.o.Sync}
	p.Log = h.o.Log.With("process", p.Name)
	p.ctx, p.cancel = context.WithCancel(h.ctx)
	h.processes[host] = p
	return p
}

// Start creates a process of a host that executes run.
func (h *Hosts) Start(host string, run func(ctx context.Context, p *Process) error) *Process {
	p := h.NewProcess(host)
	p.Go(func(ctx context.Context) error { return run(ctx, p) })
	return p
}

// Go runs a function as the process. It must be called at most once.
func (p *Process) Go(run func(ctx context.Context) error) {
	p.ended = make(chan struct{})
	p.hosts.Go(func() {
		p.err = run(p.ctx)
		if p.cleanup != nil {
			p.cleanup()
		}
		close(p.ended)
		if !p.dead.Load() && p.ctx.Err() == nil && p.hosts.o.Ended != nil {
			p.hosts.o.Ended(p, p.err)
		}
	})
}

// Kill ends the process immediately without waiting for it. Messages in transit are dropped and later writes fail.
func (p *Process) Kill() {
	p.dead.Store(true)
	p.hosts.Net.Kill(p.Host)
	p.cancel()
}

// Stop asks the process to end.
func (p *Process) Stop() { p.cancel() }

// Drain asks a server to hand over its shards and end. It must be called at most once.
func (p *Process) Drain() { close(p.drain) }

// Dead reports whether the process was killed.
func (p *Process) Dead() bool { return p.dead.Load() }

// Wait waits until the process has ended and returns its error.
func (p *Process) Wait() error {
	if p.ended == nil {
		return nil // only its name and network are used
	}
	<-p.ended
	return p.err
}

// Ended returns a channel that is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// hostOf returns the host of an in-memory address.
func hostOf(addr string) string {
	host, _, _ := strings.Cut(addr, "/")
	return host
}

// ParseHost parses a host's name into a role and an index. index is -1 if the coordinator assigns it.
func ParseHost(host string) (role wire.Role, index int) {
	kind, number, _ := strings.Cut(host, ":")
	index, err := strconv.Atoi(number)
	if err != nil || kind == unnumberedServer {
		index = -1
	}
	if kind == unnumberedServer {
		kind = string(wire.RoleServer)
	}
	return wire.Role(kind), index
}

// UnnumberedServer returns the name of the n-th host whose server has no fixed index.
func UnnumberedServer(n int) string { return fmt.Sprintf("%s:%d", unnumberedServer, n) }

// network returns the network of one process of a host.
func (h *Hosts) network(host string) transport.Network {
	if h.o.Sockets != nil {
		return *h.o.Sockets
	}
	return h.Net.Host(host)
}

// listenAddr returns the listen address of a server or worker.
func (p *Process) listenAddr() string {
	if p.hosts.o.Sockets != nil {
		return anyPort
	}
	return p.Host + "/0"
}

// coordinatorAddr returns the address of the newest coordinator, or of the first one before it starts.
func (h *Hosts) coordinatorAddr() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.coordinator
}

// NewCoordinator creates a coordinator; the process must call Run with Go. It already listens. On the in-memory network
// it uses port 1 of its host, where processes that start later look for it.
func (p *Process) NewCoordinator(start membership.JobRecord, change ...func(*coordinator.Config)) (
	co *coordinator.Coordinator, err error,
) {
	addr := p.Host + "/1"
	if p.hosts.o.Sockets != nil {
		addr = p.hosts.coordinatorAddr() // the previous coordinator's address, if any
	}
	l, err := p.Net.Listen(addr)
	if err != nil {
		return nil, err
	}
	r, err := registry.OpenFile(p.Disk, "registry/facts")
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	p.cleanup = func() { r.Close() }
	cfg := coordinator.Config{
		Listener: l, Registry: r, NewJob: &start, Store: p.store(), StoreAddr: "checkpoint", Keep: 1, Log: p.Log,
		Keys: p.hosts.Keys,
	}
	for _, f := range change {
		f(&cfg)
	}
	if co, err = coordinator.New(p.ctx, cfg); err != nil {
		p.cleanup()
		return nil, errors.Join(err, l.Close())
	}
	p.hosts.mu.Lock()
	defer p.hosts.mu.Unlock()
	p.hosts.coordinator, p.hosts.leader = l.Addr(), co
	return co, nil
}

// StartCoordinator starts the coordinator of a new job. It returns an error if the coordinator cannot be created.
func (h *Hosts) StartCoordinator(job perdure.JobSpec, change ...func(*coordinator.Config)) (*Process, error) {
	p := h.NewProcess(CoordinatorHost)
	co, err := p.NewCoordinator(membership.NewJobRecord(job, 1, 0, nil), change...)
	if err != nil {
		return nil, err
	}
	p.Go(co.Run)
	return p, nil
}

// StartServer starts a server whose index follows from its host's name.
func (h *Hosts) StartServer(host string, change ...func(*server.Config)) *Process {
	p := h.NewProcess(host)
	p.Go(func(ctx context.Context) error { return p.RunServer(ctx, change...) })
	return p
}

// RunServer runs a server until it ends.
func (p *Process) RunServer(ctx context.Context, change ...func(*server.Config)) error {
	_, index := ParseHost(p.Host)
	cfg := server.Config{
		Index: index, Self: server.Identity{Process: p.Name, PID: p.PID}, Network: p.Net, Listen: p.listenAddr(),
		Coordinator: p.hosts.coordinatorAddr(), Store: p.store(), Snapshots: store.NewDir(p.Disk, "snapshots"),
		OpenLog: p.openLog(ctx), Log: p.Log, Drain: p.drain, Keys: p.hosts.Keys,
	}
	for _, f := range change {
		f(&cfg)
	}
	return server.Run(ctx, cfg)
}

// DialConfig is a worker's Config and the hooks in its context.
type DialConfig struct {
	worker.Config
	hooks.Worker
}

// Dial joins the job as a worker of a slot. The caller must close the client. Its log ends with ctx.
func (p *Process) Dial(ctx context.Context, slot perdure.Slot, change ...func(*DialConfig)) (*worker.Client, error) {
	cfg := DialConfig{
		worker.Config{
			Coordinator: p.hosts.coordinatorAddr(), Slot: slot.Exactly(), Process: p.Name, PID: p.PID,
			Log: p.Log, Secret: p.hosts.Keys.Job,
		},
		hooks.Worker{
			Network: p.Net, OpenLog: p.openLog(ctx),
			OpenStore: func(context.Context, string) (store.Store, error) { return p.store(), nil },
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	return worker.Dial(hooks.NewContext(ctx, cfg.Worker), cfg.Config)
}

// openLog returns a function that opens the job's update log. When the process ends, its entries in transit are
// dropped.
func (p *Process) openLog(life context.Context) func(context.Context, string, updatelog.Options) (updatelog.Log,
	error) {
	return func(_ context.Context, _ string, o updatelog.Options) (updatelog.Log, error) {
		l, err := p.hosts.Logs().Open(o)
		if err == nil {
			context.AfterFunc(life, func() { _ = l.Close() })
		}
		return l, err
	}
}

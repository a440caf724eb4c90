// Package sim runs a whole cluster (coordinator, servers, workers) in one
// process, over the in-memory network and disk, in virtual time. It is for
// tests only: no product package imports it.
//
// A [Cluster] runs the same shells as real processes do; only the network, the
// disk and the clock are others. Killing a host breaks its connections, makes
// its disk fail from then on, and cancels its goroutines; a new process takes
// its place. Everything drawn is a function of the seed.
package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/server"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/worker"
)

// CoordinatorAddr is where a cluster's coordinator listens.
const CoordinatorAddr = coordinatorHost + "/1"

const coordinatorHost = "coordinator"

// Options say what a cluster is like.
type Options struct {
	Seed    uint64
	Job     perdure.JobSpec
	Network transport.MemoryOptions
	Sync    time.Duration                                     // the most that syncing a file takes
	Program func(ctx context.Context, w *worker.Client) error // what every worker runs
	// how many failure domains the servers are in; 0: not known
	Zones int
	// Parent says that the processes have one, who tells the coordinator at once that
	// one has died, and kills suspects. Else silence tells it, or the next process.
	Parent bool
	Retain int64 // bytes of updates that a worker may keep for want of a checkpoint; 0: the usual
	// checkpoints written in the background have only what has changed, however little that spares
	Follow bool
	Plan   []Planned           // who takes part from which clocks on
	Saved  func(*perdure.View) // is told of every view before anybody acts on it; may be nil
	Log    *slog.Logger        // nil: none

	SnapshotBytes int64 // of an update log, after which shards are written; 0: 256 MiB
	LogBytes      int64 // that it takes at most, of all shards; 0: there is no bound

	Weak weaken.Set // negative controls: mechanisms that are switched off
}

// outAfter is how long a shard may owe a worker an answer, where jobs go on without it.
const outAfter = 10 * time.Millisecond

// Cluster is a running cluster.
type Cluster struct {
	o    Options
	net  *transport.Memory
	disk *disk.Memory
	ctx  context.Context
	stop context.CancelCauseFunc
	wg   sync.WaitGroup

	merged atomic.Int64 // frames of updates of several clocks
	died   atomic.Int64 // when a server did last, or what one had said came late, in Unix nanoseconds

	mu     sync.Mutex // guards what follows
	logs   *updatelog.Memory
	procs  map[string]*process
	hosts  []string          // all that there ever were
	away   map[string]int    // hosts that nobody should count on: cut off, or leaving; how many times over
	barred map[[2]string]int // how many faults keep two hosts apart
	exits  []wire.Exited     // that the parent has seen
	to     transport.Conn    // from the parent to the coordinator; nil: there is none
	ends   []*checkpoint.Segment
	lives  int
	rng    *rand.Rand
	left   int // workers that have not ended well yet
	co     *coordinator.Coordinator
	terms  []term          // that have begun beside those of the job's first slots
	next   map[string]bool // workers that have another term to do after this one
	// working counts, by worker, the terms that have not ended well.
	working map[string]int
}

// tick is how often the coordinator looks at the time: more often than usual where cuts
// are named then, since jobs are short.
func (c *Cluster) tick() time.Duration {
	if c.o.Job.Recovery.Auto {
		return 10 * time.Millisecond
	}
	return 0
}

// process is one life of one host.
type process struct {
	host, name string
	role       wire.Role
	index      int // -1: the coordinator chooses
	pid        int
	cancel     context.CancelFunc
	dead       *atomic.Bool
	drain      chan struct{}
	draining   bool          // drain is closed
	pause      time.Duration // then: when the next process comes after this one
}

// Start starts a cluster. Every process is there at once.
func Start(ctx context.Context, o Options) *Cluster {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancelCause(context.WithValue(ctx, weaken.Key{}, o.Weak))
	c := &Cluster{
		o: o, net: transport.NewMemory(o.Seed, o.Network), disk: disk.NewMemory(), logs: updatelog.NewMemory(),
		ctx: ctx, stop: stop, procs: map[string]*process{}, away: map[string]int{}, barred: map[[2]string]int{},
		next: map[string]bool{}, working: map[string]int{}, left: o.Job.Slots,
		rng: rand.New(rand.NewPCG(o.Seed, 2)),
	}
	c.logs.SetLimit(int(o.LogBytes) / o.Job.Shards)
	c.start(coordinatorHost)
	if o.Parent {
		c.wg.Go(func() { c.parent(ctx) })
	}
	for i := range o.Job.Servers {
		c.start(fmt.Sprintf("server:%d", i))
	}
	for i := range o.Job.Slots {
		host := fmt.Sprintf("worker:%d", i)
		c.mu.Lock()
		c.working[host]++
		c.mu.Unlock()
		c.start(host)
	}
	return c
}

// Wait waits until every worker has ended well, or anything failed, and ends
// the cluster.
func (c *Cluster) Wait() error {
	<-c.ctx.Done()
	err := context.Cause(c.ctx)
	c.wg.Wait()
	if errors.Is(err, errDone) {
		return nil
	}
	return err
}

var errDone = errors.New("sim: the job is done")

// Ends returns what the replicas held that served when the cluster ended.
func (c *Cluster) Ends() []*checkpoint.Segment { return c.ends }

// Disk is the disk that all processes share.
func (c *Cluster) Disk() disk.FS { return c.disk }

func (c *Cluster) start(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.procs[host] != nil {
		return
	}
	c.lives++
	ctx, cancel := context.WithCancel(c.ctx)
	p := &process{
		host: host, name: fmt.Sprintf("%s#%d", host, c.lives), pid: c.lives, cancel: cancel, dead: new(atomic.Bool),
		drain: make(chan struct{}),
	}
	p.role, p.index = roleOf(host)
	c.procs[host] = p
	if !slices.Contains(c.hosts, host) {
		c.hosts = append(c.hosts, host)
	}
	run := c.program(p)
	c.wg.Go(func() {
		err := run(ctx)
		if p.dead.Load() || ctx.Err() != nil {
			return
		}
		c.over(p, err)
	})
}

// over deals with a process that has ended by itself, as its parent does.
func (c *Cluster) over(p *process, err error) {
	c.mu.Lock()
	draining, pause := p.draining, p.pause
	c.mu.Unlock()
	var v *Violation
	switch {
	case errors.As(err, &v) && v.Speaker && !c.speaks(p):
		c.Kill(p.host, 0)
	case errors.Is(err, perdure.ErrFenced):
		c.Kill(p.host, 0)
	case errors.Is(err, perdure.ErrStopped) && draining:
		c.Kill(p.host, pause) // it has handed over
	case err != nil && !errors.Is(err, perdure.ErrStopped):
		c.stop(fmt.Errorf("%s: %w", p.name, err))
	}
}

// speaks reports whether the registry says that a worker speaks for its slot.
func (c *Cluster) speaks(p *process) bool {
	facts, err := c.Facts()
	return err != nil || facts.Slots[p.index].Process == p.name
}

// newcomer is the name of a host whose server has no place of its own.
const newcomer = "newcomer:"

// roleOf reads a host's name.
func roleOf(host string) (role wire.Role, index int) {
	switch {
	case strings.HasPrefix(host, newcomer):
		return wire.RoleServer, -1
	case host == coordinatorHost:
		return wire.RoleCoordinator, 0
	}
	kind, number, _ := strings.Cut(host, ":")
	index, err := strconv.Atoi(number)
	if err != nil {
		panic(fmt.Sprintf("sim: there is no host %q", host))
	}
	return wire.Role(kind), index
}

// program returns what a process does.
func (c *Cluster) program(p *process) func(context.Context) error {
	fs := &mortalDisk{FS: c.disk, dead: p.dead, sync: c.syncTime}
	network := c.net.Host(p.host)
	log := c.log(p.name)
	switch p.role {
	case wire.RoleServer:
		zone := ""
		if _, number, _ := strings.Cut(p.host, ":"); c.o.Zones > 0 {
			n, _ := strconv.Atoi(number) // as roleOf has checked
			zone = fmt.Sprintf("zone-%d", n%c.o.Zones)
		}
		return func(ctx context.Context) error {
			return server.Run(ctx, server.Config{
				Index: p.index, Process: p.name, PID: p.pid, Network: network, Listen: p.host + "/0",
				Coordinator: CoordinatorAddr,
				Zone:        zone, Disk: fs, CheckpointDir: "checkpoint", SnapshotDir: "snapshots",
				SnapshotBytes: c.o.SnapshotBytes, LogBytes: c.o.LogBytes,
				OpenLog: c.openLog(ctx), Log: log, Drain: p.drain,
				Ended:  func(seg *checkpoint.Segment) { c.ended(p, seg) },
				Follow: c.o.Follow,
			})
		}
	case wire.RoleWorker:
		return func(ctx context.Context) error { return c.work(ctx, p, network, log) }
	}
	return func(ctx context.Context) error { return c.coordinate(ctx, network, fs, log) }
}

// log returns a process's log.
func (c *Cluster) log(process string) *slog.Logger { return c.o.Log.With("process", process) }

func (c *Cluster) ended(p *process, seg *checkpoint.Segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !p.dead.Load() {
		c.ends = append(c.ends, seg)
	}
}

func (c *Cluster) coordinate(ctx context.Context, network transport.Network, fs disk.FS, log *slog.Logger) error {
	l, err := network.Listen(CoordinatorAddr)
	if err != nil {
		return err
	}
	r, err := registry.OpenFile(fs, "registry/facts")
	if err != nil {
		return err
	}
	defer r.Close()
	first := begin(c.o.Job, c.o.Plan)
	co, err := coordinator.New(ctx, coordinator.Config{
		Listener: l, Registry: tapped{r, c.onSaved}, Begin: &first, Disk: fs, CheckpointDir: "checkpoint", Log: log,
		Tick: c.tick(),
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.co = co
	c.mu.Unlock()
	return co.Run(ctx)
}

func (c *Cluster) work(ctx context.Context, p *process, network transport.Network, log *slog.Logger) error {
	w, err := worker.Dial(ctx, worker.Config{
		Network: countedNet{network, c}, Coordinator: CoordinatorAddr, Slot: perdure.Slot(p.index), Process: p.name,
		PID: p.pid, Log: log, Patience: time.Hour,
		OpenLog:     c.openLog(ctx),
		OutAfter:    outAfter,
		RetainBytes: c.o.Retain,
	})
	if err == nil {
		defer w.Close()
		err = c.o.Program(ctx, w)
	}
	if err != nil && !errors.Is(err, perdure.ErrStopped) {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.procs, p.host)
	c.working[p.host]--
	if c.left--; c.left == 0 {
		c.stop(errDone)
	}
	if c.next[p.host] {
		delete(c.next, p.host)
		c.later(0, func() { c.start(p.host) })
	}
	return nil
}

// syncTime draws how long a file takes to be synced.
func (c *Cluster) syncTime() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.rng.Int64N(int64(c.o.Sync) + 1))
}

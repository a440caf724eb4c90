package worker_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/server"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/worker"
)

var (
	showLog = flag.Bool("worker.log", false, "show what the processes log")
	seed    = flag.Uint64("worker.seed", 1, "of networks and of what is drawn")
)

const coordinatorAddr = "coordinator/1"

// cluster is a small cluster in one process, in virtual time.
type cluster struct {
	*testing.T
	ctx       context.Context
	job       perdure.JobSpec
	net       *transport.Memory
	keys      wire.Keys // what everybody shows; none: nobody asks
	disk      *disk.Memory
	logs      *updatelog.Memory
	log       *slog.Logger
	wg        sync.WaitGroup
	lives     atomic.Int64
	leader    atomic.Pointer[coordinator.Coordinator]
	slow      func(updatelog.Log) updatelog.Log // what servers read the log through; nil: nothing
	processes map[string]*process
	// servers create no file before it is closed; nil: they may
	unwritten chan struct{}
	// how long a server takes to write what it pushes, in nanoseconds
	landing atomic.Int64
	around  func(host string, n transport.Network) transport.Network // what a server speaks over; nil: the network
}

// process is one life of the coordinator or a server.
type process struct {
	cancel context.CancelFunc
	killed atomic.Bool
	ended  chan struct{}
}

// inCluster runs a test in a cluster of 2 servers and 4 shards.
func inCluster(t *testing.T, model, recovery string, slots int, clocks perdure.Clock, test func(c *cluster)) {
	t.Helper()
	inClusterOf(t, transport.MemoryOptions{}, nil, model, recovery, slots, clocks, test)
}

// inClusterOf is inCluster over another network: around is what a server puts
// around its own.
func inClusterOf(
	t *testing.T, like transport.MemoryOptions, around func(string, transport.Network) transport.Network, model,
	recovery string, slots int, clocks perdure.Clock, test func(c *cluster),
) {
	t.Helper()
	job := perdure.JobSpec{ID: "test", Seed: *seed, Slots: slots, Servers: 2, Shards: 4, Clocks: clocks}
	var err error
	if job.Consistency, job.TableConsistency,
		err = perdure.ParseModels(model, perdure.Consistency{Kind: perdure.BSP}); err != nil {
		t.Fatal(err)
	}
	if job.Recovery, err = perdure.ParseRecovery(recovery); err != nil {
		t.Fatal(err)
	}
	inJob(t, like, around, job, test)
}

// inJob is inClusterOf for a job as it is given.
func inJob(
	t *testing.T, like transport.MemoryOptions, around func(string, transport.Network) transport.Network,
	job perdure.JobSpec, test func(c *cluster),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // virtual
		c := &cluster{
			T: t, ctx: ctx, job: job, net: transport.NewMemory(*seed, like), disk: disk.NewMemory(),
			logs: updatelog.NewMemory(),
			log:  slog.New(slog.DiscardHandler), processes: map[string]*process{}, around: around,
		}
		if job.ID == guardedJob {
			c.keys = wire.Keys{Job: "the job's", Servers: "the servers'"}
		}
		if *showLog {
			c.log = slog.New(slog.NewTextHandler(os.Stderr, nil))
		}
		t.Cleanup(func() { cancel(); c.wg.Wait() })
		c.start("coordinator")
		for i := range job.Servers {
			c.start(fmt.Sprintf("server:%d", i))
		}
		test(c)
	})
}

// start starts a process of a host.
func (c *cluster) start(host string) {
	ctx, cancel := context.WithCancel(c.ctx)
	p := &process{cancel: cancel, ended: make(chan struct{})}
	c.processes[host] = p
	run, name := c.coordinate, fmt.Sprintf("%s#%d", host, c.lives.Add(1))
	var index int
	if _, err := fmt.Sscanf(host, "server:%d", &index); err == nil {
		files := lateFS{c.disk, c.unwritten} // as it is now: the test may change it
		run = func(ctx context.Context) error {
			net := c.net.Host(host)
			if c.around != nil {
				net = c.around(host, net)
			}
			return server.Run(ctx, server.Config{
				Index: index, Process: name, Network: slowWriter{net, &c.landing}, Listen: host + "/0",
				Coordinator: coordinatorAddr,
				Disk:        files, CheckpointDir: "checkpoint", Log: c.log.With("process", name),
				SnapshotDir: "snapshots", OpenLog: c.openServersLog, Keys: c.keys,
			})
		}
	}
	c.wg.Go(func() {
		defer close(p.ended)
		if err := run(ctx); ctx.Err() == nil && !p.killed.Load() {
			c.Errorf("%s ended: %v", name, err)
		}
	})
}

func (c *cluster) coordinate(ctx context.Context) error {
	l, err := c.net.Host("coordinator").Listen(coordinatorAddr)
	if err != nil {
		return err
	}
	r, err := registry.OpenFile(c.disk, "registry/facts")
	if err != nil {
		return err
	}
	defer r.Close()
	begin := membership.Begin(c.job, 1, 0, nil)
	co, err := coordinator.New(ctx, coordinator.Config{
		Listener: l, Registry: r, Begin: &begin, Disk: c.disk, CheckpointDir: "checkpoint",
		Log: c.log.With("process", "coordinator"), Keys: c.keys,
	})
	if err != nil {
		return err
	}
	c.leader.Store(co)
	return co.Run(ctx)
}

// lateFS is a disk on which no file is created before a channel is closed, if there is one.
type lateFS struct {
	disk.FS
	from <-chan struct{}
}

func (f lateFS) Create(name string) (disk.File, error) {
	if f.from != nil {
		<-f.from
	}
	return f.FS.Create(name)
}

// openLog opens the update log that all processes share.
func (c *cluster) openLog(_ context.Context, _ string, o updatelog.Options) (updatelog.Log, error) {
	return c.logs.Open(o)
}

func (c *cluster) openServersLog(ctx context.Context, addr string, o updatelog.Options) (updatelog.Log, error) {
	l, err := c.openLog(ctx, addr, o)
	if err == nil && c.slow != nil {
		l = c.slow(l)
	}
	return l, err
}

// kill ends a host's process; nothing it still sends arrives.
func (c *cluster) kill(host string) {
	c.processes[host].killed.Store(true)
	c.net.Kill(host)
	c.processes[host].cancel()
	<-c.processes[host].ended
}

// dial joins as a worker, from a host of its own.
func (c *cluster) dial(host string, slot perdure.Slot, with ...func(*worker.Config)) *worker.Client {
	c.Helper()
	w, err := c.tryDial(host, slot, with...)
	if err != nil {
		c.Fatal(err)
	}
	return w
}

func (c *cluster) tryDial(host string, slot perdure.Slot, with ...func(*worker.Config)) (*worker.Client, error) {
	cfg := worker.Config{
		Network: c.net.Host(host), Coordinator: coordinatorAddr, Slot: slot,
		Process: fmt.Sprintf("%s#%d", host, c.lives.Add(1)), OpenLog: c.openLog, Log: c.log.With("process", host),
		Secret: c.keys.Job,
	}
	for _, f := range with {
		f(&cfg)
	}
	w, err := worker.Dial(c.ctx, cfg)
	if err == nil {
		c.Cleanup(func() { w.Close() })
	}
	return w, err
}

// workers joins with one client for each slot.
func (c *cluster) workers(with ...func(*worker.Config)) []*worker.Client {
	c.Helper()
	clients := make([]*worker.Client, c.job.Slots)
	for i := range clients {
		clients[i] = c.dial(fmt.Sprintf("worker:%d", i), perdure.Slot(i), with...)
	}
	return clients
}

const (
	rows = 11
	dim  = 3
)

// table opens the table that the tests use.
func (c *cluster) table(w *worker.Client, change ...func(*perdure.TableSpec)) *worker.Table {
	c.Helper()
	spec := perdure.TableSpec{Name: "t", Rows: rows, Dim: dim, Rule: perdure.Rule{Kind: perdure.RuleAdd}}
	for _, f := range change {
		f(&spec)
	}
	t, err := w.Table(c.ctx, spec)
	if err != nil {
		c.Fatal(err)
	}
	return t
}

func (c *cluster) tables(ws []*worker.Client) []*worker.Table {
	c.Helper()
	ts := make([]*worker.Table, len(ws))
	for i, w := range ws {
		ts[i] = c.table(w)
	}
	return ts
}

// clock ends a clock and checks which one is next.
func (c *cluster) clock(w *worker.Client, want perdure.Clock) {
	c.Helper()
	if got, err := w.Clock(c.ctx); err != nil || got != want {
		c.Fatalf("slot %d: Clock gave %d, %v; want %d", w.Slot(), got, err, want)
	}
}

// inc adds v to every value of all rows.
func (c *cluster) inc(t *worker.Table, v float32) {
	c.Helper()
	delta := make([]float32, rows*dim)
	for i := range delta {
		delta[i] = v
	}
	if err := t.IncRun(0, delta); err != nil {
		c.Fatal(err)
	}
}

// get reads all rows, all values of which must be the same.
func (c *cluster) get(t *worker.Table) float32 {
	c.Helper()
	got := make([]float32, rows*dim)
	if err := t.GetRun(c.ctx, 0, got); err != nil {
		c.Fatal(err)
	}
	for _, v := range got {
		if v != got[0] {
			c.Fatalf("a clock was torn: %v", got)
		}
	}
	return got[0]
}

// within returns a context that ends after a while.
func (c *cluster) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(c.ctx, d)
	c.Cleanup(cancel)
	return ctx
}

// pass lets virtual time pass.
func (c *cluster) pass(d time.Duration) { <-time.After(d) }

// go1 runs f beside the test and returns where its result comes.
func go1[T any](f func() T) chan T {
	out := make(chan T, 1)
	go func() { out <- f() }()
	return out
}

// both runs f for each slot at once and waits for all.
func both(n int, f func(slot int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

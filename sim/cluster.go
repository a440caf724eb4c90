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
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/checkpoint"
	"github.com/perdure/perdure/consistency"
	"github.com/perdure/perdure/coordinator"
	"github.com/perdure/perdure/disk"
	"github.com/perdure/perdure/membership"
	"github.com/perdure/perdure/registry"
	"github.com/perdure/perdure/server"
	"github.com/perdure/perdure/transport"
	"github.com/perdure/perdure/worker"
)

// CoordinatorAddr is where a cluster's coordinator listens.
const CoordinatorAddr = "coordinator/1"

// Options say what a cluster is like.
type Options struct {
	Seed    uint64
	Job     perdure.JobSpec
	Network transport.MemoryOptions
	Sync    time.Duration                                     // the most that syncing a file takes
	Program func(ctx context.Context, w *worker.Client) error // what every worker runs
	Log     *slog.Logger                                      // nil: none

	// Negative controls: a mechanism that is switched off.
	Weakened            consistency.Weakened
	WeakenedGenerations bool
}

// Cluster is a running cluster.
type Cluster struct {
	o    Options
	net  *transport.Memory
	disk *disk.Memory
	ctx  context.Context
	stop context.CancelCauseFunc
	wg   sync.WaitGroup

	mu    sync.Mutex // guards what follows
	procs map[string]*process
	away  map[string]int // hosts that nobody should count on: dead, or cut off; how many times over
	ends  []*checkpoint.Segment
	lives int
	rng   *rand.Rand
	left  int // workers that have not ended well yet
}

// process is one life of one host.
type process struct {
	name   string
	cancel context.CancelFunc
	dead   *atomic.Bool
}

// Start starts a cluster. Every process is there at once.
func Start(ctx context.Context, o Options) *Cluster {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancelCause(ctx)
	c := &Cluster{
		o: o, net: transport.NewMemory(o.Seed, o.Network), disk: disk.NewMemory(),
		ctx: ctx, stop: stop, procs: map[string]*process{}, away: map[string]int{}, left: o.Job.Slots,
		rng: rand.New(rand.NewPCG(o.Seed, 2)),
	}
	c.start("coordinator")
	for i := range o.Job.Servers {
		c.start(fmt.Sprintf("server:%d", i))
	}
	for i := range o.Job.Slots {
		c.start(fmt.Sprintf("worker:%d", i))
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

// Spares reports whether every shard would keep a replica without a host: one on a
// server that lives, is not cut off, and is the process that the registry names.
func (c *Cluster) Spares(host string) bool {
	r, err := registry.OpenFile(unlocked{c.disk}, "registry/facts")
	if err != nil {
		return false
	}
	defer r.Close()
	doc, revision, err := r.Load(c.ctx)
	var facts membership.Facts
	if err != nil || revision == 0 || json.Unmarshal(doc, &facts) != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	lives := func(h perdure.Holder) bool {
		name := fmt.Sprintf("server:%d", h.Server)
		p, place := c.procs[name], facts.Servers[h.Server]
		return name != host && c.away[name] == 0 && p != nil && p.name == place.Process && h.Incarnation == place.Incarnation
	}
	for i := range facts.View.Shards {
		sv := &facts.View.Shards[i]
		left := false
		for j := range sv.Replicas() {
			left = left || lives(sv.Replica(j))
		}
		if !left {
			return false
		}
	}
	return true
}

// unlocked is a disk whose files are only looked at.
type unlocked struct{ disk.FS }

// Disk is the disk that all processes share.
func (c *Cluster) Disk() disk.FS { return c.disk }

// Kill kills a host ("server:0") and starts its next process after a pause. A
// worker that has ended already stays so.
func (c *Cluster) Kill(host string, pause time.Duration) {
	c.mu.Lock()
	p := c.procs[host]
	delete(c.procs, host)
	c.mu.Unlock()
	if p == nil {
		return
	}
	p.dead.Store(true)
	c.net.Kill(host)
	p.cancel()
	c.wg.Go(func() {
		select {
		case <-time.After(pause):
			c.start(host)
		case <-c.ctx.Done():
		}
	})
}

// Cut lets nothing through between two hosts for a while. What is sent meanwhile
// comes late, or the connection breaks.
func (c *Cluster) Cut(a, b string, oneWay bool, d time.Duration) {
	c.net.Cut(a, b, oneWay)
	c.leave(a, 1)
	c.leave(b, 1)
	c.wg.Go(func() {
		select {
		case <-time.After(d):
		case <-c.ctx.Done():
		}
		c.net.Heal(a, b)
		c.leave(a, -1)
		c.leave(b, -1)
	})
}

func (c *Cluster) leave(host string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away[host] += n
}

// Fill makes the disk full for a while: nothing more can be written.
func (c *Cluster) Fill(d time.Duration) {
	c.disk.Limit(1)
	c.wg.Go(func() {
		select {
		case <-time.After(d):
		case <-c.ctx.Done():
		}
		c.disk.Limit(0)
	})
}

func (c *Cluster) start(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lives++
	ctx, cancel := context.WithCancel(c.ctx)
	p := &process{name: fmt.Sprintf("%s#%d", host, c.lives), cancel: cancel, dead: new(atomic.Bool)}
	c.procs[host] = p
	run := c.role(host, p)
	c.wg.Go(func() {
		err := run(ctx)
		if p.dead.Load() || ctx.Err() != nil {
			return
		}
		if errors.Is(err, perdure.ErrFenced) {
			c.Kill(host, 0) // its supervisor starts the next
			return
		}
		if err != nil && !errors.Is(err, perdure.ErrStopped) {
			c.stop(fmt.Errorf("%s: %w", p.name, err))
		}
	})
}

// role returns what a host's process does.
func (c *Cluster) role(host string, p *process) func(context.Context) error {
	var kind string
	var index int
	if _, err := fmt.Sscanf(host, "server:%d", &index); err == nil {
		kind = "server"
	} else if _, err := fmt.Sscanf(host, "worker:%d", &index); err == nil {
		kind = "worker"
	}
	fs := &mortalDisk{FS: c.disk, dead: p.dead, sync: c.syncTime}
	network := c.net.Host(host)
	log := c.o.Log.With("process", p.name)
	switch kind {
	case "server":
		return func(ctx context.Context) error {
			return server.Run(ctx, server.Config{
				Index: index, Process: p.name, Network: network, Listen: host + "/0", Coordinator: CoordinatorAddr,
				Disk: fs, CheckpointDir: "checkpoint", Log: log,
				Ended:    func(seg *checkpoint.Segment) { c.ended(p, seg) },
				Weakened: c.o.Weakened, WeakenedGenerations: c.o.WeakenedGenerations,
			})
		}
	case "worker":
		return func(ctx context.Context) error { return c.work(ctx, index, p, network, log) }
	}
	return func(ctx context.Context) error { return c.coordinate(ctx, network, fs, log) }
}

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
	begin := membership.Begin(c.o.Job, 1, 0, nil)
	return coordinator.Run(ctx, coordinator.Config{
		Listener: l, Registry: r, Begin: &begin, Disk: fs, CheckpointDir: "checkpoint", Log: log,
	})
}

func (c *Cluster) work(ctx context.Context, index int, p *process, network transport.Network, log *slog.Logger) error {
	w, err := worker.Dial(ctx, worker.Config{
		Network: network, Coordinator: CoordinatorAddr, Slot: perdure.Slot(index), Process: p.name, Log: log,
		WeakenedGenerations: c.o.WeakenedGenerations,
		WeakenedBound:       c.o.Weakened.Bound,
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
	delete(c.procs, fmt.Sprintf("worker:%d", index))
	if c.left--; c.left == 0 {
		c.stop(errDone)
	}
	return nil
}

// syncTime draws how long a file takes to be synced.
func (c *Cluster) syncTime() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.rng.Int64N(int64(c.o.Sync) + 1))
}

// mortalDisk is the disk as one process sees it: once the process is dead,
// nothing it does reaches the disk.
type mortalDisk struct {
	disk.FS
	dead *atomic.Bool
	sync func() time.Duration
}

type mortalFile struct {
	disk.File
	disk *mortalDisk
}

func (d *mortalDisk) alive() error {
	if d.dead.Load() {
		return disk.ErrCrashed
	}
	return nil
}

func (d *mortalDisk) Create(path string) (disk.File, error) {
	if err := d.alive(); err != nil {
		return nil, err
	}
	f, err := d.FS.Create(path)
	return &mortalFile{f, d}, err
}

func (d *mortalDisk) Rename(from, to string) error {
	if err := d.alive(); err != nil {
		return err
	}
	return d.FS.Rename(from, to)
}

func (d *mortalDisk) Remove(path string) error {
	if err := d.alive(); err != nil {
		return err
	}
	return d.FS.Remove(path)
}

func (d *mortalDisk) Open(path string) (io.ReadCloser, error) {
	if err := d.alive(); err != nil {
		return nil, err
	}
	return d.FS.Open(path)
}

func (f *mortalFile) Write(b []byte) (int, error) {
	if err := f.disk.alive(); err != nil {
		return 0, err
	}
	return f.File.Write(b)
}

func (f *mortalFile) Sync() error {
	<-time.After(f.disk.sync())
	if err := f.disk.alive(); err != nil {
		return err
	}
	return f.File.Sync()
}

// Package sim runs a whole cluster (coordinator, servers, workers) in one
// process, over the in-memory network and disk, in virtual time. It is for
// tests only: no product package imports it.
//
// A [Cluster] runs the same shells as real processes do, on the hosts of package
// rig; what it adds is what happens to them, and what becomes of a job by it: who
// is killed, and when the next process takes its place, is a function of the seed.
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
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/server"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/rig"
	"github.com/perdure/perdure/worker"
)

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
	// how large a slot's saved state is at most that does not lie in the store; 0: the usual
	StateBytes int
	// checkpoints written in the background have only what has changed, however little that spares
	Follow bool
	Plan   []Planned    // who takes part from which clocks on
	Next   *Next        // what the run goes on from; nil: it is a job that begins
	Told   Told         // who is told what happens; may be nil
	Log    *slog.Logger // nil: none

	Notice        time.Duration // that a server has to hand over, and ends then anyway; 0: as long as it takes
	SnapshotBytes int64         // of an update log, after which shards are written; 0: 256 MiB
	LogBytes      int64         // that it takes at most, of all shards; 0: there is no bound
	// Snapshots makes of the store in which they are what servers see; nil: it is that one.
	Snapshots func(store.Store) store.Store

	Weak weaken.Set // negative controls: mechanisms that are switched off
}

// Told is told what happens, as it does.
type Told interface {
	// Saved tells of what is recorded, before anybody acts on it. died are the slots of which a
	// process has.
	Saved(f *membership.Facts, fs disk.FS, died map[perdure.Slot]bool)
	// Acked tells how many of a slot's clocks a shard has acknowledged to the slot's process.
	Acked(slot perdure.Slot, shard perdure.ShardID, applied perdure.Clock)
	// Logged tells of an entry that the update log has acknowledged.
	Logged(h *wire.Header)
}

// outAfter is how long a shard may owe a worker an answer, where jobs go on without it.
const outAfter = 10 * time.Millisecond

// Cluster is a running cluster.
type Cluster struct {
	o     Options
	hosts *rig.Hosts
	ctx   context.Context
	stop  context.CancelCauseFunc

	merged atomic.Int64 // frames of updates of several clocks
	taken  atomic.Int64 // documents in which nobody waits for a dead server whose next process is to come
	died   atomic.Int64 // when a server did last, or what one had said came late, in Unix nanoseconds
	done   atomic.Int64 // when it was recorded that all is done, in Unix nanoseconds; 0: it is not

	mu     sync.Mutex // guards what follows
	procs  map[string]*process
	names  []string          // of all hosts that there ever were
	away   map[string]int    // hosts that nobody should count on: cut off, or leaving; how many times over
	barred map[[2]string]int // how many faults keep two hosts apart
	exits  []wire.Exited     // that the parent has seen
	to     transport.Conn    // from the parent to the coordinator; nil: there is none
	ends   []*checkpoint.Segment
	dead   map[perdure.Slot]bool // slots of which a process has died, or may have been given up
	rng    *rand.Rand
	left   int // workers that have not ended well yet
	// perished says that all processes are dead, and that none comes.
	perished bool
	terms    []term          // that have begun beside those of the job's first slots
	next     map[string]bool // workers that have another term to do after this one
	// working counts, by worker, the terms that have not ended well.
	working map[string]int
}

// tick is how often the coordinator looks at the time: more often than usual where cuts
// are named then, since jobs are short.
func (c *Cluster) tick() time.Duration {
	if c.o.Job.Recovery.Auto || recovery.RoundsOf(c.o.Job.Recovery).Any() { // or rounds recorded
		return 10 * time.Millisecond
	}
	return 0
}

// process is one life of one host.
type process struct {
	*rig.Process
	role     wire.Role
	index    int           // -1: the coordinator chooses
	draining bool          // it is to hand over
	pause    time.Duration // then: when the next process comes after this one
}

// Start starts a cluster. Every process is there at once.
func Start(ctx context.Context, o Options) *Cluster {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancelCause(context.WithValue(ctx, weaken.Key{}, o.Weak))
	c := &Cluster{
		o: o, ctx: ctx, stop: stop, procs: map[string]*process{}, away: map[string]int{}, barred: map[[2]string]int{},
		next: map[string]bool{}, working: map[string]int{},
		dead: map[perdure.Slot]bool{},
		rng:  rand.New(rand.NewPCG(o.Seed, 2)),
	}
	c.hosts = rig.New(ctx, rig.Options{Seed: o.Seed, Network: o.Network, Sync: c.syncTime, Log: o.Log})
	if o.Next != nil {
		c.hosts.Disk = o.Next.Disk
	}
	c.hosts.Logs().SetLimit(int(o.LogBytes) / o.Job.Shards)
	terms, workers := o.members()
	c.terms, c.left = terms, len(workers) // before the coordinator starts, which records slots at once
	for _, host := range workers {
		c.working[host]++
	}
	c.start(rig.CoordinatorHost)
	if o.Parent {
		c.hosts.Go(func() { c.parent(ctx) })
	}
	for i := range o.Job.Servers {
		c.start(fmt.Sprintf("server:%d", i))
	}
	for _, host := range workers {
		c.start(host)
	}
	return c
}

// Wait waits until every worker has ended well, or anything failed, and ends
// the cluster.
func (c *Cluster) Wait() error {
	<-c.ctx.Done()
	err := context.Cause(c.ctx)
	c.hosts.Wait()
	if errors.Is(err, errDone) {
		return nil
	}
	return err
}

var errDone = errors.New("sim: the job is done")

// Ends returns what the replicas held that served when the cluster ended.
func (c *Cluster) Ends() []*checkpoint.Segment { return c.ends }

// Disk is the disk that all processes share.
func (c *Cluster) Disk() disk.FS { return c.hosts.Disk }

func (c *Cluster) start(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.procs[host] != nil || c.perished {
		return
	}
	p := &process{Process: c.hosts.Life(host)}
	p.role, p.index = rig.Place(host)
	c.procs[host] = p
	if !slices.Contains(c.names, host) {
		c.names = append(c.names, host)
	}
	run := c.program(p)
	p.Go(func(ctx context.Context) error {
		err := run(ctx)
		if !p.Dead() && ctx.Err() == nil {
			c.over(p, err)
		}
		return err
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
		c.Kill(p.Host, 0)
	case errors.Is(err, perdure.ErrFenced):
		c.Kill(p.Host, 0)
	case errors.Is(err, perdure.ErrStopped) && draining:
		c.Kill(p.Host, pause) // it has handed over
	case err != nil && !errors.Is(err, perdure.ErrStopped):
		c.stop(fmt.Errorf("%s: %w", p.Name, err))
	}
}

// speaks reports whether the registry says that a worker speaks for its slot.
func (c *Cluster) speaks(p *process) bool {
	facts, err := c.Facts()
	return err != nil || facts.Slots[p.index].Process == p.Name
}

// program returns what a process does.
func (c *Cluster) program(p *process) func(context.Context) error {
	switch p.role {
	case wire.RoleServer:
		return func(ctx context.Context) error { return c.serve(ctx, p) }
	case wire.RoleWorker:
		return func(ctx context.Context) error { return c.work(ctx, p) }
	}
	return func(ctx context.Context) error { return c.coordinate(ctx, p) }
}

func (c *Cluster) serve(ctx context.Context, p *process) error {
	return p.Server(ctx, func(cfg *server.Config) {
		if _, number, _ := strings.Cut(p.Host, ":"); c.o.Zones > 0 {
			n, _ := strconv.Atoi(number) // a server's name ends with one
			cfg.Zone = fmt.Sprintf("zone-%d", n%c.o.Zones)
		}
		cfg.SnapshotBytes, cfg.LogBytes, cfg.Sparing = c.o.SnapshotBytes, c.o.LogBytes, c.o.Follow
		cfg.OpenLog, cfg.Notice = c.counted(cfg.OpenLog), c.o.Notice
		if c.o.Snapshots != nil {
			cfg.Snapshots = c.o.Snapshots(cfg.Snapshots)
		}
		cfg.Ended = func(seg *checkpoint.Segment) { c.ended(p, seg) }
	})
}

func (c *Cluster) ended(p *process, seg *checkpoint.Segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !p.Dead() {
		c.ends = append(c.ends, seg)
	}
}

func (c *Cluster) coordinate(ctx context.Context, p *process) error {
	co, err := p.Coordinator(c.o.begin(), func(cfg *coordinator.Config) {
		cfg.Registry, cfg.Tick = tapped{cfg.Registry, c.onSaved}, c.tick()
	})
	if err != nil {
		return err
	}
	return co.Run(ctx)
}

func (c *Cluster) work(ctx context.Context, p *process) error {
	w, err := p.Dial(ctx, perdure.Slot(p.index), func(cfg *rig.DialConfig) {
		cfg.Network, cfg.OpenLog = countedNet{cfg.Network, c, perdure.Slot(p.index)}, c.counted(cfg.OpenLog)
		cfg.Patience, cfg.OutAfter, cfg.RetainBytes = time.Hour, outAfter, c.o.Retain
		cfg.StateBytes = c.o.StateBytes
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
	delete(c.procs, p.Host)
	c.working[p.Host]--
	if c.left--; c.left == 0 {
		c.stop(errDone)
	}
	if c.next[p.Host] {
		delete(c.next, p.Host)
		c.later(0, func() { c.start(p.Host) })
	}
	return nil
}

// syncTime draws how long a file takes to be synced.
func (c *Cluster) syncTime() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.rng.Int64N(int64(c.o.Sync) + 1))
}

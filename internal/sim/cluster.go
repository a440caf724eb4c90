// Package sim runs a whole cluster (coordinator, servers, workers) in one process, over an in-memory network and disk,
// in virtual time. Only tests import it.
//
// A [Cluster] runs the same process code as production, on the hosts of package rig. It adds faults and checks their
// effect on the job. The seed determines which process is killed and when its replacement starts.
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

// Options configures a Cluster.
type Options struct {
	Seed    uint64
	Job     perdure.JobSpec
	Network transport.MemoryOptions
	Sync    time.Duration                                     // maximum time to sync a file
	Program func(ctx context.Context, w *worker.Client) error // the program of every worker
	// number of failure domains that the servers are in; 0: unknown
	Zones int
	// Parent simulates a supervisor. It reports dead processes to the coordinator immediately and kills suspects.
	// Without one, the coordinator learns of a death by timeout or from the replacement process.
	Parent bool
	Retain int64 // max bytes of updates that a worker keeps until a checkpoint has them; 0: the default
	// max size of a slot state that is sent inline, not written to the store; 0: the default
	StateBytes int
	// Background checkpoints contain only rows that have changed, however little that saves.
	Follow bool
	Plan   []Planned    // planned changes of the number of workers
	Next   *Next        // state that the run resumes from; nil: a new job
	Told   Told         // receives events; may be nil
	Log    *slog.Logger // nil: none

	Notice        time.Duration // time that a draining server has before it ends; 0: unlimited
	SnapshotBytes int64         // update log size at which shards are snapshotted; 0: 256 MiB
	LogBytes      int64         // max bytes of the update log over all shards; 0: unlimited
	// Snapshots wraps the store that servers write snapshots to; nil: not wrapped.
	Snapshots func(store.Store) store.Store

	Weak weaken.Set // negative controls: mechanisms to disable
}

// Told receives events when they happen.
type Told interface {
	// Saved reports state that was recorded, before any process acts on it. died holds the slots that have lost a
	// process.
	Saved(f *membership.JobRecord, fs disk.FS, died map[perdure.Slot]bool)
	// Acked reports how many of a slot's clocks a shard has acknowledged to the slot's process.
	Acked(slot perdure.Slot, shard perdure.ShardID, applied perdure.Clock)
	// Logged reports an entry that the update log has acknowledged.
	Logged(h *wire.Header)
}

// outAfter is how long a shard may leave a worker's request unanswered before a job continues without it.
const outAfter = 10 * time.Millisecond

// Cluster is a running cluster.
type Cluster struct {
	o     Options
	hosts *rig.Hosts
	ctx   context.Context
	stop  context.CancelCauseFunc

	merged atomic.Int64 // update frames that cover several clocks
	taken  atomic.Int64 // recorded documents in which a dead server's shards were reassigned
	died   atomic.Int64 // last server death or end of a server's partition, in Unix nanoseconds
	done   atomic.Int64 // when the job's end was recorded, in Unix nanoseconds; 0: not yet

	mu     sync.Mutex // guards the fields below
	procs  map[string]*process
	names  []string          // all hosts ever started
	away   map[string]int    // by host: reasons not to rely on it (partitioned or draining)
	barred map[[2]string]int // number of faults that partition two hosts
	exits  []wire.Exited     // observed by the parent
	to     transport.Conn    // from the parent to the coordinator; nil: not connected
	ends   []*checkpoint.Segment
	dead   map[perdure.Slot]bool // slots whose process has died or may have been given up
	rng    *rand.Rand
	left   int // workers that have not finished successfully
	// perished reports that all processes were killed and that none starts again.
	perished bool
	terms    []term          // terms whose workers have been started
	next     map[string]bool // workers that have another term after the current one
	// working counts, per worker, the terms that have not finished successfully.
	working map[string]int
}

// tick is how often the coordinator checks the time. It is shorter than the default where cuts are named or rounds
// recorded on ticks, because simulated jobs are short.
func (c *Cluster) tick() time.Duration {
	if c.o.Job.Recovery.Auto || recovery.RoundsOf(c.o.Job.Recovery).Any() { // names cuts or records rounds
		return 10 * time.Millisecond
	}
	return 0
}

// process is one incarnation of a host.
type process struct {
	*rig.Process
	role     wire.Role
	index    int           // -1: the coordinator chooses
	draining bool          // it was asked to hand over its shards
	pause    time.Duration // delay before its replacement starts
}

// Start starts a cluster. All processes start immediately.
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
	c.terms, c.left = terms, len(workers) // before the coordinator starts, because it records slots immediately
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

// Wait waits until every worker has finished successfully or an error has occurred. Then it stops the cluster.
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

// Ends returns the segments that the serving replicas held when the cluster ended.
func (c *Cluster) Ends() []*checkpoint.Segment { return c.ends }

// Disk returns the disk that all processes share.
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

// over handles the exit of a process as its parent does.
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

// speaks reports whether the registry names this process as the one that speaks for its slot.
func (c *Cluster) speaks(p *process) bool {
	facts, err := c.Facts()
	return err != nil || facts.Slots[p.index].Process == p.Name
}

// program returns the function that a process runs.
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
		cfg.JoinTimeout, cfg.OutageAfter, cfg.RetainBytes = time.Hour, outAfter, c.o.Retain
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

// syncTime draws the duration of one file sync.
func (c *Cluster) syncTime() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.rng.Int64N(int64(c.o.Sync) + 1))
}

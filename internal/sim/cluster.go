// Package sim runs a whole cluster (coordinator, servers, workers) in one process, over an in-memory network and disk,
// in virtual time. Only tests import it.
//
// A [Cluster] runs the same process code as production, on the hosts of package testcluster. It adds faults and checks
// their effect on the job. The seed determines which process is killed and when its replacement starts.
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
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/server"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// Options configures a Cluster.
type Options struct {
	Seed           uint64
	Job            perdure.JobSpec
	NetworkOptions transport.MemoryOptions
	Sync           time.Duration                                     // maximum time to sync a file
	Program        func(ctx context.Context, w *worker.Client) error // the program of every worker
	// number of failure domains that the servers are in; 0: unknown
	Zones int
	// Supervised simulates a supervisor. It reports dead processes to the coordinator immediately and kills suspects.
	// Without one, the coordinator learns of a death by timeout or from the replacement process.
	Supervised  bool
	RetainBytes int64 // max bytes of updates that a worker keeps until a checkpoint has them; 0: the default
	// max size of a slot state that is sent inline, not written to the store; 0: the default
	StateBytes int
	// Background checkpoints contain only rows that have changed, however little that saves.
	Incremental bool
	Plan        []Planned    // planned changes of the number of workers
	Resume      *ResumeState // state that the run resumes from; nil: a new job
	Events      EventSink    // receives events; may be nil
	Log         *slog.Logger // nil: none

	Notice        time.Duration // time that a draining server has before it ends; 0: unlimited
	SnapshotBytes int64         // update log size at which shards are snapshotted; 0: 256 MiB
	LogBytes      int64         // max bytes of the update log over all shards; 0: unlimited
	// Snapshots wraps the store that servers write snapshots to; nil: not wrapped.
	Snapshots func(store.Store) store.Store

	Mutations mutation.Set // negative controls: mechanisms to disable
}

// EventSink receives events when they happen.
type EventSink interface {
	// Saved reports state that was recorded, before any process acts on it. died holds the slots that have lost a
	// process.
	Saved(f *membership.JobRecord, fs disk.FS, died map[perdure.Slot]bool)
	// Acked reports how many of a slot's clocks a shard has acknowledged to the slot's process.
	Acked(slot perdure.Slot, shard perdure.ShardID, applied perdure.Clock)
	// Logged reports an entry that the update log has acknowledged.
	Logged(h *wire.Header)
}

// outageTimeout is how long a shard may leave a worker's request unanswered before a job continues without it.
const outageTimeout = 10 * time.Millisecond

// Cluster is a running cluster.
type Cluster struct {
	o     Options
	hosts *testcluster.Hosts
	ctx   context.Context
	stop  context.CancelCauseFunc

	merged          atomic.Int64 // update frames that cover several clocks
	takeovers       atomic.Int64 // recorded documents in which a dead server's shards were reassigned
	slotCuts        slotCutCounts
	lastServerDeath atomic.Int64 // last server death or end of a server's partition, in Unix nanoseconds
	jobEndedAt      atomic.Int64 // when the job's end was recorded, in Unix nanoseconds; 0: not yet

	mu             sync.Mutex // guards the fields below
	processes      map[string]*process
	names          []string          // all hosts ever started
	unavailable    map[string]int    // by host: reasons not to rely on it (partitioned or draining)
	blocked        map[[2]string]int // number of faults that partition two hosts
	exits          []wire.Exited     // observed by the parent
	toCoordinator  transport.Conn    // from the parent to the coordinator; nil: not connected
	segments       []*checkpoint.Segment
	restartedSlots map[perdure.Slot]bool // slots whose process has died or may have been given up
	rng            *rand.Rand
	unfinished     int // workers that have not finished successfully
	// allKilled reports that all processes were killed and that none starts again.
	allKilled   bool
	terms       []term          // terms whose workers have been started
	hasNextTerm map[string]bool // workers that have another term after the current one
	// unfinishedTerms counts, per worker, the terms that have not finished successfully.
	unfinishedTerms map[string]int
}

// tickInterval is how often the coordinator checks the time. It is shorter than the default where cuts are named or
// rounds recorded on ticks, because simulated jobs are short.
func (c *Cluster) tickInterval() time.Duration {
	traits := recovery.TraitsOf(&c.o.Job)
	if traits.Timed || traits.CutsBySlot || recovery.RoundsOf(c.o.Job.Recovery).Any() {
		return 10 * time.Millisecond
	}
	return 0
}

// process is one incarnation of a host.
type process struct {
	*testcluster.Process
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
	ctx, stop := context.WithCancelCause(context.WithValue(ctx, mutation.Key{}, o.Mutations))
	c := &Cluster{
		o:               o,
		ctx:             ctx,
		stop:            stop,
		processes:       map[string]*process{},
		unavailable:     map[string]int{},
		blocked:         map[[2]string]int{},
		hasNextTerm:     map[string]bool{},
		unfinishedTerms: map[string]int{},
		restartedSlots:  map[perdure.Slot]bool{},
		rng:             rand.New(rand.NewPCG(o.Seed, 2)),
	}
	c.hosts = testcluster.New(ctx,
		testcluster.Options{Seed: o.Seed, Network: o.NetworkOptions, Sync: c.syncTime, Log: o.Log})
	if o.Resume != nil {
		c.hosts.Disk = o.Resume.Disk
	}
	c.hosts.Logs().SetLimit(int(o.LogBytes) / o.Job.Shards)
	terms, workers := o.initialMembers()
	c.terms, c.unfinished = terms, len(workers) // before the coordinator starts, because it records slots immediately
	for _, host := range workers {
		c.unfinishedTerms[host]++
	}
	c.start(testcluster.CoordinatorHost)
	if o.Supervised {
		c.hosts.Go(func() { c.superviseProcesses(ctx) })
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

// FinalSegments returns the segments that the serving replicas held when the cluster ended.
func (c *Cluster) FinalSegments() []*checkpoint.Segment { return c.segments }

// Disk returns the disk that all processes share.
func (c *Cluster) Disk() disk.FS { return c.hosts.Disk }

func (c *Cluster) start(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.processes[host] != nil || c.allKilled {
		return
	}
	p := &process{Process: c.hosts.NewProcess(host)}
	p.role, p.index = testcluster.ParseHost(host)
	c.processes[host] = p
	if !slices.Contains(c.names, host) {
		c.names = append(c.names, host)
	}
	run := c.program(p)
	p.Go(func(ctx context.Context) error {
		err := run(ctx)
		if !p.Dead() && ctx.Err() == nil {
			c.handleExit(p, err)
		}
		return err
	})
}

// handleExit handles the exit of a process as its parent does.
func (c *Cluster) handleExit(p *process, err error) {
	c.mu.Lock()
	draining, pause := p.draining, p.pause
	c.mu.Unlock()
	var v *Violation
	switch {
	case errors.As(err, &v) && v.CurrentOnly && !c.isCurrent(p):
		c.Kill(p.Host, 0)
	case errors.Is(err, perdure.ErrFenced):
		c.Kill(p.Host, 0)
	case errors.Is(err, perdure.ErrStopped) && draining:
		c.Kill(p.Host, pause) // it has handed over
	case err != nil && !errors.Is(err, perdure.ErrStopped):
		c.stop(fmt.Errorf("%s: %w", p.Name, err))
	}
}

// isCurrent reports whether the registry names this process as the one that speaks for its slot.
func (c *Cluster) isCurrent(p *process) bool {
	record, err := c.JobRecord()
	return err != nil || record.Slots[p.index].Process == p.Name
}

// program returns the function that a process runs.
func (c *Cluster) program(p *process) func(context.Context) error {
	switch p.role {
	case wire.RoleServer:
		return func(ctx context.Context) error { return c.runServer(ctx, p) }
	case wire.RoleWorker:
		return func(ctx context.Context) error { return c.runWorker(ctx, p) }
	}
	return func(ctx context.Context) error { return c.runCoordinator(ctx, p) }
}

func (c *Cluster) runServer(ctx context.Context, p *process) error {
	return p.RunServer(ctx, func(cfg *server.Config) {
		if _, number, _ := strings.Cut(p.Host, ":"); c.o.Zones > 0 {
			n, _ := strconv.Atoi(number) // a server's name ends with one
			cfg.Self.Zone = fmt.Sprintf("zone-%d", n%c.o.Zones)
		}
		cfg.SnapshotBytes, cfg.LogBytes, cfg.Sparing = c.o.SnapshotBytes, c.o.LogBytes, c.o.Incremental
		cfg.OpenLog, cfg.Notice = c.countAppends(cfg.OpenLog), c.o.Notice
		if c.o.Snapshots != nil {
			cfg.Snapshots = c.o.Snapshots(cfg.Snapshots)
		}
		cfg.OnEnded = func(seg *checkpoint.Segment) { c.addSegment(p, seg) }
	})
}

func (c *Cluster) addSegment(p *process, seg *checkpoint.Segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !p.Dead() {
		c.segments = append(c.segments, seg)
	}
}

func (c *Cluster) runCoordinator(ctx context.Context, p *process) error {
	co, err := p.NewCoordinator(c.o.initialRecord(), func(cfg *coordinator.Config) {
		cfg.Registry, cfg.Tick = observedRegistry{cfg.Registry, c.recordSaved}, c.tickInterval()
	})
	if err != nil {
		return err
	}
	return co.Run(ctx)
}

func (c *Cluster) runWorker(ctx context.Context, p *process) error {
	w, err := p.Dial(ctx, perdure.Slot(p.index), func(cfg *testcluster.DialConfig) {
		cfg.Network, cfg.OpenLog = countingNet{cfg.Network, c, perdure.Slot(p.index)}, c.countAppends(cfg.OpenLog)
		cfg.JoinTimeout, cfg.OutageAfter, cfg.RetainBytes = time.Hour, outageTimeout, c.o.RetainBytes
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
	delete(c.processes, p.Host)
	c.unfinishedTerms[p.Host]--
	if c.unfinished--; c.unfinished == 0 {
		c.stop(errDone)
	}
	if c.hasNextTerm[p.Host] {
		delete(c.hasNextTerm, p.Host)
		c.afterPause(0, func() { c.start(p.Host) })
	}
	return nil
}

// syncTime draws the duration of one file sync.
func (c *Cluster) syncTime() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.rng.Int64N(int64(c.o.Sync) + 1))
}

// Package coordinator implements the process that tracks which processes are alive and which shards they hold. Package
// membership makes every decision; the coordinator carries the decisions out. It owns connections, time and the
// registry.
//
// One goroutine, the loop, owns the membership core. Facts are saved in the registry before they are sent to any
// process. The coordinator may be killed at any instant: training continues with the last view, and a new coordinator
// reads the registry and continues with the same decisions.
package coordinator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/admission"
	"github.com/perdure/perdure/internal/proc/transport"
)

// Config configures a coordinator.
type Config struct {
	Listener  transport.Listener
	Registry  registry.Registry
	Lease     registry.Lease        // of Registry, if it is already held; nil: New acquires it
	NewJob    *membership.JobRecord // the initial facts of a new job; if nil, the registry must not be empty
	Store     store.Store           // for checkpoints and slot states
	StoreAddr string                // the store's address as sent to workers; "" if only this process can use it
	// StoreLocal reports whether the store is a directory of the run, which other machines may be unable to reach.
	StoreLocal bool
	Keep       int // how many of the newest checkpoints to keep, at least two of partial ones; 0: all
	Log        *slog.Logger
	Tick       time.Duration // 0: 100 ms
	// Patience is the initial timeout after which a silent process is suspected; 0: 1.5 s. A process that sends at
	// every Tick has a third of that, an irregular one up to four times.
	Patience time.Duration
	OnOrder  func(wire.Order) // injects faults into this process; may be nil
	Keys     wire.Keys        // the keys that peers must present
	// TableBytes limits the rows of dense tables, including replicas, to this many bytes per server; 0 means no limit.
	TableBytes int64
	// Settings is the content of the run's run.json, and Folder the run's directory. Processes without them receive
	// them.
	Settings []byte
	Dir      string
	// CancelEarlyEnd cancels an early end that the user had requested: the coordinator was started again.
	CancelEarlyEnd bool
	// MaxFailures is how often the program of a slot may fail at one clock; 0: 5. A program that fails this often at
	// one clock is assumed to fail there always.
	MaxFailures int
	// StartsWorkers reports whether the process that started this one also starts the workers, and restarts them.
	StartsWorkers bool
	// Linger is how long the coordinator waits, at most, until all processes know that the job has ended; 0: 250 ms.
	Linger time.Duration
}

const (
	defaultTick     = 100 * time.Millisecond
	defaultPatience = 1500 * time.Millisecond
	defaultFailures = 5
	inboxSize       = 1024
	maxEvents       = 4096 // kept while no supervisor is connected
)

// Coordinator is one coordinator process.
type Coordinator struct {
	cfg       Config
	admission admission.Controller
	job       *perdure.JobSpec // immutable
	inbox     inbox
	wg        sync.WaitGroup // Run's goroutines
	// onDisk reports whether the loop is waiting for its disk.
	onDisk atomic.Bool

	// The fields below belong to the loop.
	core           *membership.Core
	monitor        loopMonitor
	sweeper        sweeper
	pruner         pruner
	records        recordStore
	members        memberSet
	grantsPending  bool // a process is waiting for a slot or server index
	supervisor     *member
	reported       lastReports  // the last reports to the supervisor
	events         []wire.Frame // for the supervisor, not sent yet
	jobClock       jobClock
	endErr         error // why the loop ends; nil while it runs
	shutdown       shutdown
	problems       problems
	completed      bool
	sentMembership uint64 // the membership revision last sent to the supervisor
	latest         Latest
	began          time.Time
	speed          protocol.Rate
}

// Latest is the newest information about training and the update log that this coordinator has received.
type Latest struct {
	TrainLoss, TestAccuracy *float64 // nil: not received
	Clock                   perdure.Clock
	ClocksPerSecond         float64 // over the last seconds; see protocol.Rate
	Event                   string  // as text
	// Log is the state of the job's own log process according to the supervisor; nil: not received.
	Log *wire.MemberProgress
	// Counts belongs to the loop; callbacks of Ask may read it.
	Counts *EventCounts
	// Host returns the display name of the host that started a process; "" if there is none or it is not connected.
	Host func(process string) string
	// Version returns the version of Perdure of the connected process that holds a server index or slot; "" if it is
	// unknown.
	Version func(k membership.Kind, index int, process string) string
	// Standbys returns the processes that waited for a free slot or server index at a time.
	Standbys func(at time.Time) []Standby
	// Refused counts connections rejected because the peer had too many.
	Refused func() int64
	// Drain orders a server, or all processes of a host, to hand over their work and end.
	Drain func(core *membership.Core, who string, notice time.Duration) ([]Drained, error)
}

// member is a connection that was admitted or is waiting for its slot.
type member struct {
	conn           transport.Conn
	hello          wire.Hello
	index          int
	welcomed       bool
	standby        bool   // it was refused because no slot or server index is free
	stopConfirming func() // stops the keep-alive that is sent until the Hello is answered
	statusReader
	unread       *unreadLimit
	warnings     int             // of its program that users have seen
	joinFailures map[int]*streak // of a host: failures of its workers before they joined, by their number
}

// Run runs a coordinator until ctx ends or the registry fails.
func Run(ctx context.Context, cfg Config) error {
	c, err := New(ctx, cfg)
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// lease returns the lease of the registry.
func (cfg *Config) lease(ctx context.Context) (registry.Lease, error) {
	if cfg.Lease != nil {
		return cfg.Lease, nil
	}
	return registry.AcquireWait(ctx, cfg.Registry, registry.Self(), func(err error) {
		cfg.Log.Warn("the coordinator is waiting for its registry", "err", err)
	})
}

// New acquires the registry's lease, reads the registry and prepares a coordinator. The lease is released when Run
// returns or the registry is closed. New waits while the registry is unavailable. No connection is accepted before Run.
func New(ctx context.Context, cfg Config) (*Coordinator, error) {
	if cfg.Tick == 0 {
		cfg.Tick = defaultTick
	}
	if cfg.Patience == 0 {
		cfg.Patience = defaultPatience
	}
	if cfg.MaxFailures == 0 {
		cfg.MaxFailures = defaultFailures
	}
	if cfg.Linger == 0 {
		cfg.Linger = defaultLinger
	}
	lease, err := cfg.lease(ctx)
	if err != nil {
		return nil, fmt.Errorf("coordinator: %w", err)
	}
	var doc []byte
	var revision uint64
	err = disk.Retry{Pause: savePause, Retryable: isTemporary}.Do(ctx, func() (err error) {
		doc, revision, err = cfg.Registry.Load(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("coordinator: %w", err)
	}
	var record membership.JobRecord
	switch {
	case revision > 0:
		if err := json.Unmarshal(doc, &record); err != nil {
			return nil, fmt.Errorf("coordinator: invalid job record in the registry: %w", err)
		}
		if cfg.NewJob != nil && record.Job.ID != cfg.NewJob.Job.ID {
			return nil, perdure.Usagef("the registry belongs to job %s, not to job %s: choose another registry",
				record.Job.ID, cfg.NewJob.Job.ID)
		}
	case cfg.NewJob != nil:
		record = *cfg.NewJob
	default:
		return nil, fmt.Errorf("coordinator: the registry is empty and no job is configured")
	}
	if cfg.CancelEarlyEnd {
		record.Final = nil
	}
	c := &Coordinator{
		cfg: cfg, job: &record.Job, inbox: make(inbox, inboxSize),
		admission: admission.Controller{Keys: cfg.Keys, Log: cfg.Log},
		core:      membership.New(record, int64(cfg.Patience/cfg.Tick), mutation.Of(ctx)),
		records:   recordStore{lease: lease, revision: revision, text: bytes.Clone(doc), calls: make(inspections)},
		shutdown:  shutdown{answered: map[string]struct{}{}}, problems: newProblems(cfg.MaxFailures),
		members: newMemberSet(), began: time.Now(),
		monitor: loopMonitor{every: cfg.Tick}, latest: Latest{Counts: newEventCounts()},
	}
	c.records.initial = newInitialView(&record.View)
	c.latest.Host, c.latest.Version, c.latest.Drain = c.members.hostOf, c.members.versionOf, c.members.drain
	c.pruner.prune, c.latest.Refused, c.latest.Standbys = c.cfg.prune, c.admission.Refused, c.members.standbys.alive
	c.admission.SetMembers(len(record.Servers) + len(record.Slots))
	ticks := func(ms int64) int64 { return int64(time.Duration(ms) * time.Millisecond / cfg.Tick) }
	c.core.SetGiveUpTicks(ticks(record.Job.SuspendMs), ticks(record.Job.TakeOverMs))
	c.core.SetTickSeconds(cfg.Tick.Seconds())
	if revision == 0 {
		if err := c.save(ctx, &record); err != nil {
			return nil, err
		}
	}
	if record.Failed != "" {
		c.emit(membership.Event{Kind: "failed", Text: record.Failed})
	}
	return c, nil
}

// Run serves until ctx ends, the job ends (perdure.ErrStopped), the registry fails, or the lease is lost
// (perdure.ErrFenced).
func (c *Coordinator) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer func() { _ = c.records.lease.Release() }() // the lease ends with the process anyway
	defer c.wg.Wait()
	defer func() {
		cancel()
		c.cfg.Listener.Close()
		for m := range c.members.all {
			m.conn.Close()
		}
	}()
	c.wg.Go(func() { c.accept(ctx) })
	c.wg.Go(func() { c.records.initial.checkStored(ctx, c) })
	tick := time.NewTicker(c.cfg.Tick)
	defer tick.Stop()
	for {
		ticked := false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.records.lease.Done():
			return fencedError(registry.ErrLost)
		case d := <-c.inbox:
			if err := c.read(ctx, d); err != nil {
				return err
			}
			if c.endErr != nil {
				return c.endErr
			}
		case <-c.shutdown.deadline:
			c.finishShutdown(true)
		case <-tick.C:
			now := time.Now()
			c.tick(now)
			c.latest.Counts.tick(now, c.core)
			c.rate(now)
			c.problems.notifyMissing(now, c)
			c.sendProgress(true)
			ticked = true
		}
		if err := c.carryOut(ctx); err != nil {
			return err
		}
		if ticked { // the current facts are saved, so garbage by them is not needed by a successor
			c.sweeper.sweep(ctx, c)
		}
		c.finishShutdown(false)
		if c.endErr != nil {
			return c.endErr
		}
	}
}

// rate computes the clocks per second. The first clock starts some time after this process.
func (c *Coordinator) rate(now time.Time) {
	at := now.Sub(c.began).Seconds()
	if clock := c.latest.Clock; clock > 0 {
		c.speed.Note(at, clock)
	}
	c.latest.ClocksPerSecond, _ = c.speed.PerSecond(at)
}

// Ask runs f in the loop, where it may read the core, and waits for it. If ctx ends before f has started, f never runs,
// so the caller may reuse memory that f writes to.
func (c *Coordinator) Ask(ctx context.Context, f func(core *membership.Core, latest Latest)) error {
	done := make(chan struct{})
	var claimed atomic.Bool // by the loop, or by the caller when it gives up
	c.inbox.doSaved(ctx, func() {
		if claimed.CompareAndSwap(false, true) {
			f(c.core, c.latest)
			close(done)
		}
	})
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		if claimed.CompareAndSwap(false, true) {
			return ctx.Err()
		}
		<-done // f is running
		return nil
	}
}

// AskSaved is like Coordinator.Ask, and returns after the effects of f are saved. Later calls of Inspect show them as
// saved facts.
func AskSaved(ctx context.Context, c *Coordinator, f func(core *membership.Core, latest Latest)) error {
	if err := c.Ask(ctx, f); err != nil {
		return err
	}
	return c.Ask(ctx, func(*membership.Core, Latest) {}) // saved tasks start when earlier effects are saved
}

// Order forwards an order to the supervisor. It returns false if no supervisor is connected.
func (c *Coordinator) Order(ctx context.Context, o wire.Order) (bool, error) {
	there := false
	err := c.Ask(ctx, func(*membership.Core, Latest) {
		if there = c.supervisor != nil; there {
			c.supervisor.send(wire.Control(wire.KindOrder, o))
		}
	})
	return there, err
}

// carryOut carries out the core's decisions, starting with saving the facts.
func (c *Coordinator) carryOut(ctx context.Context) error {
	if c.core.Complete() && !c.core.Record().Job.AwaitExport {
		c.core.Finish()
	}
	before, r := c.latest.Clock, c.core.Ready()
	c.latest.Clock = c.jobClock.Of(c.core)
	if r.Record != nil {
		if err := c.save(ctx, r.Record); err != nil {
			return err
		}
		c.admission.SetMembers(len(r.Record.Servers) + len(r.Record.Slots))
		c.members.broadcast(r.Delta, c.members.servers)
		c.members.broadcast(r.WorkerDelta, c.members.readers)
	}
	if r.Record != nil || c.grantsPending {
		c.grantsPending = false
		c.welcomeAssigned()
	}
	if r.Record != nil && r.Record.View.Roster != c.sentMembership {
		c.sentMembership = r.Record.View.Roster
		c.sendProgress(true)
	}
	for _, e := range r.Events {
		c.emit(e)
	}
	if r.Record != nil && r.Record.Failed != "" {
		c.refuseAll(failedRefusal(r.Record.Failed))
	}
	for _, k := range r.Kills {
		if m := c.members.newest[memberID{k.Kind, k.Index}]; k.Unmanaged && m != nil && m.hello.Process == k.Process {
			m.conn.Close() // this coordinator cannot kill the process; if it lives, it reconnects
		}
		if c.supervisor != nil && !k.Unmanaged {
			c.supervisor.send(wire.Control(wire.KindOrder, wire.Order{
				Kind: wire.OrderKill, Target: fmt.Sprintf("%s:%d", k.Kind, k.Index), PID: k.PID,
			}))
		}
	}
	for _, q := range r.Inquiries {
		if c.supervisor != nil {
			c.supervisor.send(wire.Control(wire.KindOrder, wire.Order{
				Kind: wire.OrderProbe, Target: fmt.Sprintf("%s:%d", q.Kind, q.Index), PID: q.PID,
				Spec: strconv.FormatInt(q.Number, 10),
			}))
		}
	}
	if r.Publish != nil && r.Publish.Running != nil {
		p, record := *r.Publish, c.core.Record()
		m := runningManifest(record, &p)
		c.wg.Go(func() { c.publishRunning(ctx, p, m) })
	} else if r.Publish != nil {
		p := *r.Publish
		record := c.core.Record()
		m := checkpoint.Manifest{
			Job: record.Job, Generation: p.Generation, Cut: p.Cut, Clocks: p.Clocks, Tables: record.View.Tables,
		}
		if record.View.Roster > 0 {
			m.Slots, m.PastClocks = record.View.Intervals(), record.PastClocks
		}
		c.wg.Go(func() { c.publish(ctx, p, m) })
	}
	if c.latest.Clock != before || c.completed != c.core.Complete() {
		c.sendProgress(false)
	}
	return nil
}

func (c *Coordinator) save(ctx context.Context, f *membership.JobRecord) error {
	c.onDisk.Store(true)
	defer c.onDisk.Store(false)
	sent := false
	return c.records.save(ctx, f, func(err error) {
		if !sent {
			sent = true
			c.emit(membership.Event{
				Kind: "trouble", Target: string(wire.RoleCoordinator),
				Text: fmt.Sprintf("the coordinator cannot continue and is retrying: %v", err),
			})
		}
	})
}

// publish writes the manifest of a cut that every shard has written, and then posts a task that records it.
func (c *Coordinator) publish(ctx context.Context, p membership.Publish, m checkpoint.Manifest) {
	m.SavedAt = time.Now().UTC()
	for i, g := range p.Segments {
		ref := checkpoint.SegmentRef{File: g.File, Bytes: g.Bytes, CRC: g.CRC, Shard: perdure.ShardID(i), Seq: g.Seq}
		for _, f := range g.Base {
			ref.Base = append(ref.Base, checkpoint.FileRef(f))
		}
		for _, f := range g.States {
			ref.States = append(ref.States, checkpoint.FileRef(f))
		}
		m.Segments = append(m.Segments, ref)
	}
	err := checkpoint.Publish(c.cfg.Store, m)
	if err == nil && c.records.generation.Load() > uint64(p.Generation) {
		c.cfg.withdraw(m)
	}
	if err != nil {
		c.cfg.Log.Error("cannot publish a checkpoint", "cut", p.Cut, "err", err)
		select { // the core requests the same cut again
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	c.inbox.doSaved(ctx, func() {
		if !c.core.Published(&p, err == nil) {
			return // after a rollback in the meantime, the older checkpoint is the current one
		}
		// The old checkpoint may be deleted only after the registry names the new one.
		if c.endErr = c.carryOut(ctx); c.endErr != nil {
			return
		}
		if c.cfg.Keep > 0 {
			c.pruner.schedule(m, c.wg.Go) // the loop must not wait for a store, which may be slow
		}
	})
}

// withdraw deletes the manifest of a checkpoint that was overtaken by a recorded rollback while it was being written.
// The job never uses that checkpoint, and its segments may have been pruned before the manifest existed. Remaining
// segments are deleted by the next prune.
func (cfg *Config) withdraw(m checkpoint.Manifest) {
	if err := checkpoint.Withdraw(cfg.Store, m); err != nil {
		cfg.Log.Warn("cannot delete the manifest of a checkpoint that a rollback invalidated",
			"cut", m.Cut, "err", err)
	}
}

// prune deletes the files that a new checkpoint has made superfluous. A newer checkpoint may already have deleted this
// one.
func (cfg *Config) prune(m checkpoint.Manifest) {
	err := checkpoint.Prune(cfg.Store, m, cfg.Keep)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		cfg.Log.Warn("cannot delete an old checkpoint", "err", err)
	}
}

// emit passes an event to the log and the supervisor.
func (c *Coordinator) emit(e membership.Event) {
	c.latest.Counts.note(e)
	if e.Kind != "joining" && e.Kind != "joined" { // events of single shards are too many
		c.latest.Event = e.Text
	}
	c.cfg.Log.Info(e.Text, "event", e.Kind, "target", e.Target, "clock", c.latest.Clock)
	for line := range strings.Lines(e.Output) {
		c.cfg.Log.Info(strings.TrimSpace(line), "said_by", e.Target)
	}
	c.toSupervisor(wire.Control(wire.KindEvent, wire.Event{
		Kind: e.Kind, Target: e.Target, Text: e.Text, Clock: c.latest.Clock, UnixNs: time.Now().UnixNano(),
		UpdatesLost: c.core.Record().UpdatesLost, ClocksRedone: c.core.Record().ClocksRedone, Output: e.Output,
		Vacated: e.Vacated,
	}))
}

// toSupervisor sends a frame to the supervisor, or keeps it for the next supervisor connection.
func (c *Coordinator) toSupervisor(f wire.Frame) {
	if c.supervisor != nil && c.supervisor.conn.TrySend(f) == nil {
		return
	}
	if len(c.events) < maxEvents {
		c.events = append(c.events, f)
	}
}

// drop discards a fraction of the shards, chosen by a seed.
func (c *Coordinator) drop(share float64, seed uint64) {
	n := len(c.core.Record().View.Shards)
	order := rand.New(rand.NewPCG(seed, uint64(n))).Perm(n)
	var shards []perdure.ShardID
	for _, s := range order[:min(n, max(1, int(share*float64(n)+0.5)))] {
		shards = append(shards, perdure.ShardID(s))
	}
	c.core.Drop(shards)
}

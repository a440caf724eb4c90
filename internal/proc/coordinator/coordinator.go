// Package coordinator runs the process that knows who is alive and who holds what: it carries out what package
// membership decides. It owns connections, time and the registry; every decision is membership's.
//
// One goroutine, the loop, owns the core. Facts are in the registry before
// anybody hears of them. The coordinator may be killed at any instant: training
// goes on with the view that everybody has, and a new process goes on from the
// registry with the same decisions.
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
	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/admission"
	"github.com/perdure/perdure/internal/proc/transport"
)

// Config is what a coordinator needs to run.
type Config struct {
	Listener transport.Listener
	Registry registry.Registry
	Lease    registry.Lease    // of Registry, that was taken already; nil: New takes it
	Begin    *membership.Facts // what the job begins with, where the registry is empty; nil: it must not be
	Store    store.Store       // of checkpoints, and of what slots save
	StoreAt  string            // where that is, as workers are told it; "": it is only this process's
	// StoreLocal says that it is a directory of the run's folder, which other machines may not reach.
	StoreLocal bool
	Keep       int // how many checkpoints stay, the newest; of running ones two at least; 0: all
	Log        *slog.Logger
	Tick       time.Duration // 0: 100 ms
	// Patience is the silence after which a process is suspected of which nothing is
	// known yet; 0: 1.5 s. Of one that is heard at every Tick it is a third of
	// that, of one that is heard irregularly up to four times.
	Patience time.Duration
	OnOrder  func(wire.Order) // faults for this process itself; may be nil
	Keys     wire.Keys        // what who connects must show
	// TableBytes bounds the rows of all dense tables together, each replica's counted: it is
	// how many bytes each server of the job has room for; 0: there is no bound.
	TableBytes int64
	// Settings are the run's, as run.json has them, and Folder where that is: for those who join without it.
	Settings []byte
	Folder   string
	// GoesOn says that a job which somebody wanted to end early goes on after all: its coordinator was started again.
	GoesOn bool
	// MaxFailures is how often the program of a slot may fail at one clock; 0: 5. One that has failed so often at the
	// same place fails there always.
	MaxFailures int
	// Linger is how long it stays, at most, once the job is ended, so that everybody hears it; 0: 250 ms.
	Linger time.Duration
}

const (
	defaultTick     = 100 * time.Millisecond
	defaultPatience = 1500 * time.Millisecond
	defaultFailures = 5
	inboxSize       = 1024
	maxEvents       = 4096 // kept for a supervisor that is away
)

// Coordinator is one coordinator process.
type Coordinator struct {
	cfg   Config
	door  admission.Door
	job   *perdure.JobSpec // which never changes
	inbox inbox
	wg    sync.WaitGroup // Run's goroutines
	// onDisk says that the loop waits for its disk.
	onDisk atomic.Bool

	// The loop's own.
	core       *membership.Core
	attention  attention
	sweeper    sweeper
	pruner     pruner
	book       book
	crew       crew
	asked      bool // somebody has asked for a place, and waits for an answer
	supervisor *member
	reported   reports      // by it, so far
	events     []wire.Frame // for the supervisor, not sent yet
	progressed perdure.Clock
	ended      error // why the loop ends, once it does
	bye        farewell
	troubles   troubles
	completed  bool
	roster     uint64 // that the supervisor was told of
	latest     Latest
	began      time.Time
	speed      words.Rate
}

// Latest is what this coordinator, since it began, last heard of the training
// itself, and of the log.
type Latest struct {
	TrainLoss, TestAccuracy *float64 // nil: not heard
	ClocksPerSecond         float64  // over the last seconds; see words.Rate
	Event                   string   // in words
	// of the job's own log process, as the supervisor sees it; nil: not heard
	Log *wire.PlaceProgress
	// Tally is the loop's, who asks may read it there.
	Tally *Tally
	// Host is what people call the host that has started a process of that name; "": none has, or it is not
	// connected.
	Host func(process string) string
	// Refused counts connections of peers that had as many as one may have.
	Refused func() int64
	// Drain orders a server, or all of a host, to hand over and to end.
	Drain func(core *membership.Core, who string, notice time.Duration) ([]Drained, error)
}

// member is a connection that was admitted, or that waits for its slot.
type member struct {
	conn     transport.Conn
	hello    wire.Hello
	index    int
	welcomed bool
	answered func() // ends its being told that its Hello was heard
	hearing
	unread  *unread
	failing map[int]*streak // of a host: failures of its workers before they have joined, by its number
}

// Run coordinates until ctx ends or the registry fails.
func Run(ctx context.Context, cfg Config) error {
	c, err := New(ctx, cfg)
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// lease is the right to coordinate.
func (cfg *Config) lease(ctx context.Context) (registry.Lease, error) {
	if cfg.Lease != nil {
		return cfg.Lease, nil
	}
	return registry.Take(ctx, cfg.Registry, registry.Self(), func(err error) {
		cfg.Log.Warn("the coordinator waits for its registry", "err", err)
	})
}

// New takes the registry's lease, which Run's end or closing the registry gives back,
// reads the registry and prepares a coordinator. It waits for a registry that is away. Nothing is served before Run.
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
		cfg.Linger = usualLinger
	}
	lease, err := cfg.lease(ctx)
	if err != nil {
		return nil, fmt.Errorf("coordinator: %w", err)
	}
	var doc []byte
	var revision uint64
	err = disk.Retry{Pause: savePause, Passes: passes}.Do(ctx, func() (err error) {
		doc, revision, err = cfg.Registry.Load(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("coordinator: %w", err)
	}
	var facts membership.Facts
	switch {
	case revision > 0:
		if err := json.Unmarshal(doc, &facts); err != nil {
			return nil, fmt.Errorf("coordinator: facts in the registry: %w", err)
		}
		if cfg.Begin != nil && facts.Job.ID != cfg.Begin.Job.ID {
			return nil, fmt.Errorf("%w: the registry has job %s, and this coordinator is for job %s: choose another "+
				"registry", perdure.ErrUsage, facts.Job.ID, cfg.Begin.Job.ID)
		}
	case cfg.Begin != nil:
		facts = *cfg.Begin
	default:
		return nil, fmt.Errorf("coordinator: the registry is empty and no job was given")
	}
	if cfg.GoesOn {
		facts.Closing = nil
	}
	c := &Coordinator{
		cfg: cfg, job: &facts.Job, inbox: make(inbox, inboxSize), door: admission.Door{Keys: cfg.Keys, Log: cfg.Log},
		core: membership.New(facts, int64(cfg.Patience/cfg.Tick), weaken.Of(ctx)),
		book: book{lease: lease, revision: revision, text: bytes.Clone(doc), looks: make(looks)},
		bye:  farewell{met: map[string]struct{}{}}, troubles: newTroubles(cfg.MaxFailures),
		crew: newCrew(), progressed: -1, began: time.Now(),
		attention: attention{every: cfg.Tick}, latest: Latest{Tally: newTally()},
	}
	c.pruner.prune, c.latest.Host, c.latest.Drain = c.cfg.prune, c.crew.hostOf, c.crew.drain
	c.latest.Refused = c.door.Refused
	c.door.Expect(len(facts.Servers) + len(facts.Slots))
	ticks := func(ms int64) int64 { return int64(time.Duration(ms) * time.Millisecond / cfg.Tick) }
	c.core.GiveUpAfter(ticks(facts.Job.SuspendMs), ticks(facts.Job.TakeOverMs))
	c.core.TickSeconds(cfg.Tick.Seconds())
	if revision == 0 {
		if err := c.save(ctx, &facts); err != nil {
			return nil, err
		}
	}
	if facts.Failed != "" {
		c.tell(membership.Event{Kind: "failed", Text: facts.Failed})
	}
	return c, nil
}

// Run serves until ctx or the job ends (perdure.ErrStopped), or the registry
// fails or takes the lease away (perdure.ErrFenced).
func (c *Coordinator) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer func() { _ = c.book.lease.Release() }() // it ends with the process anyway
	defer c.wg.Wait()
	defer func() {
		cancel()
		c.cfg.Listener.Close()
		for m := range c.crew.members {
			m.conn.Close()
		}
	}()
	c.wg.Go(func() { c.accept(ctx) })
	tick := time.NewTicker(c.cfg.Tick)
	defer tick.Stop()
	for {
		ticked := false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.book.lease.Done():
			return fenced(registry.ErrLost)
		case d := <-c.inbox:
			if err := c.read(ctx, d); err != nil {
				return err
			}
		case <-c.bye.late:
			c.ending(true)
		case <-tick.C:
			now := time.Now()
			c.tick(now)
			c.latest.Tally.tick(now, c.core)
			c.rate(now)
			c.troubles.look(now, c)
			c.progress(true)
			ticked = true
		}
		if err := c.carryOut(ctx); err != nil {
			return err
		}
		if ticked { // what is known now is recorded: a successor does not need what nobody needs by that
			c.sweeper.sweep(ctx, c)
		}
		c.ending(false)
		if c.ended != nil {
			return c.ended
		}
	}
}

// rate computes the clocks per second. The first begins some time after this process.
func (c *Coordinator) rate(now time.Time) {
	at := now.Sub(c.began).Seconds()
	if clock := c.core.MinClock(); clock > 0 {
		c.speed.Note(at, clock)
	}
	c.latest.ClocksPerSecond, _ = c.speed.PerSecond(at)
}

// Ask runs f in the loop, where it may look at the core, and waits for it. If ctx ends
// before f has begun it never does: f may write to what the caller goes on with.
func (c *Coordinator) Ask(ctx context.Context, f func(core *membership.Core, latest Latest)) error {
	done := make(chan struct{})
	var claimed atomic.Bool // by the loop, or by the caller, who gives up
	c.inbox.do(ctx, func() {
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
		<-done // it is at work
		return nil
	}
}

// Order passes an order on to the supervisor; false if there is none.
func (c *Coordinator) Order(ctx context.Context, o wire.Order) (bool, error) {
	there := false
	err := c.Ask(ctx, func(*membership.Core, Latest) {
		if there = c.supervisor != nil; there {
			c.supervisor.send(wire.Control(wire.KindOrder, o))
		}
	})
	return there, err
}

// carryOut does what the core wants done, in its order: the registry first.
func (c *Coordinator) carryOut(ctx context.Context) error {
	if c.core.Complete() && !c.core.Facts().Job.AwaitExport {
		c.core.Finish()
	}
	r := c.core.Ready()
	if r.Facts != nil {
		if err := c.save(ctx, r.Facts); err != nil {
			return err
		}
		c.door.Expect(len(r.Facts.Servers) + len(r.Facts.Slots))
		c.crew.tell(r.Delta, c.crew.servers)
		c.crew.tell(r.WorkerDelta, c.crew.readers)
	}
	if r.Facts != nil || c.asked {
		c.asked = false
		c.grant()
	}
	if r.Facts != nil && r.Facts.View.Roster != c.roster {
		c.roster = r.Facts.View.Roster
		c.progress(true)
	}
	for _, e := range r.Events {
		c.tell(e)
	}
	if r.Facts != nil && r.Facts.Failed != "" {
		c.dismiss(failed(r.Facts.Failed))
	}
	for _, k := range r.Kills {
		if m := c.crew.seated[seat{k.Kind, k.Index}]; k.Guest && m != nil && m.hello.Process == k.Process {
			m.conn.Close() // nobody here can end it; if it lives, it comes again
		}
		if c.supervisor != nil && !k.Guest {
			c.supervisor.send(wire.Control(wire.KindOrder, wire.Order{
				Kind: wire.OrderKill, Target: fmt.Sprintf("%s:%d", k.Kind, k.Index), PID: k.PID,
			}))
		}
	}
	for _, q := range r.Inquiries {
		if c.supervisor != nil {
			c.supervisor.send(wire.Control(wire.KindOrder, wire.Order{
				Kind: wire.OrderLook, Target: fmt.Sprintf("%s:%d", q.Kind, q.Index), PID: q.PID,
				Spec: strconv.FormatInt(q.Number, 10),
			}))
		}
	}
	if r.Publish != nil && r.Publish.Running != nil {
		p, facts := *r.Publish, c.core.Facts()
		m := running(facts, &p)
		c.wg.Go(func() { c.publishRunning(ctx, p, m) })
	} else if r.Publish != nil {
		p := *r.Publish
		facts := c.core.Facts()
		m := checkpoint.Manifest{Job: facts.Job, Generation: p.Generation, Cut: p.Cut, Tables: facts.View.Tables}
		if facts.View.Roster > 0 {
			m.Slots, m.PastClocks = facts.View.Spans(), facts.PastClocks
		}
		c.wg.Go(func() { c.publish(ctx, p, m) })
	}
	if at := c.core.MinClock(); at != c.progressed || c.completed != c.core.Complete() {
		c.progress(false)
	}
	return nil
}

func (c *Coordinator) save(ctx context.Context, f *membership.Facts) error {
	c.onDisk.Store(true)
	defer c.onDisk.Store(false)
	told := false
	return c.book.save(ctx, f, func(err error) {
		if !told {
			told = true
			c.tell(membership.Event{
				Kind: "trouble", Target: string(wire.RoleCoordinator),
				Text: fmt.Sprintf("the coordinator cannot go on, and tries again: %v", err),
			})
		}
	})
}

// publish writes the manifest of a cut that every shard has written, and then
// lets the loop record it.
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
	if err == nil && c.book.generation.Load() > uint64(p.Generation) {
		c.cfg.withdraw(m)
	}
	if err != nil {
		c.cfg.Log.Error("cannot publish a checkpoint", "cut", p.Cut, "err", err)
		select { // the same cut is asked for again
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	c.inbox.do(ctx, func() {
		if !c.core.Published(p.Generation, p.Cut, err == nil) {
			return // a roll-back may have come first: it goes back to the older checkpoint
		}
		// Only once the registry names the new checkpoint may the old one go.
		if c.ended = c.carryOut(ctx); c.ended != nil {
			return
		}
		if c.cfg.Keep > 0 {
			c.pruner.after(m, c.wg.Go) // the loop waits for no store, which may be far away
		}
	})
}

// withdraw deletes the manifest of a checkpoint that a recorded rollback overtook while it was written. The job never
// uses that checkpoint again, and a checkpoint of the new generation may have pruned its segments before the manifest
// was there. Only the segments remain, which the next prune deletes.
func (cfg *Config) withdraw(m checkpoint.Manifest) {
	if err := checkpoint.Withdraw(cfg.Store, m); err != nil {
		cfg.Log.Warn("cannot delete the manifest of a checkpoint that a rollback overtook", "cut", m.Cut, "err", err)
	}
}

// prune deletes what a checkpoint has made superfluous. The next one may have been quicker, and have
// deleted this one.
func (cfg *Config) prune(m checkpoint.Manifest) {
	err := checkpoint.Prune(cfg.Store, m, cfg.Keep)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		cfg.Log.Warn("cannot delete an old checkpoint", "err", err)
	}
}

// tell passes an event on to the log and the supervisor.
func (c *Coordinator) tell(e membership.Event) {
	c.latest.Tally.note(e)
	if e.Kind != "joining" && e.Kind != "joined" { // of single shards: too many to be news
		c.latest.Event = e.Text
	}
	c.cfg.Log.Info(e.Text, "event", e.Kind, "target", e.Target, "clock", c.core.MinClock())
	for line := range strings.Lines(e.Said) {
		c.cfg.Log.Info(strings.TrimSpace(line), "said_by", e.Target)
	}
	c.toSupervisor(wire.Control(wire.KindEvent, wire.Event{
		Kind: e.Kind, Target: e.Target, Text: e.Text, Clock: c.core.MinClock(), UnixNs: time.Now().UnixNano(),
		UpdatesLost: c.core.Facts().UpdatesLost, ClocksRedone: c.core.Facts().ClocksRedone, Said: e.Said,
	}))
}

// toSupervisor sends a frame to the supervisor, or keeps it for the next one.
func (c *Coordinator) toSupervisor(f wire.Frame) {
	if c.supervisor != nil && c.supervisor.conn.TrySend(f) == nil {
		return
	}
	if len(c.events) < maxEvents {
		c.events = append(c.events, f)
	}
}

// drop loses a share of the shards, chosen by a seed.
func (c *Coordinator) drop(share float64, seed uint64) {
	n := len(c.core.Facts().View.Shards)
	order := rand.New(rand.NewPCG(seed, uint64(n))).Perm(n)
	var shards []perdure.ShardID
	for _, s := range order[:min(n, max(1, int(share*float64(n)+0.5)))] {
		shards = append(shards, perdure.ShardID(s))
	}
	c.core.Drop(shards)
}

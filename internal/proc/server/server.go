// Package server implements the process that holds replicas of shards. Packages replica and chain decide what happens
// to an entry of a shard's log and which peers are notified. The server feeds a replica.Replica from the log in its
// chain.Link and carries out the resulting replica.Effects. It owns the goroutines, connections, disks and time.
//
// A server always acts on the newest view it has seen, even if it missed earlier ones. It restores the shards that the
// view assigns to it, fences processes that the view has superseded, carries out the view's decisions, and reports the
// resulting state to the coordinator. All of this is idempotent.
//
// Locking: applying a clock can take long, and the shard's lock is held meanwhile. Therefore no goroutine waits for
// shard.mu while it holds Server.mu, which guards the view and the maps. A new view is handed to a separate goroutine
// for each shard (see followViewLocked), and heartbeats wait for no lock. No goroutine holds the locks of two shards.
// Server.openLogMu is held while the update log is being opened, and Server.mu may be acquired under it. The locks of
// connections, of peers and of the throttle may be acquired under any of these. No lock may be acquired under the lock
// of frameBuffers.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/admission"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/transport"
)

// Identity describes the server's process to the coordinator.
type Identity struct {
	Process string // unique to this process
	PID     int
	Zone    string // the server's failure domain; "" if unknown
	Version string // of Perdure, for displays; "" if unknown
}

// Config configures a server.
type Config struct {
	Index   int // the server's number in the job; -1 if the coordinator chooses it
	Self    Identity
	Network transport.Network
	Listen  string // the address to listen on for workers; an empty port picks one
	// Publish receives the address that the server listens on and returns the address to advertise. If it is nil, the
	// listen address is advertised.
	Publish     func(at string) (string, error)
	Coordinator string      // the coordinator's address, or several in the format of transport.Link
	Store       store.Store // for checkpoints; nil if none are saved
	// OpenLog opens the job's update log at an address. It is used only by jobs that have an update log.
	OpenLog       func(ctx context.Context, addr string, o updatelog.Options) (updatelog.Log, error)
	LogBytes      int64       // maximum size of the update log over all shards; 0 if unlimited
	Snapshots     store.Store // for snapshots of shards that use an update log; nil if the job has none
	SnapshotBytes int64       // bytes of updates, over all shards, after which snapshots are written; 0: 256 MiB
	Log           *slog.Logger
	Heartbeat     time.Duration      // interval between status reports; 0: 100 ms
	OnOrder       func(wire.Order)   // injects faults into this process; may be nil
	Keys          wire.Keys          // the keys that the server presents, and requires from its peers
	Drain         <-chan struct{}    // if closed, the server hands over its replicas and ends; may be nil
	Notice        time.Duration      // the time that the server has for that; 0: unlimited
	OnJoined      func(Monitor, int) // called with the server's number each time it joins; may be nil
	PlaceBytes    int64              // max bytes unread or waiting for each slot or server; 0: admission.MemberBytes
	PendingBytes  int64              // max bytes of one slot's unapplied updates to one shard; 0: wire.MaxUpdateBytes

	// For tests only: Ended receives each replica that was serving when the server ended.
	OnEnded   func(*checkpoint.Segment)
	Sparing   bool         // background saves contain only the changed rows, even if that saves little
	mutations mutation.Set // from Run's context: negative controls in simulations
}

const defaultHeartbeat = 100 * time.Millisecond

// ErrCheckpoint means that a shard could not be saved or restored despite retries. The server ends, because continuing
// would break a guarantee.
var ErrCheckpoint = errors.New("server: checkpoint failed")

// Server is one server process.
type Server struct {
	cfg       Config
	admission admission.Controller
	addr      string
	changed   chan struct{} // capacity 1: there is a new status to report
	failed    chan error    // capacity 1: the error that ends the server
	shared    sharedState
	ctx       context.Context // ends with the server
	wg        sync.WaitGroup  // the goroutines that Run waits for; only they start more

	openLogMu sync.Mutex    // guards updates until it is set
	updates   updatelog.Log // nil until a shard needs the update log
	waits     updatelog.WaitReasons

	mu          lock // guards the fields below
	job         *perdure.JobSpec
	traits      recovery.Traits // the job's recovery traits
	index       int
	incarnation perdure.Incarnation
	view        *protocol.View // never nil
	shards      map[perdure.ShardID]*shard
	conns       map[*conn]struct{}
	peers       peers
	drain       drain
	coordinator transport.Conn // nil while disconnected

	flush    flushTimer // schedules flushAll
	buffers  frameBuffers
	throttle copyThrottle // for incoming snapshots
}

// Run serves until ctx ends, the coordinator rejects this process, or a checkpoint fails permanently.
func Run(ctx context.Context, cfg Config) error {
	cfg.mutations = mutation.Of(ctx)
	cfg.complete()
	for _, in := range []store.Store{cfg.Store, cfg.Snapshots} {
		if in == nil {
			continue
		}
		if err := in.Prepare(); err != nil &&
			!store.Retryable(err) { // an unavailable store is retried when it is needed
			return fmt.Errorf("server: %w", err)
		}
	}
	l, err := cfg.Network.Listen(cfg.Listen)
	if err != nil {
		return fmt.Errorf("server: listen on %q: %w", cfg.Listen, err)
	}
	defer l.Close()
	addr, err := cfg.Publish(l.Addr())
	if err != nil {
		return err
	}
	s := &Server{
		cfg: cfg, addr: addr, index: cfg.Index,
		changed: make(chan struct{}, 1),
		failed:  make(chan error, 1),
		shared: sharedState{
			readSem: make(chan struct{}, 1), parallel: runtime.GOMAXPROCS(0) > 1, retiring: map[*shard]struct{}{},
		},
		admission: admission.Controller{Keys: cfg.Keys, Log: cfg.Log, Probed: true, MemberBytes: cfg.PlaceBytes},
		shards:    map[perdure.ShardID]*shard{},
		conns:     map[*conn]struct{}{},
		peers:     peers{byAddr: map[string]*peer{}, contact: transport.NewReachability(cfg.Network)},
		view:      &protocol.View{},
	}
	s.flush.init(s.flushAll)
	s.drain.s = s
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { l.Close() })()

	s.ctx = ctx
	defer func() {
		if s.updates != nil {
			_ = s.updates.Close() // no important write is in progress
		}
	}()
	defer s.ended()
	defer s.wg.Wait()
	defer cancel(nil)
	defer s.closeConns()
	s.wg.Go(func() { s.accept(ctx, l) })
	s.wg.Go(func() { s.heartbeat(ctx) })
	s.wg.Go(func() { s.tickChains(ctx) })
	s.wg.Go(func() { s.drain.watch(ctx) })
	s.wg.Go(func() { s.peers.contact.Run(ctx) })
	s.wg.Go(func() {
		link := transport.Link{
			Network: cfg.Network, Addr: cfg.Coordinator, PeerRole: keys.Coordinator,
			Hello: s.hello, Up: s.up, Frame: s.frame, Down: s.down,
		}
		cancel(link.Run(ctx))
	})
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case err := <-s.failed:
		return err
	}
}

// complete fills in the defaults.
func (cfg *Config) complete() {
	if cfg.Heartbeat == 0 {
		cfg.Heartbeat = defaultHeartbeat
	}
	if cfg.PendingBytes == 0 {
		cfg.PendingBytes = wire.MaxUpdateBytes
	}
	if cfg.SnapshotBytes == 0 {
		cfg.SnapshotBytes = defaultSnapshotBytes
	}
	if cfg.Publish == nil {
		cfg.Publish = func(at string) (string, error) { return at, nil }
	}
}

// ended passes the contents of the serving replicas to cfg.Ended.
func (s *Server) ended() {
	if s.cfg.OnEnded == nil {
		return
	}
	for _, sh := range s.heldShards() {
		sh.mu.Lock()
		if sh.rep.Ready() {
			sh.rep.ApplyAll() // work that was left to another goroutine
			s.cfg.OnEnded(sh.saver.SegmentLocked(sh.link.Fence(), &sh.rep.State))
		}
		sh.mu.Unlock()
	}
}

// hello introduces this process to the coordinator.
func (s *Server) hello() wire.Hello {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := wire.Hello{
		Role: wire.RoleServer, Index: s.index, Process: s.cfg.Self.Process, PID: s.cfg.Self.PID,
		Addr: s.addr, Incarnation: s.incarnation, Revision: s.view.Revision, Zone: s.cfg.Self.Zone,
		Version: s.cfg.Self.Version, Secret: s.cfg.Keys.Servers,
	}
	if s.job != nil {
		h.Job = s.job.ID
	}
	return h
}

func (s *Server) up(c transport.Conn, f *wire.Frame) {
	var w wire.Welcome
	if err := wire.ParseControl(f, &w); err != nil {
		s.cfg.Log.Error("invalid welcome from the coordinator", "err", err)
		c.Close()
		return
	}
	traits := recovery.TraitsOf(&w.Job)
	s.mu.Lock()
	s.job, s.traits, s.index, s.incarnation, s.coordinator = &w.Job, traits, w.Index, w.Incarnation, c
	s.mu.Unlock()
	if traits.UsesLog() {
		s.wg.Go(func() { _, _ = s.updateLog() }) // a shard needs it soon and reports the error
	}
	if s.cfg.OnJoined != nil {
		s.cfg.OnJoined(Monitor{s}, w.Index)
	}
	s.cfg.Log.Info("joined", "server", w.Index, "incarnation", w.Incarnation)
	s.notify()
}

func (s *Server) down(c transport.Conn, err error) {
	s.mu.Lock()
	if s.coordinator == c {
		s.coordinator = nil
	}
	s.mu.Unlock()
	s.cfg.Log.Warn("lost the coordinator; continuing with the current view", "err", err)
}

func (s *Server) frame(_ transport.Conn, f *wire.Frame) error {
	switch f.Kind {
	case wire.KindView:
		var v protocol.View
		if err := wire.ParseControl(f, &v); err != nil {
			return err
		}
		s.onView(v)
	case wire.KindViewDelta:
		var d protocol.ViewDelta
		if err := wire.ParseControl(f, &d); err != nil {
			return err
		}
		return s.onDelta(&d)
	case wire.KindOrder:
		var o wire.Order
		if err := wire.ParseControl(f, &o); err != nil {
			return err
		}
		if o.Kind == wire.OrderDrain {
			s.drain.start(time.Duration(o.Notice())*time.Millisecond, true)
		} else if s.cfg.OnOrder != nil {
			s.cfg.OnOrder(o)
		}
	}
	return nil
}

func (s *Server) jobSpec() *perdure.JobSpec {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.job
}

// notify wakes the heartbeat, because something changed that the coordinator waits for.
func (s *Server) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// fail ends the server with err. Only the first error counts.
func (s *Server) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

// heartbeat reports the server's status after every change and at regular intervals. It waits for no lock, so a server
// whose shards are busy does not fall silent.
func (s *Server) heartbeat(ctx context.Context) {
	tick := time.NewTicker(s.cfg.Heartbeat)
	defer tick.Stop()
	w := statusSender{holds: holdMonitor{every: s.cfg.Heartbeat, sampled: time.Now()}}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.sample(s)
			if w.skips() {
				continue
			}
		case <-s.changed:
		}
		if fresh := w.send(s); !fresh {
			time.AfterFunc(busyPause, s.notify)
		}
	}
}

// tickChains advances the time of the chains of all shards whose lock is free, and releases unused memory.
func (s *Server) tickChains(ctx context.Context) {
	tick := time.NewTicker(s.cfg.Heartbeat)
	defer tick.Stop()
	trim := time.NewTicker(trimEvery)
	defer trim.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-trim.C:
			s.buffers.Trim()
		case <-tick.C:
			for _, sh := range s.heldShards() {
				sh.tickChain()
			}
		}
	}
}

// accept accepts connections until the listener is closed.
func (s *Server) accept(ctx context.Context, l transport.Listener) {
	err := transport.AcceptAll(ctx, l, s.admission.Connections(), func(c transport.Conn) {
		s.wg.Go(func() { s.serve(c) })
	})
	if err != nil {
		s.fail(fmt.Errorf("server: accept: %w", err))
	}
}

func (s *Server) closeConns() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.tc.Close()
	}
	s.conns = nil
}

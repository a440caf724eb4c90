// Package server runs the process that holds shards: it carries out what packages chain and replica decide. It
// owns goroutines, connections, disks and time. What becomes of an entry of a shard's log, and who is told of it,
// a replica.Replica decides; the server brings it what the log of its link.Link gives, and carries its Effects
// out.
//
// A server acts on the newest view it has seen, whatever it missed before: it
// restores the shards that the view gives to it, fences what the view calls
// superseded, carries out what the view has decided, and tells the coordinator
// the state it has reached. All of this is idempotent.
//
// Locks: a shard may be at work, with its lock held, for as long as it takes to apply a
// clock. So no goroutine waits for shard.mu while it holds Server.mu, which guards the view
// and the maps: a new view is handed to a goroutine of each shard's own (see bring), and
// heartbeats wait for no lock at all. No goroutine holds two shards' locks. Server.opening
// is held while the update log is opened, and Server.mu may be taken under it. The locks of
// a connection, a peer and the throttle may be taken under these; under that of the buffers
// no other is taken.
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
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/admission"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/transport"
)

// Config is what a server needs to run.
type Config struct {
	Index   int    // the server's number in the job; -1: the coordinator chooses
	Process string // unique to this process
	PID     int
	Network transport.Network
	Listen  string // where to listen for workers; an empty port picks one
	// Publish is given where the server listens, and returns what others are told; nil: they are told that.
	Publish     func(at string) (string, error)
	Coordinator string      // the coordinator's address, or several, as of transport.Link
	Zone        string      // the failure domain that it is in; "": not known
	Store       store.Store // of checkpoints; nil: none are kept
	// OpenLog opens the job's update log at an address, where it has one.
	OpenLog       func(ctx context.Context, addr string, o updatelog.Options) (updatelog.Log, error)
	LogBytes      int64       // that it takes at most, of all shards; 0: there is no bound
	Snapshots     store.Store // of shards whose updates are in an update log; nil: there are none
	SnapshotBytes int64       // of all shards' updates, after which they are written there; 0: 256 MiB
	Log           *slog.Logger
	Heartbeat     time.Duration    // between two statuses; 0: 100 ms
	OnOrder       func(wire.Order) // faults for this process; may be nil
	Keys          wire.Keys        // what it shows to others, and who connects to it must show
	Drain         <-chan struct{}  // closed: hand over what is held here, and end; may be nil
	Notice        time.Duration    // how long it has for that; 0: as long as it takes
	Joined        func(Eye, int)   // it has its place, perhaps again: its number; may be nil
	PlaceBytes    int64            // that each place may leave unread, and have waiting; 0: admission.PlaceBytes
	PendingBytes  int64            // bounds one slot's updates to one shard that are not applied; 0: wire.MaxUpdate

	// For tests only: Ended is given each replica that served when the server ended.
	Ended   func(*checkpoint.Segment)
	Sparing bool       // what is saved in the background has only what has changed, however little that spares
	weak    weaken.Set // by Run's context: negative controls in simulations
}

const defaultHeartbeat = 100 * time.Millisecond

// ErrCheckpoint means that a shard could not be saved or restored, in spite of
// retries: the server gives up, since going on would break a promise.
var ErrCheckpoint = errors.New("server: checkpoint failed")

// Server is one server process.
type Server struct {
	cfg     Config
	door    admission.Door
	addr    string
	changed chan struct{} // capacity 1: a status is worth sending
	failed  chan error    // capacity 1: the server cannot go on
	work    work
	ctx     context.Context // the server's life
	wg      sync.WaitGroup  // what Run waits for; only what it waits for starts more

	opening sync.Mutex    // guards updates until it is set
	updates updatelog.Log // nil unless a shard has a stream
	waits   updatelog.Waits

	mu          lock // guards what follows
	job         *perdure.JobSpec
	traits      recovery.Traits // of the job
	index       int
	incarnation perdure.Incarnation
	view        *words.View // never nil
	shards      map[perdure.ShardID]*shard
	conns       map[*conn]struct{}
	peers       peers
	leaving     leaving
	coordinator transport.Conn // nil while there is none

	telling  telling // tellAll is on its way
	buffers  frameBuffers
	throttle copyThrottle // of the snapshots that come
}

// Run serves until ctx ends, the coordinator refuses this process, or a
// checkpoint fails for good.
func Run(ctx context.Context, cfg Config) error {
	cfg.weak = weaken.Of(ctx)
	cfg.complete()
	for _, in := range []store.Store{cfg.Store, cfg.Snapshots} {
		if in == nil {
			continue
		}
		if err := in.Prepare(); err != nil && !store.Passes(err) { // one that is away is waited for where it is needed
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
		work: work{
			turn: make(chan struct{}, 1), parallel: runtime.GOMAXPROCS(0) > 1, retiring: map[*shard]struct{}{},
		},
		door:   admission.Door{Keys: cfg.Keys, Log: cfg.Log, Visited: true, Bytes: cfg.PlaceBytes},
		shards: map[perdure.ShardID]*shard{},
		conns:  map[*conn]struct{}{},
		peers:  peers{at: map[string]*peer{}, contact: transport.NewReachability(cfg.Network)},
		view:   &words.View{},
	}
	s.telling.of(s.tellAll)
	s.leaving.s = s
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { l.Close() })()

	s.ctx = ctx
	defer func() {
		if s.updates != nil {
			_ = s.updates.Close() // nothing is on its way that matters
		}
	}()
	defer s.ended()
	defer s.wg.Wait()
	defer cancel(nil)
	defer s.closeConns()
	s.wg.Go(func() { s.accept(ctx, l) })
	s.wg.Go(func() { s.heartbeat(ctx) })
	s.wg.Go(func() { s.elapse(ctx) })
	s.wg.Go(func() { s.leaving.heed(ctx) })
	s.wg.Go(func() { s.peers.contact.Run(ctx) })
	s.wg.Go(func() {
		link := transport.Link{
			Network: cfg.Network, Addr: cfg.Coordinator, Wants: keys.Coordinator,
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

// complete puts in the defaults.
func (cfg *Config) complete() {
	if cfg.Heartbeat == 0 {
		cfg.Heartbeat = defaultHeartbeat
	}
	if cfg.PendingBytes == 0 {
		cfg.PendingBytes = wire.MaxUpdate
	}
	if cfg.SnapshotBytes == 0 {
		cfg.SnapshotBytes = defaultSnapshotBytes
	}
	if cfg.Publish == nil {
		cfg.Publish = func(at string) (string, error) { return at, nil }
	}
}

// ended hands over what replicas held, to who wants to know.
func (s *Server) ended() {
	if s.cfg.Ended == nil {
		return
	}
	for _, sh := range s.held() {
		sh.mu.Lock()
		if sh.rep.Ready() {
			sh.rep.Finish() // what another goroutine was to do
			s.cfg.Ended(sh.saver.Whole(sh.link.Name(), &sh.rep.State))
		}
		sh.mu.Unlock()
	}
}

// hello introduces this process to the coordinator.
func (s *Server) hello() wire.Hello {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := wire.Hello{
		Role: wire.RoleServer, Index: s.index, Process: s.cfg.Process, PID: s.cfg.PID,
		Addr: s.addr, Incarnation: s.incarnation, Zone: s.cfg.Zone, Secret: s.cfg.Keys.Servers,
	}
	if s.job != nil {
		h.Job = s.job.ID
	}
	return h
}

func (s *Server) up(c transport.Conn, f *wire.Frame) {
	var w wire.Welcome
	if err := wire.ParseControl(f, &w); err != nil {
		s.cfg.Log.Error("coordinator's welcome", "err", err)
		c.Close()
		return
	}
	traits := recovery.Of(w.Job.Recovery).Traits()
	s.mu.Lock()
	s.job, s.traits, s.index, s.incarnation, s.coordinator = &w.Job, traits, w.Index, w.Incarnation, c
	s.mu.Unlock()
	if traits.Logged() {
		s.wg.Go(func() { _, _ = s.updateLog() }) // a shard will need it soon, and tell why it cannot be had
	}
	if s.cfg.Joined != nil {
		s.cfg.Joined(Eye{s}, w.Index)
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
	s.cfg.Log.Warn("lost the coordinator; going on with the view there is", "err", err)
}

func (s *Server) frame(_ transport.Conn, f *wire.Frame) error {
	switch f.Kind {
	case wire.KindView:
		var v words.View
		if err := wire.ParseControl(f, &v); err != nil {
			return err
		}
		s.onView(v)
	case wire.KindViewDelta:
		var d words.ViewDelta
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
			s.leaving.begin(time.Duration(o.Notice())*time.Millisecond, true)
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

// notify wakes the heartbeat: something changed that the coordinator waits for.
func (s *Server) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// fail ends the server; the first error wins.
func (s *Server) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

// heartbeat sends the server's status immediately on changes, and regularly. It waits for no
// lock: a server whose shards are at work is not silent.
func (s *Server) heartbeat(ctx context.Context) {
	tick := time.NewTicker(s.cfg.Heartbeat)
	defer tick.Stop()
	w := word{holds: holds{every: s.cfg.Heartbeat, sampled: time.Now()}}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.sample(s)
			if w.waits() {
				continue
			}
		case <-s.changed:
		}
		if fresh := w.say(s); !fresh {
			time.AfterFunc(busyPause, s.notify)
		}
	}
}

// elapse lets time pass for the chains of all shards that are not at work, and gives back
// memory that is not used.
func (s *Server) elapse(ctx context.Context) {
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
			for _, sh := range s.held() {
				sh.tickChain()
			}
		}
	}
}

// accept takes connections until the listener is closed.
func (s *Server) accept(ctx context.Context, l transport.Listener) {
	err := transport.AcceptAll(ctx, l, s.door.Connections(), func(c transport.Conn) { s.wg.Go(func() { s.serve(c) }) })
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

// Package worker is the client library for training programs. A program joins a job as a worker, reads rows of the
// job's tables, adds deltas to them, and ends each iteration with Clock.
//
// Most programs call [Run], which joins the job and repeats a step until the job ends:
//
//	err := worker.Run(ctx, worker.Config{}, func(ctx context.Context, c *worker.Client) (worker.Step, error) {
//		w, err := c.Table(ctx, spec)
//		if err != nil {
//			return nil, err
//		}
//		row, delta := make([]float32, spec.Dim), make([]float32, spec.Dim)
//		return func(ctx context.Context, clock perdure.Clock) error {
//			if err := w.Get(ctx, 0, row); err != nil {
//				return err
//			}
//			gradient(delta, row, clock) // the program's own computation
//			return w.Inc(0, delta)
//		}, nil
//	})
//
// A program that does work between clocks calls [Dial], [Client.Table], [Client.Clock] and [Client.Finish] itself.
// Clock returns the clock to work on next, which is an earlier one after a rollback. Programs must therefore derive
// everything in an iteration, such as the position in the data, from that clock, from the tables, or from
// [Client.LoadState], and not from their own counters.
//
// A Client keeps every update until it is safe. It resends updates after a broken connection, a new view or a restored
// shard. It caches rows, and checks the staleness bound of every answer itself, so it does not rely on servers to be
// up to date.
//
// A Client and its Tables are safe for concurrent use. Clock must not overlap with calls that belong to the clock that
// it ends.
//
// Errors wrap those of package perdure. ErrUsage means that the call can never succeed. ErrRolledBack means that the
// job was rolled back: call Clock, and continue from the clock that it returns. After ErrLost, ErrFenced and ErrStopped
// the client has ended, and every later call fails. A call whose context ends returns the context's error, and may be
// repeated.
package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/availability"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/outbox"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/hooks"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/logauth"
	"github.com/perdure/perdure/internal/proc/statestore"
	"github.com/perdure/perdure/internal/proc/transport"
)

// Client is one process's membership in a job. See the package comment.
type Client struct {
	cfg      Config
	run      context.Context // ends with the client
	cancel   context.CancelFunc
	saves    statestore.States // states that go to the job's store; safe for concurrent use
	done     sync.WaitGroup
	liveness livenessMonitor
	wake     chan struct{} // of capacity 1: a status is worth sending

	logWaits updatelog.WaitReasons // safe for concurrent use

	// job and slot are the identity with which this process joined. Dial sets them before it returns the Client, and
	// they never change.
	job  perdure.JobSpec
	slot perdure.Slot

	mu    sync.Mutex
	state locked // guarded by mu: see lock
}

// lock locks the client and returns the state that the lock guards. The caller must call mu.Unlock.
func (c *Client) lock() *locked {
	c.mu.Lock()
	return &c.state
}

// newClient returns a client that has not connected yet.
func newClient(cfg Config, s session) *Client {
	c := &Client{cfg: cfg, wake: make(chan struct{}, 1)}
	c.saves.Open, c.saves.Log = c.cfg.openStore, cfg.Log
	c.saves.OnChange = c.state.notify
	c.state = locked{
		cfg: &c.cfg, done: &c.done, wake: c.wake, waits: waiters{Mu: &c.mu}, session: s,
		servers: servers{
			mu: &c.mu, done: &c.done, peers: map[route]*peer{}, start: c.connect,
			contact: transport.NewReachability(cfg.hooks.Network),
		},
		saving: storedStates{States: &c.saves}, slot: cfg.Slot.Requested(),
		out: outbox.New(cfg.limits()), log: updateLog{waits: &c.logWaits},
		outages: outages{Watch: availability.Watch{After: int64(cfg.OutageAfter)}, began: time.Now()},
	}
	if cfg.Observer {
		c.state.slot = perdure.NoSlot
	}
	return c
}

// Dial joins the job of the coordinator that cfg names. It returns once this process may act for its slot, which may
// have to wait until the coordinator has given up the slot's previous process. Close releases the client. The error
// wraps perdure.ErrUsage for an invalid Config; otherwise it says why this process cannot join.
func Dial(ctx context.Context, cfg Config) (*Client, error) {
	cfg.hooks, cfg.mutations = hooks.FromContext(ctx), mutation.Of(ctx)
	if err := cfg.checkAddress(); err != nil {
		return nil, err
	}
	ring, err := cfg.openKeys()
	if err != nil {
		return nil, err
	}
	session, err := newSession(&cfg)
	if err != nil {
		return nil, err
	}
	if cfg.hooks.OpenLog == nil {
		cfg.hooks.OpenLog = logauth.OpenForAppend(ring)
	}
	cfg.complete()
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := newClient(cfg, session)
	c.run, c.cancel = run, cancel
	away := joinWatch{Log: cfg.Log, Addr: cfg.Coordinator}
	received := time.Now() // last frame from the coordinator; used only by the link's goroutine
	link := transport.Link{
		Network: cfg.hooks.Network, Addr: cfg.Coordinator, PeerRole: keys.Coordinator,
		Hello: c.hello, Up: func(conn transport.Conn, f *wire.Frame) { away.Up(); c.up(conn, f) }, Frame: c.frame,
		Down: func(conn transport.Conn, err error) {
			away.Down()
			l := c.lock()
			defer c.mu.Unlock()
			l.session.down(conn)
			cfg.Log.Warn("lost the coordinator; continuing with the current view", "err", err)
		},
		OnHelloReceived: func() { received = time.Now(); c.liveness.RecordMessage() },
		ShouldRetry: func(_ int, err error) bool {
			away.AttemptFailed(err)
			l := c.lock()
			defer c.mu.Unlock()
			return l.session.welcomed || time.Since(received) < cfg.JoinTimeout
		},
	}
	c.done.Go(func() { c.fail(link.Run(run)) })
	c.done.Go(func() { c.heartbeat(run) })
	if ring != nil {
		c.done.Go(func() { ring.Watch(run, func(err error) { cfg.Log.Warn("keys changed", "err", err) }) })
	}
	if cfg.LostAfter > 0 {
		c.done.Go(func() { c.watchLiveness(run) })
	}
	if !cfg.Observer {
		c.done.Go(func() { c.state.servers.contact.Run(run) })
	}
	if err := c.join(ctx); err != nil {
		_ = c.Leave() // frees a slot that it may already hold, without delay
		c.cancel()
		err = joinError(ctx, cfg.Coordinator, err)
		return nil, fmt.Errorf("worker: join the job at %s: %w", cfg.Coordinator, err)
	}
	l := c.lock()
	defer c.mu.Unlock()
	if l.outages.on {
		c.done.Go(func() { c.watch(run) })
	}
	if !cfg.Observer {
		l.out.SetClock(max(l.view.Slots[l.slot].Start, l.view.StartClock(l.slot)))
		l.out.Ticks().Start(l.out.Clock())
		l.setReadProgress()
	}
	return c, nil
}

// Close ends all connections and all pending calls. It does not wait until updates are safe; Finish does. It always
// returns nil.
func (c *Client) Close() error {
	c.cancel()
	c.fail(transport.ErrClosed)
	l := c.lock()
	log := l.log.log
	c.mu.Unlock()
	if log != nil {
		_ = log.Close() // Finish has waited for all updates that matter
	}
	c.done.Wait()
	return nil
}

// Job returns the job's specification.
func (c *Client) Job() perdure.JobSpec { return c.job }

// Slot returns the slot that this process holds, or NoSlot for an observer.
func (c *Client) Slot() perdure.Slot { return c.slot }

// Now returns the current clock: the one to work on.
func (c *Client) Now() perdure.Clock {
	l := c.lock()
	defer c.mu.Unlock()
	return l.out.Clock()
}

// End returns the clock at which this slot's work ends, because the job ends or the slot leaves earlier. 0 means that
// the end is not known yet. It may become known at any time, but is never less than the current clock.
func (c *Client) End() perdure.Clock {
	l := c.lock()
	defer c.mu.Unlock()
	if l.slot < 0 {
		return l.view.End
	}
	return l.view.EndClock(l.slot)
}

// SetReadClock sets the clock at which an observer reads. Its Gets wait until all updates of earlier clocks are
// applied, or, if the job ends before that clock, all updates of the job.
func (c *Client) SetReadClock(clock perdure.Clock) {
	l := c.lock()
	defer c.mu.Unlock()
	l.out.SetClock(clock)
	l.setReadProgress()
	l.reads.Forget()
}

// fail ends the client with err; the first error is kept. If err is nil it only closes the connections.
func (c *Client) fail(err error) {
	l := c.lock()
	defer c.mu.Unlock()
	if errors.Is(err, context.Canceled) {
		err = transport.ErrClosed
	}
	l.fail(err)
}

func (c *Client) hello() wire.Hello {
	l := c.lock()
	defer c.mu.Unlock()
	h := l.session.hello(l.cfg, l.slot, l.job.ID)
	h.Revision = l.view.Revision
	return h
}

func (c *Client) up(conn transport.Conn, f *wire.Frame) {
	c.liveness.RecordMessage()
	var w wire.Welcome
	if err := wire.ParseControl(f, &w); err != nil {
		c.fail(err)
		return
	}
	if err := c.cfg.canReach(w.Store); err != nil {
		c.fail(err)
		return
	}
	l := c.lock()
	defer c.mu.Unlock()
	if !l.session.welcomed { // the first welcome determines job and slot
		l.job, l.traits = w.Job, recovery.TraitsOf(&w.Job)
		if !c.cfg.Observer {
			l.slot = perdure.Slot(w.Index)
		}
		l.outages.on = l.job.OnOutage.Continue && l.slot >= 0
		l.out.Join(&l.job, l.slot)
	}
	l.session.welcome(conn, &w)
	c.saves.At(w.Store, w.StoreIsLocal)
	for _, sh := range l.shards {
		sh.as.Incarnation = w.Incarnation
	}
	l.waits.Wake()
	l.notify()
}

func (c *Client) frame(_ transport.Conn, f *wire.Frame) error {
	c.liveness.RecordMessage()
	switch f.Kind {
	case wire.KindView:
		var v protocol.View
		if err := wire.ParseControl(f, &v); err != nil {
			return err
		}
		l := c.lock()
		defer c.mu.Unlock()
		l.onView(v)
	case wire.KindViewDelta:
		var d protocol.ViewDelta
		if err := wire.ParseControl(f, &d); err != nil {
			return err
		}
		l := c.lock()
		defer c.mu.Unlock()
		if d.Revision <= l.view.Revision {
			return nil // already known
		}
		v, err := d.Apply(&l.view)
		if err != nil {
			return err // a delta was missed: the next connection brings the whole view
		}
		l.onView(v)
	case wire.KindOrder:
		var o wire.Order
		if err := wire.ParseControl(f, &o); err != nil {
			return err
		}
		if c.cfg.hooks.OnOrder != nil {
			c.cfg.hooks.OnOrder(o)
		}
	}
	return nil
}

// each calls f once in every interval until ctx ends.
func each(ctx context.Context, interval time.Duration, f func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f()
		}
	}
}

// heartbeat reports this worker's status to the coordinator: immediately after a change that the coordinator waits for,
// and at regular intervals. While the lock is held elsewhere it repeats the last status.
func (c *Client) heartbeat(ctx context.Context) {
	tick := time.NewTicker(c.cfg.Heartbeat)
	defer tick.Stop()
	c.done.Go(func() { // a separate goroutine: Trim waits for the lock, heartbeats must not
		each(ctx, trimEvery, func() {
			c.lock().out.Trim()
			c.mu.Unlock()
		})
	})
	var w statusSender
	fresh := make(chan queuedStatus, 1)
	asked, again := false, false
	ask := func() {
		asked, again = true, asked // a pending status may predate this request
		if !again {
			c.done.Go(func() { // delivers the status once it has the lock
				l := c.lock()
				defer c.mu.Unlock()
				fresh <- queuedStatus{l.status(), l.session.conn, protocol.HeartbeatDivisor(&l.view, l.job.Servers)}
			})
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
			ask()
			continue
		case <-tick.C:
			if w.skipsBeat() {
				continue
			}
			if !asked {
				ask()
				continue
			}
		case w.queuedStatus = <-fresh:
			if asked = false; again {
				again = false
				ask()
			}
		}
		if !c.cfg.Observer {
			w.send(time.Now())
		}
	}
}

// Generation returns the generation in which this client works: 1, plus the number of rollbacks of the whole job.
func (c *Client) Generation() perdure.Generation {
	l := c.lock()
	defer c.mu.Unlock()
	return l.generation
}

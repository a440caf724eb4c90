// Package worker is the client library of training programs: they read rows with Get, update them with Inc, and
// end an iteration with Clock.
//
//	w, err := worker.Dial(ctx, worker.Config{Coordinator: addr})
//	model, err := w.Table(ctx, spec)
//	for clock := w.Now(); …
//
// A Client keeps every update until it is safe, and sends it again after a broken
// connection, a new view or a restored shard: all three are the same to it
// (internal/core/outbox). It caches rows, and checks the bound of every answer itself, so
// that no server needs to be trusted to be fresh (internal/core/reads).
//
// A Client and its Tables are safe for concurrent use. But Clock must not overlap with calls
// that are meant to belong to the clock that it ends.
//
// Errors wrap those of package perdure: ErrUsage for a call that can never succeed,
// ErrRolledBack where the job went back (call Clock, and go on from the clock that it
// returns), ErrLost and others where the client has ended, after which every call fails. A
// call whose context ends returns the context's error, and may be made again.
package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/outbox"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/hooks"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/logkeys"
	"github.com/perdure/perdure/internal/proc/transport"
)

// Client is one process's membership in a job. See the package comment.
type Client struct {
	cfg    Config
	run    context.Context // its life
	cancel context.CancelFunc
	saves  stateStore // what goes to the job's store; safe for concurrent use
	done   sync.WaitGroup
	heard  coordinatorHearing
	wake   chan struct{} // of capacity 1: a status is worth sending

	logWaits updatelog.Waits // safe for concurrent use

	// What this process has joined as. Dial sets it before anybody else has the Client, and it
	// never changes.
	job  perdure.JobSpec
	slot perdure.Slot

	mu    sync.Mutex
	state locked // guarded by mu: see lock
}

// lock locks the client, and returns what only the lock's holder may use. mu.Unlock ends it.
func (c *Client) lock() *locked {
	c.mu.Lock()
	return &c.state
}

// newClient returns a client that has not begun.
func newClient(cfg Config, s session) *Client {
	c := &Client{cfg: cfg, wake: make(chan struct{}, 1)}
	c.saves.Open, c.saves.Log = c.cfg.openStore, cfg.Log
	c.saves.Tell = c.state.notify
	c.state = locked{
		cfg: &c.cfg, done: &c.done, wake: c.wake, waits: waits{Mu: &c.mu}, session: s,
		servers: servers{
			mu: &c.mu, done: &c.done, peers: map[route]*peer{}, start: c.connect,
			contact: transport.NewReachability(cfg.hooks.Network),
		},
		saving: storedStates{stateStore: &c.saves}, slot: cfg.Slot.Asked(),
		out: outbox.New(cfg.limits()), log: updateLog{waits: &c.logWaits},
		outages: outages{outageWatch: outageWatch{After: int64(cfg.OutAfter)}, began: time.Now()},
	}
	if cfg.Observer {
		c.state.slot = perdure.NoSlot
	}
	return c
}

// Dial joins the job of a coordinator. It returns once this process may speak for its slot,
// which may be after its former process has been given up. Close ends the client. The error
// is perdure.ErrUsage for a Config that cannot be, or says why the coordinator does not let
// this process in.
func Dial(ctx context.Context, cfg Config) (*Client, error) {
	cfg.hooks, cfg.weak = hooks.Of(ctx), weaken.Of(ctx)
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
		cfg.hooks.OpenLog = logkeys.Appends(ring)
	}
	cfg.complete()
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := newClient(cfg, session)
	c.run, c.cancel = run, cancel
	away := joinWatch{Log: cfg.Log, Addr: cfg.Coordinator}
	heard := time.Now() // the coordinator, or not yet: only the link's goroutine uses it
	link := transport.Link{
		Network: cfg.hooks.Network, Addr: cfg.Coordinator, Wants: keys.Coordinator,
		Hello: c.hello, Up: func(conn transport.Conn, f *wire.Frame) { away.Found(); c.up(conn, f) }, Frame: c.frame,
		Down: func(conn transport.Conn, err error) {
			away.Lost()
			l := c.lock()
			defer c.mu.Unlock()
			l.session.down(conn)
			cfg.Log.Warn("lost the coordinator; going on with the view there is", "err", err)
		},
		Heard: func() { heard = time.Now(); c.heard.Note() },
		Patient: func(_ int, err error) bool {
			away.Tried(err)
			l := c.lock()
			defer c.mu.Unlock()
			return l.session.welcomed || time.Since(heard) < cfg.Patience
		},
	}
	c.done.Go(func() { c.fail(link.Run(run)) })
	c.done.Go(func() { c.heartbeat(run) })
	if ring != nil {
		c.done.Go(func() { ring.Watch(run, func(err error) { cfg.Log.Warn("keys were changed", "err", err) }) })
	}
	if cfg.LostAfter > 0 {
		c.done.Go(func() { c.listen(run) })
	}
	if !cfg.Observer {
		c.done.Go(func() { c.state.servers.contact.Run(run) })
	}
	if err := c.join(ctx); err != nil {
		_ = c.Leave() // the slot that it may have been given is another's at once
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
		l.out.Begin(max(l.view.Slots[l.slot].Start, l.view.Begin(l.slot)))
		l.setMoment()
	}
	return c, nil
}

// Close ends all connections, and every call. It does not wait until updates are safe: see
// Finish. It returns nil.
func (c *Client) Close() error {
	c.cancel()
	c.fail(transport.ErrClosed)
	l := c.lock()
	log := l.log.log
	c.mu.Unlock()
	if log != nil {
		_ = log.Close() // what matters was waited for
	}
	c.done.Wait()
	return nil
}

// Job returns what the job was asked to be.
func (c *Client) Job() perdure.JobSpec { return c.job }

// Slot returns the slot that this process holds, NoSlot for an observer.
func (c *Client) Slot() perdure.Slot { return c.slot }

// Now returns the clock to work on.
func (c *Client) Now() perdure.Clock {
	l := c.lock()
	defer c.mu.Unlock()
	return l.out.Clock()
}

// End returns the clock at which this slot's work ends, with the job or because it leaves
// before; 0: it is not known yet. It may come to be known at any time, but is never less than
// the present clock.
func (c *Client) End() perdure.Clock {
	l := c.lock()
	defer c.mu.Unlock()
	if l.slot < 0 {
		return l.view.End
	}
	return l.view.EndOf(l.slot)
}

// At sets the clock at which an observer reads: its Gets wait until every update of clocks
// below it is applied, or all that the job will have.
func (c *Client) At(clock perdure.Clock) {
	l := c.lock()
	defer c.mu.Unlock()
	l.out.Begin(clock)
	l.setMoment()
	l.reads.Forget()
}

// fail ends the client; the first error stays. nil ends its connections only.
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
	return l.session.hello(l.cfg, l.slot, l.job.ID)
}

func (c *Client) up(conn transport.Conn, f *wire.Frame) {
	c.heard.Note()
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
	if !l.session.welcomed { // the first one says it for good
		l.job, l.traits = w.Job, recovery.Of(w.Job.Recovery).Traits()
		if !c.cfg.Observer {
			l.slot = perdure.Slot(w.Index)
		}
		l.outages.on = l.job.OnOutage.Continue && l.slot >= 0
		l.out.Join(&l.job, l.slot)
	}
	l.session.welcome(conn, &w)
	c.saves.At(w.Store, w.Local)
	for _, sh := range l.shards {
		sh.as.Incarnation = w.Incarnation
	}
	l.waits.Wake()
	l.notify()
}

func (c *Client) frame(_ transport.Conn, f *wire.Frame) error {
	c.heard.Note()
	switch f.Kind {
	case wire.KindView:
		var v words.View
		if err := wire.ParseControl(f, &v); err != nil {
			return err
		}
		l := c.lock()
		defer c.mu.Unlock()
		l.onView(v)
	case wire.KindViewDelta:
		var d words.ViewDelta
		if err := wire.ParseControl(f, &d); err != nil {
			return err
		}
		l := c.lock()
		defer c.mu.Unlock()
		if d.Revision <= l.view.Revision {
			return nil // heard before
		}
		v, err := d.Apply(&l.view)
		if err != nil {
			return err // something was missed: the whole view comes on the next connection
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

// heartbeat tells the coordinator how this worker is: at once when something has changed that
// the coordinator waits for, and regularly. While the lock cannot be had it says again what it
// said last.
func (c *Client) heartbeat(ctx context.Context) {
	tick := time.NewTicker(c.cfg.Heartbeat)
	defer tick.Stop()
	c.done.Go(func() { // heartbeats must not wait for the lock, and this does
		each(ctx, trimEvery, func() {
			c.lock().out.Trim()
			c.mu.Unlock()
		})
	})
	var w word
	fresh := make(chan said, 1)
	asked, again := false, false
	ask := func() {
		asked, again = true, asked // one that is on its way may be older than what is asked for
		if !again {
			c.done.Go(func() { // it comes when the lock can be had
				l := c.lock()
				defer c.mu.Unlock()
				fresh <- said{l.status(), l.session.conn, words.Beats(&l.view, l.job.Servers)}
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
			if w.rests() {
				continue
			}
			if !asked {
				ask()
				continue
			}
		case w.said = <-fresh:
			if asked = false; again {
				again = false
				ask()
			}
		}
		if !c.cfg.Observer {
			w.say(time.Now())
		}
	}
}

// Generation returns the generation that this client works in: 1, and one more for each time
// that the whole job was rolled back.
func (c *Client) Generation() perdure.Generation {
	l := c.lock()
	defer c.mu.Unlock()
	return l.generation
}

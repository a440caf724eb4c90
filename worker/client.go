// Package worker is the client of a job: what a training program uses to Get
// and Inc rows and to end its iterations with Clock.
//
//	w, err := worker.Dial(ctx, worker.Config{Coordinator: addr, Slot: perdure.NoSlot})
//	model, err := w.Table(ctx, spec)
//	for clock := w.Now(); …
//
// A Client keeps every update until it is safe, whatever has been acknowledged
// for flow control, and sends it again after a broken connection, a new view or
// a restored shard: all three are the same to it. It caches rows and checks
// every answer's bound itself, so that no server needs to be trusted to be
// fresh.
//
// A Client is safe for concurrent use, but Clock must not overlap with other
// calls that are meant to belong to the clock it ends.
package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/outbox"
	"github.com/perdure/perdure/internal/core/reads"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// Client is one process's membership in a job. See the package comment.
type Client struct {
	cfg Config
	credentials
	cancel context.CancelFunc
	done   sync.WaitGroup
	wake   chan struct{} // capacity 1: a status is worth sending
	heard  hearing

	mu          sync.Mutex      // guards all that follows
	waiting     []chan struct{} // of those who wait; capacity 1
	waitsSince  time.Time       // somebody does
	freeWaits   []chan struct{} // to be used again
	err         error           // why the client cannot go on, if it cannot
	job         perdure.JobSpec
	traits      recovery.Traits
	slot        perdure.Slot
	incarnation perdure.Incarnation
	welcomed    bool
	view        perdure.View
	viewed      bool
	generation  perdure.Generation
	out         *outbox.Box    // what this slot has made, and the present clock
	coordinator transport.Conn // nil while there is none
	reports     []wire.Frame   // not sent yet
	shards      []*shardLink
	peers       map[route]*peer
	tables      []*Table      // by id; nil for those nobody asked for
	reads       *reads.Reader // from the first view on
	updates     updatelog.Log // nil: updates go to servers
	logWaits    updatelog.Waits
	outages     outages
	stats       stats
}

// Dial joins the job of a coordinator: it returns once this process may speak
// for its slot. Pending connections end with Close.
func Dial(ctx context.Context, cfg Config) (*Client, error) {
	if cfg.Coordinator == "" {
		return nil, fmt.Errorf("%w: worker: Dial needs the Coordinator's address", perdure.ErrUsage)
	}
	credentials, err := cfg.credentials()
	if err != nil {
		return nil, err
	}
	cfg.complete()
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &Client{
		cfg: cfg, credentials: credentials, cancel: cancel, wake: make(chan struct{}, 1),
		out: outbox.New(cfg.limits()), slot: cfg.Slot, peers: map[route]*peer{},
	}
	if cfg.Observer {
		c.slot = perdure.NoSlot
	}
	heard := time.Now() // the coordinator, or not yet: only the link's goroutine uses it
	link := transport.Link{
		Network: cfg.Network, Addr: cfg.Coordinator,
		Hello: c.hello, Up: c.up, Frame: c.frame, Down: c.down,
		Heard:   func() { heard = time.Now(); c.heard.note() },
		Patient: func(_ int, _ error) bool { return c.isWelcome() || time.Since(heard) < cfg.Patience },
	}
	c.done.Go(func() { c.fail(link.Run(run)) })
	c.done.Go(func() { c.heartbeat(run) })
	if cfg.LostAfter > 0 {
		c.done.Go(func() { c.listen(run) })
	}
	if err := c.join(ctx); err != nil {
		c.cancel()
		return nil, fmt.Errorf("worker: join the job at %s: %w", cfg.Coordinator, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.continues() {
		c.done.Go(func() { c.watch(run) })
	}
	if !cfg.Observer {
		c.out.Begin(max(c.view.Slots[c.slot].Start, c.view.Begin(c.slot)))
		c.setMoment()
	}
	return c, nil
}

// Close leaves: it ends all connections. It does not wait for updates to be
// safe; see Finish.
func (c *Client) Close() error {
	c.cancel()
	c.fail(transport.ErrClosed)
	if c.updates != nil {
		_ = c.updates.Close() // what matters was waited for
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
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Clock()
}

// End returns the clock at which this slot's work ends, with the job or because it
// leaves before; 0 if that is not known yet. It may come to be known at any time, but
// is never less than the present clock.
func (c *Client) End() perdure.Clock {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end()
}

// end needs c.mu.
func (c *Client) end() perdure.Clock {
	if c.slot < 0 {
		return c.view.End
	}
	return c.view.EndOf(c.slot)
}

// At sets the clock at which an observer reads: its Gets wait until every
// update of clocks < clock is applied, or all that the job will have.
func (c *Client) At(clock perdure.Clock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.Begin(clock)
	c.setMoment()
	c.reads.Forget()
}

func (c *Client) isWelcome() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.welcomed
}

// wait waits until ready, an error of its own, the client's end or ctx's end.
// It needs c.mu, which it gives up while it waits.
func (c *Client) wait(ctx context.Context, ready func() (bool, error)) error {
	if over, err := c.look(ready); over {
		return err
	}
	woken := c.newWait()
	defer c.freeWait(woken)
	for {
		c.mu.Unlock()
		select {
		case <-woken:
		case <-ctx.Done():
		}
		c.mu.Lock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if over, err := c.look(ready); over {
			return err
		}
	}
}

// look reports whether a wait is over, and how. It needs c.mu.
func (c *Client) look(ready func() (bool, error)) (over bool, err error) {
	if c.err != nil {
		return true, c.err
	}
	ok, err := ready()
	return ok || err != nil, err
}

// newWait needs c.mu.
func (c *Client) newWait() (woken chan struct{}) {
	if n := len(c.freeWaits); n > 0 {
		woken, c.freeWaits = c.freeWaits[n-1], c.freeWaits[:n-1]
	} else {
		woken = make(chan struct{}, 1)
	}
	if len(c.waiting) == 0 {
		c.waitsSince = time.Now()
	}
	c.waiting = append(c.waiting, woken)
	return woken
}

// freeWait needs c.mu.
func (c *Client) freeWait(woken chan struct{}) {
	i := slices.Index(c.waiting, woken)
	c.waiting = slices.Delete(c.waiting, i, i+1)
	select {
	case <-woken:
	default:
	}
	c.freeWaits = append(c.freeWaits, woken)
}

// broadcast lets everybody who waits look again. It needs c.mu.
func (c *Client) broadcast() {
	for _, woken := range c.waiting {
		select {
		case woken <- struct{}{}:
		default: // it will look anyway
		}
	}
}

// fail ends the client; the first error stays.
func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil && err != nil {
		c.err = err
		if errors.Is(err, context.Canceled) {
			c.err = transport.ErrClosed
		}
	}
	for _, p := range c.peers {
		p.cancel()
	}
	c.broadcast()
}

func (c *Client) hello() wire.Hello {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := wire.Hello{
		Role: wire.RoleWorker, Index: int(c.slot), Process: c.cfg.Process, PID: c.cfg.PID,
		Incarnation: c.incarnation, Job: c.job.ID, Grow: c.cfg.Grow, AtCuts: c.cfg.SavesAtCuts,
		Secret: c.secret, Nonce: c.nonce, Ticket: c.ticket,
	}
	if c.cfg.Observer {
		h.Role = wire.RoleObserver
	}
	return h
}

func (c *Client) up(conn transport.Conn, f *wire.Frame) {
	c.heard.note()
	var w wire.Welcome
	if err := wire.ParseControl(f, &w); err != nil {
		c.fail(err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.welcomed { // the first one says it for good: the program reads these without a lock
		c.job, c.traits = w.Job, recovery.Of(w.Job.Recovery).Traits()
		if !c.cfg.Observer {
			c.slot = perdure.Slot(w.Index)
		}
		c.out.Join(&c.job, c.slot)
	}
	c.incarnation, c.ticket, c.welcomed, c.coordinator = w.Incarnation, w.Ticket, true, conn
	unsent := c.reports
	c.reports = nil
	if len(unsent) > 0 {
		_ = conn.Send(unsent...) // a broken link says it itself
	}
	c.broadcast()
	c.notify()
}

func (c *Client) down(conn transport.Conn, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.coordinator == conn {
		c.coordinator = nil
	}
	c.cfg.Log.Warn("lost the coordinator; going on with the view there is", "err", err)
}

func (c *Client) frame(_ transport.Conn, f *wire.Frame) error {
	c.heard.note()
	switch f.Kind {
	case wire.KindView:
		var v perdure.View
		if err := wire.ParseControl(f, &v); err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.onView(v)
	case wire.KindViewDelta:
		var d perdure.ViewDelta
		if err := wire.ParseControl(f, &d); err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.onDelta(&d)
	case wire.KindOrder:
		var o wire.Order
		if err := wire.ParseControl(f, &o); err != nil {
			return err
		}
		if c.cfg.OnOrder != nil {
			c.cfg.OnOrder(o)
		}
	}
	return nil
}

// notify wakes the heartbeat.
func (c *Client) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// heartbeat tells the coordinator how this worker is: at once when something
// that it waits for has changed, and regularly. While a call waits for a slow
// network it says again what it said last.
func (c *Client) heartbeat(ctx context.Context) {
	tick := time.NewTicker(c.cfg.Heartbeat)
	defer tick.Stop()
	trim := time.NewTicker(trimEvery)
	defer trim.Stop()
	var w word
	fresh := make(chan said, 1)
	asked, again := false, false
	ask := func() {
		asked, again = true, asked // one that is on its way may be older than what is asked for
		if !again {
			c.done.Go(func() { fresh <- c.says() }) // it comes when the lock can be had
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-trim.C:
			c.trim()
			continue
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

// trim lets go of memory that updates needed in a burst, and no more.
func (c *Client) trim() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.Trim()
}

// Report tells the coordinator, and through it the people who watch, what the
// program measured. It does not wait.
func (c *Client) Report(r wire.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.Slot, r.Generation = c.slot, c.generation
	f := wire.Control(wire.KindReport, r)
	if c.coordinator == nil || c.coordinator.Send(f) != nil {
		if len(c.reports) < maxReports {
			c.reports = append(c.reports, f)
		}
	}
}

// Generation returns the generation that this client works in: the count of
// roll-backs of the whole job, and 1.
func (c *Client) Generation() perdure.Generation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.generation
}

package transport

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

const (
	// minWork is the assumed minimum work for a message, so that a slowed process answers more slowly even if it
	// computes nothing.
	minWork = 100 * time.Microsecond
	// maxDelay is the maximum delay that a fault adds to one message.
	maxDelay = time.Hour
)

// FaultLayer is a Network around another one that can inject faults while it is used: cuts, slowness and jitter. It
// represents this process's side of the network, so a fault affects every connection through it. Without an active
// fault, it costs two atomic loads per message. It is safe for concurrent use.
type FaultLayer struct {
	inner Network
	on    atomic.Bool // a fault is active
	conns atomic.Uint64

	mu           sync.Mutex // guards the fields below
	cut          chan struct{}
	cutTurn      uint64 // identifies the current cut, so that timers of older ones do nothing
	slow, jitter slowdown
	turns        uint64
	link         LinkModel
}

// LinkModel models a network with a longer distance than the real one. It adds delays to the frames that this process
// sends on each connection.
type LinkModel struct {
	// Delay ± Spread, drawn uniformly for each message, is the added delay. Messages stay in order.
	Delay, Spread time.Duration
	// BytesPerSecond limits the rate. A message of n bytes, including its header, occupies the connection for
	// n/BytesPerSecond before its Delay starts. 0 means no limit.
	BytesPerSecond int64
	// Seed determines the draws, together with the number of the connection in this process and the number of the
	// message.
	Seed uint64
}

func (m LinkModel) on() bool { return m.Delay > 0 || m.Spread > 0 || m.BytesPerSecond > 0 }

// slowdown is a slow or jitter fault. It is active while factor > 1.
type slowdown struct {
	factor float64
	seed   uint64
	since  time.Time
	turn   uint64
}

// NewFaultLayer returns a fault layer around a network.
func NewFaultLayer(network Network) *FaultLayer { return &FaultLayer{inner: network} }

// Cut blocks all traffic for d, or permanently if d ≤ 0. Sent frames are queued up to the connection's limit, incoming
// frames and errors wait, and Dial and Accept block. Afterwards connections resume unless they broke in the meantime. A
// later Cut replaces the end of an earlier one.
func (l *FaultLayer) Cut(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut == nil {
		l.cut = make(chan struct{})
	}
	l.turns++
	turn := l.turns
	l.cutTurn = turn
	l.updateActiveLocked()
	l.expireAfterLocked(d, func() {
		if l.cutTurn == turn {
			close(l.cut)
			l.cut, l.cutTurn = nil, 0
		}
	})
}

// Slow makes this process appear factor times as slow for d, or permanently if d ≤ 0. Each message is delayed by
// (factor-1) × the time since the connection's previous message in either direction, but at least 100 µs, and messages
// stay in order. (Counting only from received messages would delay the messages of a connection that rarely receives
// any, such as a heartbeat's, more and more.) A later Slow replaces an earlier one; factor 1 ends it.
func (l *FaultLayer) Slow(factor float64, d time.Duration) {
	l.setSlowdown(&l.slow, slowdown{factor: factor}, d)
}

// Jitter is like Slow with a factor drawn from [1, factor) for each message. Both may be active at the same time. The
// draws depend on the seed, the number of the connection in this process, and the number of the message.
func (l *FaultLayer) Jitter(factor float64, d time.Duration, seed uint64) {
	l.setSlowdown(&l.jitter, slowdown{factor: factor, seed: seed}, d)
}

// SetLink applies a link model to every connection, in addition to other faults. It must be called before the first
// connection is made.
func (l *FaultLayer) SetLink(m LinkModel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.link = m
	l.updateActiveLocked()
}

func (l *FaultLayer) setSlowdown(p *slowdown, to slowdown, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turns++
	to.since, to.turn = time.Now(), l.turns
	*p = to
	l.updateActiveLocked()
	l.expireAfterLocked(d, func() {
		if p.turn == to.turn {
			*p = slowdown{}
		}
	})
}

// expireAfterLocked switches a fault off after d. The caller must hold l.mu, which is also held while off runs.
func (l *FaultLayer) expireAfterLocked(d time.Duration, off func()) {
	if d <= 0 {
		return
	}
	time.AfterFunc(d, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		off()
		l.updateActiveLocked()
	})
}

func (l *FaultLayer) updateActiveLocked() {
	l.on.Store(l.cut != nil || l.slow.factor > 1 || l.jitter.factor > 1 || l.link.on())
}

func (l *FaultLayer) isCut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut != nil
}

// awaitCut waits until no cut is active, or returns why's error when stop is closed.
func (l *FaultLayer) awaitCut(stop <-chan struct{}, why func() error) error {
	for l.on.Load() {
		l.mu.Lock()
		over := l.cut
		l.mu.Unlock()
		if over == nil {
			break
		}
		select {
		case <-over:
		case <-stop:
			return why()
		}
	}
	return nil
}

func errClosed() error { return ErrClosed }

// Dial implements Network.
func (l *FaultLayer) Dial(ctx context.Context, addr string) (Conn, error) {
	why := func() error { return context.Cause(ctx) }
	if err := l.awaitCut(ctx.Done(), why); err != nil {
		return nil, err
	}
	c, err := l.inner.Dial(ctx, addr)
	if cutErr := l.awaitCut(ctx.Done(), why); cutErr != nil {
		if err == nil {
			_ = c.Close() // unused; the dial fails anyway
		}
		return nil, cutErr
	}
	if err != nil {
		return nil, err
	}
	return l.conn(c), nil
}

// Listen implements Network.
func (l *FaultLayer) Listen(addr string) (Listener, error) {
	in, err := l.inner.Listen(addr)
	if err != nil {
		return nil, err
	}
	return l.Wrap(in), nil
}

// Wrap returns a listener with this fault layer around an existing one.
func (l *FaultLayer) Wrap(in Listener) Listener {
	return &faultListener{Listener: in, layer: l, closed: make(chan struct{})}
}

func (l *FaultLayer) conn(inner Conn) Conn {
	c := &faultConn{Conn: inner, layer: l, number: l.conns.Add(1), closed: make(chan struct{})}
	c.gate.Init(&c.mu, 0)
	return c
}

type faultListener struct {
	Listener
	layer  *FaultLayer
	once   sync.Once
	closed chan struct{}
}

// Accept implements Listener.
func (l *faultListener) Accept() (Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if err := l.layer.awaitCut(l.closed, errClosed); err != nil {
		_ = c.Close() // unused
		return nil, err
	}
	return l.layer.conn(c), nil
}

// Close implements Listener.
func (l *faultListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// drawDelayLocked draws the delay of a message that c sends now. The caller must hold c.mu.
func (l *FaultLayer) drawDelayLocked(c *faultConn, now time.Time) time.Duration {
	l.mu.Lock()
	slow, jitter := l.slow, l.jitter
	l.mu.Unlock()
	factor, since := 1.0, c.last
	if slow.factor > 1 {
		factor = slow.factor
	}
	if jitter.factor > 1 {
		if c.rng == nil || c.rngTurn != jitter.turn {
			c.rng, c.rngTurn = rand.New(rand.NewPCG(jitter.seed, c.number)), jitter.turn
		}
		factor *= 1 + c.rng.Float64()*(jitter.factor-1)
	}
	if factor == 1 {
		return 0
	}
	// Time before the fault started does not count, and was not recorded.
	for _, p := range []slowdown{slow, jitter} {
		if p.factor > 1 && p.since.After(since) {
			since = p.since
		}
	}
	work := max(now.Sub(since), minWork)
	return time.Duration(min((factor-1)*float64(work), float64(maxDelay)))
}

// departureLocked draws when a frame that is ready at the given time departs. The caller must hold c.mu.
func (l *FaultLayer) departureLocked(c *faultConn, f *wire.Frame, ready time.Time) time.Time {
	l.mu.Lock()
	m := l.link
	l.mu.Unlock()
	if m.BytesPerSecond > 0 {
		if ready.Before(c.linkFree) {
			ready = c.linkFree
		}
		bytes := wire.HeaderBytes + f.PayloadBytes()
		ready = ready.Add(time.Duration(float64(bytes) / float64(m.BytesPerSecond) * float64(time.Second)))
		c.linkFree = ready
	}
	ready = ready.Add(m.Delay)
	if m.Spread > 0 {
		if c.linkRNG == nil {
			c.linkRNG = rand.New(rand.NewPCG(m.Seed, c.number))
		}
		ready = ready.Add(time.Duration(c.linkRNG.Int64N(2*int64(m.Spread)+1)) - m.Spread)
	}
	if ready.Before(c.lastDeparture) { // the previous frame departs later
		ready = c.lastDeparture
	}
	c.lastDeparture = ready
	return ready
}

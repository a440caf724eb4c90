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
	// leastWork is what a message is taken to cost at least, so that a slowed
	// process answers more slowly even where it has nothing to compute.
	leastWork = 100 * time.Microsecond
	// maxDelay bounds what a fault adds to one message.
	maxDelay = time.Hour
)

// FaultLayer is a Network around another one that can be made to fail while it
// is used: cut off, slow, or jittery. It stands for this process's side of the
// network: every connection through it is affected. With no fault on, it costs
// two loads of an atomic for each message. Safe for concurrent use.
type FaultLayer struct {
	inner Network
	on    atomic.Bool // any fault is on: what is below is worth a look
	conns atomic.Uint64

	mu           sync.Mutex // guards all below
	cut          chan struct{}
	cutTurn      uint64 // of the present cut: an older one's timer does nothing
	slow, jitter pace
	turns        uint64
	link         LinkModel
}

// LinkModel is a network that is farther away than the real one: what it adds to
// each connection in the direction from this process.
type LinkModel struct {
	// Delay ± Spread, drawn uniformly for each message, is how much later it
	// leaves. None overtakes another.
	Delay, Spread time.Duration
	// BytesPerSecond is how much leaves at most: a message of n bytes, header
	// included, occupies the connection for n/BytesPerSecond, before its Delay.
	// 0: as much as the network takes.
	BytesPerSecond int64
	// Seed of the draws, which are a function of it, the number of the connection
	// within this process, and the message's.
	Seed uint64
}

func (m LinkModel) on() bool { return m.Delay > 0 || m.Spread > 0 || m.BytesPerSecond > 0 }

// pace is a slow or jitter fault. It is on while factor > 1.
type pace struct {
	factor float64
	seed   uint64
	since  time.Time
	turn   uint64
}

// Faulty puts a fault layer around a network.
func Faulty(network Network) *FaultLayer { return &FaultLayer{inner: network} }

// Cut lets nothing in or out for d (until the end if d ≤ 0): what is sent waits
// up to the connection's bound, what comes in waits, errors too, and Dial and
// Accept hang. Afterwards connections go on where they were, unless they broke
// meanwhile. A later Cut replaces an earlier one's end.
func (l *FaultLayer) Cut(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut == nil {
		l.cut = make(chan struct{})
	}
	l.turns++
	turn := l.turns
	l.cutTurn = turn
	l.switched()
	l.after(d, func() {
		if l.cutTurn == turn {
			close(l.cut)
			l.cut, l.cutTurn = nil, 0
		}
	})
}

// Slow makes this process look factor times as slow for d (until the end if
// d ≤ 0): what is sent is held back by (factor-1) × the time since the
// connection's last message before it in either direction, at least 100 µs,
// and stays in order. (Counting only from messages received would hold back the
// messages of a connection that rarely receives any, like a heartbeat's, for
// ever longer.) A later Slow replaces an earlier one; factor 1 ends it.
func (l *FaultLayer) Slow(factor float64, d time.Duration) {
	l.setPace(&l.slow, pace{factor: factor}, d)
}

// Jitter is like Slow with a factor drawn from [1, factor) for each message,
// and may be on together with it. The draws are a function of the seed, the
// number of the connection within this process, and the message's.
func (l *FaultLayer) Jitter(factor float64, d time.Duration, seed uint64) {
	l.setPace(&l.jitter, pace{factor: factor, seed: seed}, d)
}

// SetLink makes every connection carry messages as the model has it, beside
// whatever other faults are on. It is called before the first connection is made.
func (l *FaultLayer) SetLink(m LinkModel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.link = m
	l.switched()
}

func (l *FaultLayer) setPace(p *pace, to pace, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turns++
	to.since, to.turn = time.Now(), l.turns
	*p = to
	l.switched()
	l.after(d, func() {
		if p.turn == to.turn {
			*p = pace{}
		}
	})
}

// after switches something off when d is over; l.mu is held, also in off.
func (l *FaultLayer) after(d time.Duration, off func()) {
	if d <= 0 {
		return
	}
	time.AfterFunc(d, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		off()
		l.switched()
	})
}

func (l *FaultLayer) switched() {
	l.on.Store(l.cut != nil || l.slow.factor > 1 || l.jitter.factor > 1 || l.link.on())
}

func (l *FaultLayer) isCut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut != nil
}

// awaitCut returns when no cut is on, or with why not to wait longer.
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
			_ = c.Close() // unused; that the dial was in vain is the news
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
	return l.Around(in), nil
}

// Around puts the fault layer around a listener that was made without it.
func (l *FaultLayer) Around(in Listener) Listener {
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
		_ = c.Close() // nobody will ever use it
		return nil, err
	}
	return l.layer.conn(c), nil
}

// Close implements Listener.
func (l *faultListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// delay draws how long a message that c sends now is held back; c.mu is held.
func (l *FaultLayer) delay(c *faultConn, now time.Time) time.Duration {
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
	// What was before a fault began was not slowed by it, nor noted.
	for _, p := range []pace{slow, jitter} {
		if p.factor > 1 && p.since.After(since) {
			since = p.since
		}
	}
	work := max(now.Sub(since), leastWork)
	return time.Duration(min((factor-1)*float64(work), float64(maxDelay)))
}

// leaving draws when a frame leaves that is ready at the given time; c.mu is held.
func (l *FaultLayer) leaving(c *faultConn, f *wire.Frame, ready time.Time) time.Time {
	l.mu.Lock()
	m := l.link
	l.mu.Unlock()
	if m.BytesPerSecond > 0 {
		if ready.Before(c.free) {
			ready = c.free
		}
		bytes := wire.HeaderBytes + f.PayloadBytes()
		ready = ready.Add(time.Duration(float64(bytes) / float64(m.BytesPerSecond) * float64(time.Second)))
		c.free = ready
	}
	ready = ready.Add(m.Delay)
	if m.Spread > 0 {
		if c.linkRNG == nil {
			c.linkRNG = rand.New(rand.NewPCG(m.Seed, c.number))
		}
		ready = ready.Add(time.Duration(c.linkRNG.Int64N(2*int64(m.Spread)+1)) - m.Spread)
	}
	if ready.Before(c.leaves) { // the one before it leaves later
		ready = c.leaves
	}
	c.leaves = ready
	return ready
}

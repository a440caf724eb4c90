package transport

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// faultConn is a Conn through a FaultLayer. While a fault is on, and until all
// is sent that it held back, Send queues, and a goroutine passes the queue on;
// otherwise Send goes straight through.
type faultConn struct {
	Conn
	layer    *FaultLayer
	number   uint64 // of this connection within the layer
	closed   chan struct{}
	delaying atomic.Bool // frames are held back: what comes must go behind them
	passing  sync.WaitGroup

	mu      sync.Mutex // guards all below
	gate    sendGate   // the bytes held back
	held    []heldFrame
	handing bool      // pass is handing frames on
	last    time.Time // when the last message in either direction came or goes, while a fault is on
	rng     *rand.Rand
	rngTurn uint64    // which jitter rng was made for
	free    time.Time // when the link has carried what was sent so far
	leaves  time.Time // when the last of it leaves
	linkRNG *rand.Rand
}

// heldFrame is a frame that is not sent before a time.
type heldFrame struct {
	frame wire.Frame
	at    time.Time
}

// Send implements Conn.
func (c *faultConn) Send(frames ...wire.Frame) error {
	if !c.layer.on.Load() && !c.delaying.Load() {
		return c.Conn.Send(frames...)
	}
	return c.delay(frames, true)
}

// TrySend implements Conn.
func (c *faultConn) TrySend(frames ...wire.Frame) error {
	if !c.layer.on.Load() && !c.delaying.Load() {
		return c.Conn.TrySend(frames...)
	}
	return c.delay(frames, false)
}

// Charge implements Conn. What is held back counts, too.
func (c *faultConn) Charge(b *Budget) {
	c.mu.Lock()
	c.gate.Charge(b)
	c.mu.Unlock()
	c.Conn.Charge(b)
}

// delay queues a batch for pass.
func (c *faultConn) delay(frames []wire.Frame, wait bool) error {
	n, err := batchBytes(frames)
	if err != nil {
		released(frames)
		return err
	}
	c.mu.Lock()
	if err := c.gate.Enter(n, wait); err != nil {
		c.mu.Unlock()
		released(frames)
		return err
	}
	defer c.mu.Unlock()
	keep(frames)
	now := time.Now()
	at := now.Add(c.layer.delay(c, now))
	if at.After(c.last) { // else it goes with the batch before it
		c.last = at
	}
	for i := range frames {
		c.held = append(c.held, heldFrame{frames[i], c.layer.leaving(c, &frames[i], at)})
	}
	if !c.delaying.Load() {
		c.delaying.Store(true)
		c.passing.Go(c.pass)
	}
	return nil
}

// pass sends what is held back, each frame at its time, until nothing is.
func (c *faultConn) pass() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var batch []wire.Frame
	for {
		at, more := c.nextAt()
		if !more {
			return
		}
		timer.Reset(time.Until(at))
		select {
		case <-timer.C:
		case <-c.closed:
			return
		}
		if c.layer.awaitCut(c.closed, errClosed) != nil {
			return
		}
		batch = c.takeDue(batch[:0])
		if len(batch) == 0 {
			continue
		}
		n, _ := batchBytes(batch) // checked when they came
		err := c.Conn.Send(batch...)
		clear(batch) // lets the payloads go
		if !c.handed(n, err) {
			return
		}
	}
}

// nextAt returns when the next frame is to be sent. Without one, pass ends.
func (c *faultConn) nextAt() (at time.Time, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.held) == 0 {
		c.held = nil
		c.delaying.Store(c.gate.Err() != nil) // of a closed one it stays on, so that Sends fail at the gate
		return at, false
	}
	return c.held[0].at, true
}

// takeDue takes the frames whose time has come: none once c is closed.
func (c *faultConn) takeDue(batch []wire.Frame) []wire.Frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for len(c.held) > 0 && !c.held[0].at.After(now) {
		batch = append(batch, c.held[0].frame)
		c.held[0] = heldFrame{} // lets the payload go
		c.held = c.held[1:]
	}
	c.handing = len(batch) > 0
	return batch
}

// handed notes what became of a batch that pass has sent.
func (c *faultConn) handed(bytes int, err error) (goOn bool) {
	c.mu.Lock()
	c.handing = false
	c.gate.Leave(bytes)
	if err == nil {
		c.mu.Unlock()
		return true
	}
	c.gate.Fail(err) // of a broken connection: delaying stays on, so that Sends fail at the gate
	lost := c.dropHeld()
	c.mu.Unlock()
	released(lost)
	return false
}

// dropHeld empties held; c.mu is held.
func (c *faultConn) dropHeld() (frames []wire.Frame) {
	for i := range c.held {
		frames = append(frames, c.held[i].frame)
	}
	c.held = nil
	return frames
}

// Recv implements Conn.
func (c *faultConn) Recv(f *wire.Frame) error { return c.RecvInto(f, nil) }

// RecvInto implements Conn.
func (c *faultConn) RecvInto(f *wire.Frame, place func(f *wire.Frame, n int) []byte) error {
	err := c.Conn.RecvInto(f, place)
	if !c.layer.on.Load() {
		return err
	}
	if cutErr := c.layer.awaitCut(c.closed, errClosed); cutErr != nil {
		return cutErr
	}
	c.mu.Lock()
	c.last = time.Now()
	c.mu.Unlock()
	return err
}

// Close implements Conn. What is held back leaves at once, unless a cut holds it
// or the connection cannot take it: a refusal is not lost to the Close behind it.
func (c *faultConn) Close() error {
	c.mu.Lock()
	c.gate.Fail(ErrClosed)
	select {
	case <-c.closed:
	default:
		close(c.closed)
	}
	rest, inOrder := c.dropHeld(), !c.handing // pass takes no more now
	c.mu.Unlock()
	if len(rest) > 0 && inOrder && !c.layer.isCut() {
		_ = c.Conn.TrySend(rest...) // in vain if it is full
	} else {
		released(rest)
	}
	err := c.Conn.Close()
	c.passing.Wait()
	c.mu.Lock()
	c.gate.Forget()
	c.mu.Unlock()
	return err
}

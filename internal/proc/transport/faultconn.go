package transport

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// faultConn is a Conn with a FaultLayer. While a fault is active, and until all delayed frames are sent, Send queues
// frames and a goroutine forwards them. Otherwise Send calls the inner Conn directly.
type faultConn struct {
	Conn
	layer    *FaultLayer
	number   uint64 // of this connection within the layer
	closed   chan struct{}
	delaying atomic.Bool // frames are delayed, so later frames must queue after them
	passing  sync.WaitGroup

	mu            sync.Mutex // guards the fields below
	gate          sendGate   // limits the delayed bytes
	delayed       []delayedFrame
	handing       bool      // pass is sending frames
	last          time.Time // time of the last message in either direction while a fault is active
	rng           *rand.Rand
	rngTurn       uint64    // the jitter that rng was made for
	linkFree      time.Time // when the link has transmitted all frames so far
	lastDeparture time.Time // when the last frame departs
	linkRNG       *rand.Rand
}

// delayedFrame is a frame that is not sent before a given time.
type delayedFrame struct {
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

// Charge implements Conn. Delayed frames are charged too.
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
		releaseAll(frames)
		return err
	}
	c.mu.Lock()
	if err := c.gate.Enter(n, wait); err != nil {
		c.mu.Unlock()
		releaseAll(frames)
		return err
	}
	defer c.mu.Unlock()
	copyLent(frames)
	now := time.Now()
	at := now.Add(c.layer.drawDelayLocked(c, now))
	if at.After(c.last) { // otherwise it is sent with the previous batch
		c.last = at
	}
	for i := range frames {
		c.delayed = append(c.delayed, delayedFrame{frames[i], c.layer.departureLocked(c, &frames[i], at)})
	}
	if !c.delaying.Load() {
		c.delaying.Store(true)
		c.passing.Go(c.pass)
	}
	return nil
}

// pass sends the delayed frames, each at its time, until none are left.
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
		n, _ := batchBytes(batch) // checked by delay
		err := c.Conn.Send(batch...)
		clear(batch) // releases the payloads
		if !c.batchSent(n, err) {
			return
		}
	}
}

// nextAt returns when the next frame must be sent. If there is none, pass ends.
func (c *faultConn) nextAt() (at time.Time, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.delayed) == 0 {
		c.delayed = nil
		c.delaying.Store(c.gate.Err() != nil) // stays set on a closed connection, so that Sends fail at the gate
		return at, false
	}
	return c.delayed[0].at, true
}

// takeDue takes the frames that are due. It returns none once c is closed.
func (c *faultConn) takeDue(batch []wire.Frame) []wire.Frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for len(c.delayed) > 0 && !c.delayed[0].at.After(now) {
		batch = append(batch, c.delayed[0].frame)
		c.delayed[0] = delayedFrame{} // releases the payload
		c.delayed = c.delayed[1:]
	}
	c.handing = len(batch) > 0
	return batch
}

// batchSent records the result of sending a batch and reports whether pass continues.
func (c *faultConn) batchSent(bytes int, err error) (resume bool) {
	c.mu.Lock()
	c.handing = false
	c.gate.Leave(bytes)
	if err == nil {
		c.mu.Unlock()
		return true
	}
	c.gate.Fail(err) // the connection is broken: delaying stays set, so that Sends fail at the gate
	lost := c.dropDelayedLocked()
	c.mu.Unlock()
	releaseAll(lost)
	return false
}

// dropDelayedLocked empties held. The caller must hold c.mu.
func (c *faultConn) dropDelayedLocked() (frames []wire.Frame) {
	for i := range c.delayed {
		frames = append(frames, c.delayed[i].frame)
	}
	c.delayed = nil
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

// Close implements Conn. Delayed frames are sent immediately, so that a refusal is not lost, unless a cut is active or
// the connection is full.
func (c *faultConn) Close() error {
	c.mu.Lock()
	c.gate.Fail(ErrClosed)
	select {
	case <-c.closed:
	default:
		close(c.closed)
	}
	rest, inOrder := c.dropDelayedLocked(), !c.handing // pass takes no more frames after this
	c.mu.Unlock()
	if len(rest) > 0 && inOrder && !c.layer.isCut() {
		_ = c.Conn.TrySend(rest...) // fails if the connection is full
	} else {
		releaseAll(rest)
	}
	err := c.Conn.Close()
	c.passing.Wait()
	c.mu.Lock()
	c.gate.ReleaseBudget()
	c.mu.Unlock()
	return err
}

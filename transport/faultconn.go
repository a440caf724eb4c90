package transport

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure/wire"
)

// faultConn is a Conn through a FaultLayer. While a fault is on, and until all
// is sent that it held back, Send queues, and a goroutine passes the queue on;
// otherwise Send goes straight through.
type faultConn struct {
	Conn
	layer    *FaultLayer
	number   uint64 // of this connection within the layer
	closed   chan struct{}
	delaying atomic.Bool // batches are held back: what comes must go behind them
	passing  sync.WaitGroup

	mu      sync.Mutex // guards all below
	gate    gate       // the bytes held back
	held    []heldBatch
	last    time.Time // when the last message in either direction came or goes, while a fault is on
	rng     *rand.Rand
	rngTurn uint64 // which jitter rng was made for
}

// heldBatch is a batch that is not sent before a time.
type heldBatch struct {
	frames []wire.Frame
	bytes  int
	at     time.Time
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

// delay queues a batch for pass.
func (c *faultConn) delay(frames []wire.Frame, wait bool) error {
	n, err := batchBytes(frames)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.gate.enter(n, wait); err != nil {
		return err
	}
	now := time.Now()
	at := now.Add(c.layer.delay(c, now))
	if at.After(c.last) { // else it goes with the batch before it
		c.last = at
	}
	c.held = append(c.held, heldBatch{slices.Clone(frames), n, at})
	if !c.delaying.Load() {
		c.delaying.Store(true)
		c.passing.Go(c.pass)
	}
	return nil
}

// pass sends what is held back, each batch at its time, until nothing is.
func (c *faultConn) pass() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		c.mu.Lock()
		if len(c.held) == 0 {
			c.held = nil
			c.delaying.Store(false)
			c.mu.Unlock()
			return
		}
		next := c.held[0]
		c.held[0] = heldBatch{} // lets the payloads go
		c.held = c.held[1:]
		c.mu.Unlock()

		timer.Reset(time.Until(next.at))
		select {
		case <-timer.C:
		case <-c.closed:
			return
		}
		if c.layer.awaitCut(c.closed, errClosed) != nil {
			return
		}
		err := c.Conn.Send(next.frames...)
		c.mu.Lock()
		c.gate.leave(next.bytes)
		if err != nil { // of a broken connection: delaying stays on, so that Sends fail at the gate
			c.gate.fail(err)
			c.held = nil
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	}
}

// Recv implements Conn.
func (c *faultConn) Recv(f *wire.Frame) error {
	err := c.Conn.Recv(f)
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

// Close implements Conn. What is held back is not sent.
func (c *faultConn) Close() error {
	c.mu.Lock()
	c.gate.fail(ErrClosed)
	select {
	case <-c.closed:
	default:
		close(c.closed)
	}
	c.mu.Unlock()
	err := c.Conn.Close()
	c.passing.Wait()
	return err
}

package worker_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// lazyNetwork delays sent frames without copying them, as a full socket does. It reports frames that were modified
// meanwhile. Its connections break at random.
type lazyNetwork struct {
	transport.Network
	t      testing.TB
	mu     sync.Mutex // guards the fields below
	rng    *rand.Rand
	breaks float64       // probability, per frame, that a connection breaks
	most   time.Duration // max delay of a frame
	broken int
}

func (n *lazyNetwork) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := n.Network.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	l := &lazyConn{Conn: c, net: n, wake: make(chan struct{}, 1), closed: make(chan struct{})}
	l.done.Go(l.pass)
	return l, nil
}

// draw returns how long to delay a frame, and whether the connection breaks afterwards.
func (n *lazyNetwork) draw() (time.Duration, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	breaks := n.rng.Float64() < n.breaks
	if breaks {
		n.broken++
	}
	return time.Duration(n.rng.Int64N(int64(n.most) + 1)), breaks
}

func (n *lazyNetwork) breakings() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.broken
}

type lazyConn struct {
	transport.Conn
	net    *lazyNetwork
	wake   chan struct{}
	closed chan struct{}
	once   sync.Once
	done   sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	queue []lazyFrame
}

// lazyFrame is a delayed frame with its payload at the time it was sent.
type lazyFrame struct {
	wire.Frame
	was []byte
}

func (c *lazyConn) Send(frames ...wire.Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range frames {
		c.queue = append(c.queue, lazyFrame{f, slices.Concat(f.Payload, f.Body)})
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return nil
}

func (c *lazyConn) TrySend(frames ...wire.Frame) error { return c.Send(frames...) }

func (c *lazyConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	err := c.Conn.Close()
	c.done.Wait()
	return err
}

// pass forwards frames.
func (c *lazyConn) pass() {
	for {
		c.mu.Lock()
		var f lazyFrame
		some := len(c.queue) > 0
		if some {
			f, c.queue = c.queue[0], c.queue[1:]
		}
		c.mu.Unlock()
		if !some {
			select {
			case <-c.wake:
				continue
			case <-c.closed:
				return
			}
		}
		wait, breaks := c.net.draw()
		select {
		case <-time.After(wait):
		case <-c.closed:
			return
		}
		if now := slices.Concat(f.Payload, f.Body); !bytes.Equal(now, f.was) {
			c.net.t.Errorf("a frame of kind %d, request %d, clock %d, was changed while it was queued", f.Kind,
				f.Request, f.Clock)
		}
		if breaks {
			c.Conn.Close()
			return
		}
		if c.Conn.Send(f.Frame) != nil {
			return
		}
	}
}

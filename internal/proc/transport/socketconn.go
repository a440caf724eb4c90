package transport

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// directBytes is how much of a batch its sender writes itself at most: more
// would keep it from its own work while the writer's processor idles.
const directBytes = 1 << 20

// socket is a stream socket: a *net.TCPConn or a *net.UnixConn.
type socket interface {
	net.Conn
	syscall.Conn
	SetReadBuffer(bytes int) error
	SetWriteBuffer(bytes int) error
}

// socketConn is a Conn over a stream socket.
//
// One at a time has the turn to write. A sender that finds the connection idle
// takes it and writes without waiting: waking another goroutine would cost more
// than writing. What the socket does not take at once it leaves, where it lies, to
// the writer, a goroutine that lives while there is something to write. While
// somebody has the turn, senders append their frames to queue.
//
// Invariant: while nobody has the turn, nothing is queued.
type socketConn struct {
	sock   socket
	raw    syscall.RawConn // for what must not wait
	peer   string
	stall  time.Duration
	closed atomic.Bool

	mu    sync.Mutex // guards the next four
	gate  sendGate   // the bytes queued or being written; its err says why the connection broke
	busy  bool       // somebody has the turn
	queue []wire.Frame
	free  sync.Cond // nobody has the turn any more

	out    outgoing              // belongs to whoever has the turn
	writer func()                // c.write: made once, since each making allocates
	try    func(fd uintptr)      // c.writev, likewise
	step   func(fd uintptr) bool // c.writeStep, likewise

	in      incoming // the receiver's
	recvErr error    // the receiver's: broken stays broken

	private *private // nil: what is sent can be read on its way
}

// conn starts a connection on an established socket.
func (t TCP) conn(sock socket, peer string) (*socketConn, error) {
	raw, err := sock.SyscallConn()
	if err != nil {
		return nil, errors.Join(broken(peer, err), sock.Close())
	}
	c := &socketConn{sock: sock, raw: raw, peer: peer, stall: t.StallTimeout}
	if c.stall <= 0 {
		c.stall = defaultStallTimeout
	}
	c.out.inline = inlineBytes
	c.gate.Init(&c.mu, t.MaxQueued)
	c.free.L = &c.mu
	c.writer = c.write
	c.try, c.step = c.writev, c.writeStep
	c.in.init(sock, raw)
	return c, nil
}

// Peer implements Conn.
func (c *socketConn) Peer() string { return c.peer }

// Charge implements Conn.
func (c *socketConn) Charge(b *Budget) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gate.Charge(b)
}

// Send implements Conn.
func (c *socketConn) Send(frames ...wire.Frame) error { return c.send(frames, true) }

// TrySend implements Conn.
func (c *socketConn) TrySend(frames ...wire.Frame) error { return c.send(frames, false) }

func (c *socketConn) send(frames []wire.Frame, wait bool) error {
	n, err := batchBytes(frames)
	if err != nil {
		released(frames)
		return err
	}
	if n == 0 { // an empty write is a system call too
		return nil
	}
	c.mu.Lock()
	if err := c.gate.Enter(n, wait); err != nil {
		c.mu.Unlock()
		released(frames)
		return err
	}
	if c.busy {
		keep(frames)
		c.queue = append(c.queue, frames...)
		c.mu.Unlock()
		return nil
	}
	c.busy = true
	c.mu.Unlock()
	c.sendNow(frames)
	return nil
}

// sendNow writes what the socket takes at once of a batch that is inside the
// gate, and leaves the rest to the writer. An error is for the writer to meet again.
func (c *socketConn) sendNow(frames []wire.Frame) {
	done := 0
	for len(frames) > 0 && done < directBytes {
		k := c.lineUp(frames)
		if !c.writeNow() {
			c.out.keep(frames[:k])
			break
		}
		done += c.out.finish()
		released(frames[:k])
		frames = frames[k:]
	}
	keep(frames)
	c.out.frames = append(c.out.frames, frames...)
	if c.passOn(done) {
		go c.writer()
	}
}

// tryWrite writes what is lined up, without waiting, and reports whether that was
// all.
func (c *socketConn) tryWrite() bool {
	_ = c.raw.Control(c.try) // fails on a closed socket, as the writer will
	return len(c.out.vector) == 0
}

// write is the writer.
func (c *socketConn) write() {
	for more := true; more; {
		if c.out.begun == 0 {
			c.lineUp(c.out.left())
		}
		if err := c.writeAll(); err != nil {
			c.stopWriting(err)
			return
		}
		more = c.passOn(c.out.finishFrames())
	}
}

// passOn says that n bytes are written. It reports whether there is more to write;
// otherwise the turn is over.
func (c *socketConn) passOn(n int) (more bool) {
	traffic.out.Add(int64(n))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gate.Leave(n)
	if len(c.out.left()) == 0 {
		c.queue = c.out.refill(c.queue)
	}
	if len(c.out.left()) == 0 {
		c.busy = false
		c.free.Broadcast()
		return false
	}
	return true
}

// writeVector writes what is lined up. While the peer takes bytes, it may take
// its time.
func (c *socketConn) writeVector() error {
	for {
		c.mu.Lock()
		closing := c.gate.Err() != nil
		if !closing { // else Close's deadline holds
			_ = c.sock.SetWriteDeadline(time.Now().Add(c.stall)) // fails when the write will
		}
		c.mu.Unlock()
		n, err := c.writeOn()
		if err == nil || closing || n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// Close implements Conn. Frames that were sent before are still written if the
// peer takes them at once: Close waits up to 100 ms for that.
func (c *socketConn) Close() error {
	c.closed.Store(true)
	c.mu.Lock()
	if c.gate.Err() == nil {
		c.gate.Fail(ErrClosed)
		_ = c.sock.SetWriteDeadline(time.Now().Add(closeGrace)) // fails when the write will
	}
	if c.private != nil {
		c.private.end(ErrClosed)
	}
	for c.busy {
		c.free.Wait()
	}
	c.mu.Unlock()
	return c.closeSocket()
}

func (c *socketConn) closeSocket() error {
	if c.private != nil {
		c.private.release()
	}
	if err := c.sock.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return broken(c.peer, err)
	}
	return nil
}

// breakWith breaks the connection, unless it is broken, and returns why it is.
func (c *socketConn) breakWith(why error) error {
	c.mu.Lock()
	c.gate.Fail(broken(c.peer, why))
	err := c.gate.Err()
	c.mu.Unlock()
	if err != ErrClosed { // else Close closes the socket when all is written
		_ = c.closeSocket() // the connection is lost either way; why is the news
	}
	return err
}

// stopWriting breaks the connection after a failed write, and ends the writer. A
// peer that refused to go on may have said why before it closed: that can still
// be received.
func (c *socketConn) stopWriting(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.breakWith(err)
	}
	c.mu.Lock()
	if c.gate.Err() == nil {
		_ = c.sock.SetReadDeadline(time.Now().Add(closeGrace)) // fails when the read will
	}
	c.gate.Fail(broken(c.peer, err)) // nothing is queued any more
	queue := c.queue
	c.queue = nil
	c.mu.Unlock()
	released(c.out.drop())
	released(queue)
	c.mu.Lock()
	c.gate.Forget()
	c.busy = false
	c.free.Broadcast()
	c.mu.Unlock()
}

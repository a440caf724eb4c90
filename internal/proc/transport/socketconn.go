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

// directBytes is the maximum part of a batch that its sender writes itself. Writing more would keep the sender from its
// own work while the writer's processor idles.
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
// One goroutine at a time has the turn to write. A sender that finds the connection idle takes the turn and writes
// without blocking, because waking another goroutine would cost more than the write. Data that the socket does not
// accept immediately stays where it is, and is left to the writer, a goroutine that lives while there is data to write.
// While the turn is taken, senders append their frames to queue.
//
// Invariant: while the turn is free, the queue is empty.
type socketConn struct {
	sock   socket
	raw    syscall.RawConn // for non-blocking calls
	peer   string
	stall  time.Duration
	closed atomic.Bool

	mu    sync.Mutex // guards gate, busy, queue, free
	gate  sendGate   // limits the bytes queued or being written; its error says why the connection broke
	busy  bool       // the turn is taken
	queue []wire.Frame
	free  sync.Cond // signals that the turn is free

	out    outgoing              // belongs to the goroutine that has the turn
	writer func()                // c.write; stored because each method value allocates
	try    func(fd uintptr)      // c.writev
	step   func(fd uintptr) bool // c.writeStep

	in      incoming // owned by the receiver
	recvErr error    // owned by the receiver: a broken connection stays broken

	tls *tlsState // nil if the connection is not encrypted
}

// conn starts a connection on an established socket.
func (t TCP) conn(sock socket, peer string) (*socketConn, error) {
	raw, err := sock.SyscallConn()
	if err != nil {
		return nil, errors.Join(brokenError(peer, err), sock.Close())
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
		releaseAll(frames)
		return err
	}
	if n == 0 { // an empty write would still be a system call
		return nil
	}
	c.mu.Lock()
	if err := c.gate.Enter(n, wait); err != nil {
		c.mu.Unlock()
		releaseAll(frames)
		return err
	}
	if c.busy {
		copyLent(frames)
		c.queue = append(c.queue, frames...)
		c.mu.Unlock()
		return nil
	}
	c.busy = true
	c.mu.Unlock()
	c.sendNow(frames)
	return nil
}

// sendNow writes as much of an admitted batch as the socket accepts without blocking, and leaves the rest to the
// writer. An error is left for the writer to find again.
func (c *socketConn) sendNow(frames []wire.Frame) {
	done := 0
	for len(frames) > 0 && done < directBytes {
		k := c.prepare(frames)
		if !c.writeNow() {
			c.out.copyLent(frames[:k])
			break
		}
		done += c.out.finish()
		releaseAll(frames[:k])
		frames = frames[k:]
	}
	copyLent(frames)
	c.out.frames = append(c.out.frames, frames...)
	if c.finishWrite(done) {
		go c.writer()
	}
}

// tryWrite writes the prepared data without blocking and reports whether all was written.
func (c *socketConn) tryWrite() bool {
	_ = c.raw.Control(c.try) // fails on a closed socket, as the writer will
	return len(c.out.vector) == 0
}

// write is the writer goroutine.
func (c *socketConn) write() {
	for more := true; more; {
		if c.out.preparedFrames == 0 {
			c.prepare(c.out.remaining())
		}
		if err := c.writeAll(); err != nil {
			c.stopWriting(err)
			return
		}
		more = c.finishWrite(c.out.finishFrames())
	}
}

// finishWrite records that n bytes are written. It reports whether there is more to write; if not, it ends the turn.
func (c *socketConn) finishWrite(n int) (more bool) {
	traffic.out.Add(int64(n))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gate.Leave(n)
	if len(c.out.remaining()) == 0 {
		c.queue = c.out.refill(c.queue)
	}
	if len(c.out.remaining()) == 0 {
		c.busy = false
		c.free.Broadcast()
		return false
	}
	return true
}

// writeVector writes the prepared data. It fails only if the peer accepts no bytes at all for the stall timeout.
func (c *socketConn) writeVector() error {
	for {
		c.mu.Lock()
		closing := c.gate.Err() != nil
		if !closing { // otherwise Close's deadline applies
			_ = c.sock.SetWriteDeadline(time.Now().Add(c.stall)) // if it fails, the write fails too
		}
		c.mu.Unlock()
		n, err := c.writeOn()
		if err == nil || closing || n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// Close implements Conn. Frames sent before are still written if the peer accepts them promptly: Close waits up to 100
// ms.
func (c *socketConn) Close() error {
	c.closed.Store(true)
	c.mu.Lock()
	if c.gate.Err() == nil {
		c.gate.Fail(ErrClosed)
		_ = c.sock.SetWriteDeadline(time.Now().Add(closeGrace)) // if it fails, the write fails too
	}
	if c.tls != nil {
		c.tls.end(ErrClosed)
	}
	for c.busy {
		c.free.Wait()
	}
	c.mu.Unlock()
	return c.closeSocket()
}

func (c *socketConn) closeSocket() error {
	if c.tls != nil {
		c.tls.release()
	}
	if err := c.sock.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return brokenError(c.peer, err)
	}
	return nil
}

// breakWith breaks the connection unless it is already broken, and returns the reason.
func (c *socketConn) breakWith(why error) error {
	c.mu.Lock()
	c.gate.Fail(brokenError(c.peer, why))
	err := c.gate.Err()
	c.mu.Unlock()
	if err != ErrClosed { // otherwise Close closes the socket when all is written
		_ = c.closeSocket() // the connection is lost anyway; why is the relevant error
	}
	return err
}

// stopWriting breaks the connection after a failed write and ends the writer. The peer may have sent the reason before
// it closed the connection, and that can still be received.
func (c *socketConn) stopWriting(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.breakWith(err)
	}
	c.mu.Lock()
	if c.gate.Err() == nil {
		_ = c.sock.SetReadDeadline(time.Now().Add(closeGrace)) // if it fails, the read fails too
	}
	c.gate.Fail(brokenError(c.peer, err)) // no frames are queued after this
	queue := c.queue
	c.queue = nil
	c.mu.Unlock()
	releaseAll(c.out.drop())
	releaseAll(queue)
	c.mu.Lock()
	c.gate.ReleaseBudget()
	c.busy = false
	c.free.Broadcast()
	c.mu.Unlock()
}

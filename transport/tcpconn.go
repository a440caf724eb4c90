package transport

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/perdure/perdure/wire"
)

const (
	// readBuffer is the size of a connection's read buffer: what is larger and
	// not yet buffered is read straight into the frame's payload.
	readBuffer = 64 << 10
	// chunkBytes is how much one writev takes at least, while so much is queued.
	// More gains nothing, and the checksum's pass over the bytes leaves about so
	// much in the processor's cache for the kernel's copy.
	chunkBytes = 1 << 20
	// inlineBytes is the largest payload that is copied behind its header: below
	// it, a copy costs less than an entry of a writev.
	inlineBytes = 256
	// directBytes is the largest batch that a sender writes itself.
	directBytes = 64 << 10
	// keptFrames is how many frames' room a queue keeps after a burst.
	keptFrames = 4096
)

// tcpConn is a Conn over a TCP socket. A small batch is written by its sender if
// nothing is before it. Otherwise senders append frames to queue; the writer
// goroutine swaps the queue for an empty one and writes it. The goroutine ends
// when the connection breaks.
type tcpConn struct {
	sock   *net.TCPConn
	peer   string
	stall  time.Duration
	closed atomic.Bool

	mu    sync.Mutex // guards the next three
	gate  gate       // the bytes that are queued or being written; its err says why the connection broke
	more  sync.Cond  // something is queued, or the connection broke
	queue []wire.Frame
	tail  []byte // the unwritten rest of what was written directly; goes before queue
	busy  bool   // the writer has frames in hand
	small []byte // what is being written directly
	try   func(fd uintptr) bool
	tried int // bytes that try has written

	raw     syscall.RawConn // for writing directly; nil: not possible
	written chan struct{}   // closed when the writer has ended
	writing []wire.Frame    // the writer's: being written
	slab    []byte          // the writer's: headers and small payloads of one chunk
	pieces  [][]byte        // the writer's: the chunk's bytes in order
	vector  net.Buffers     // the writer's: pieces not yet written; a field because WriteTo lets it escape

	in      *bufio.Reader          // the receiver's
	header  [wire.HeaderBytes]byte // the receiver's
	recvErr error                  // the receiver's: broken stays broken
}

func newTCPConn(sock *net.TCPConn, t TCP) *tcpConn {
	c := &tcpConn{
		sock:    sock,
		peer:    sock.RemoteAddr().String(),
		stall:   t.StallTimeout,
		written: make(chan struct{}),
		in:      bufio.NewReaderSize(sock, readBuffer),
	}
	if c.stall <= 0 {
		c.stall = defaultStallTimeout
	}
	c.gate.init(&c.mu, t.MaxQueued)
	c.more.L = &c.mu
	c.raw, _ = sock.SyscallConn() // without it, the writer does everything
	go c.write()
	return c
}

// Peer implements Conn.
func (c *tcpConn) Peer() string { return c.peer }

// Send implements Conn.
func (c *tcpConn) Send(frames ...wire.Frame) error { return c.send(frames, true) }

// TrySend implements Conn.
func (c *tcpConn) TrySend(frames ...wire.Frame) error { return c.send(frames, false) }

func (c *tcpConn) send(frames []wire.Frame, wait bool) error {
	n, err := batchBytes(frames)
	if err != nil || n == 0 { // an empty write is a system call too
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n <= directBytes && c.idle() {
		return c.sendNow(frames)
	}
	if err := c.gate.enter(n, wait); err != nil {
		return err
	}
	if len(c.queue) == 0 {
		c.more.Signal()
	}
	c.queue = append(c.queue, frames...)
	return nil
}

// idle reports whether nothing is queued, waiting or being written; c.mu is held.
func (c *tcpConn) idle() bool {
	return !c.busy && len(c.queue) == 0 && c.gate.err == nil && c.gate.free()
}

// sendNow writes a small batch from the sender's goroutine: waking another one
// costs more than writing. What the socket does not take at once is left to the
// writer. c.mu is held.
func (c *tcpConn) sendNow(frames []wire.Frame) error {
	c.small = c.small[:0]
	for i := range frames {
		c.small = wire.Append(c.small, &frames[i])
	}
	n := c.writeNow()
	if n == len(c.small) {
		return nil
	}
	c.tail = append(c.tail, c.small[n:]...)
	c.gate.inside += len(c.tail)
	c.more.Signal()
	return nil
}

// Recv implements Conn.
func (c *tcpConn) Recv(f *wire.Frame) error {
	if c.closed.Load() {
		return ErrClosed
	}
	if c.recvErr != nil {
		return c.recvErr
	}
	if err := c.read(f); err != nil {
		c.recvErr = c.breakWith(err)
		return c.recvErr
	}
	return nil
}

// Buffered implements Conn.
func (c *tcpConn) Buffered() bool { return c.in.Buffered() > 0 }

func (c *tcpConn) read(f *wire.Frame) error {
	if _, err := io.ReadFull(c.in, c.header[:]); err != nil {
		return err
	}
	n, err := wire.ParseHeader(c.header[:], f)
	if err != nil {
		return err
	}
	if cap(f.Payload) < n {
		f.Payload = make([]byte, n)
	}
	f.Payload = f.Payload[:n]
	if _, err := io.ReadFull(c.in, f.Payload); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	return wire.Verify(c.header[:], f.Payload, nil)
}

// Close implements Conn. Frames that were sent before are still written if the
// peer takes them at once: Close waits up to 100 ms for that.
func (c *tcpConn) Close() error {
	c.closed.Store(true)
	c.mu.Lock()
	if c.gate.err == nil {
		c.fail(ErrClosed)
		_ = c.sock.SetWriteDeadline(time.Now().Add(closeGrace)) // fails when the write will
	}
	c.mu.Unlock()
	<-c.written
	return c.closeSocket()
}

func (c *tcpConn) closeSocket() error {
	if err := c.sock.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return broken(c.peer, err)
	}
	return nil
}

// fail makes Sends fail and ends the writer; c.mu is held. After Close the
// writer first writes what is queued.
func (c *tcpConn) fail(err error) {
	c.gate.fail(err)
	c.more.Signal()
}

// breakWith breaks the connection, unless it is broken, and returns why it is.
func (c *tcpConn) breakWith(why error) error {
	c.mu.Lock()
	c.fail(broken(c.peer, why))
	err := c.gate.err
	c.mu.Unlock()
	if err != ErrClosed { // else Close closes the socket when the writer is done
		_ = c.closeSocket() // the connection is lost either way; why is the news
	}
	return err
}

// write is the writer goroutine.
func (c *tcpConn) write() {
	defer close(c.written)
	for c.take() {
		if err := c.writeTail(); err != nil {
			c.stopWriting(err)
			return
		}
		for rest := c.writing; len(rest) > 0; {
			k, bytes := chunk(rest)
			if err := c.writeChunk(rest[:k]); err != nil {
				c.stopWriting(err)
				return
			}
			rest = rest[k:]
			c.mu.Lock()
			c.gate.leave(bytes)
			c.mu.Unlock()
		}
	}
}

// take waits for frames and takes all that are queued. False ends the writer.
func (c *tcpConn) take() bool {
	clear(c.writing) // lets the payloads go
	if cap(c.writing) > keptFrames {
		c.writing = nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy {
		c.busy = false
		_ = c.sock.SetWriteDeadline(time.Time{}) // else it would end direct writes; fails when they will
	}
	for len(c.queue) == 0 && len(c.tail) == 0 && c.gate.err == nil {
		c.more.Wait()
	}
	if len(c.queue)+len(c.tail) == 0 || c.gate.err != nil && c.gate.err != ErrClosed {
		return false
	}
	c.queue, c.writing = c.writing[:0], c.queue
	c.busy = true
	return true
}

// chunk returns how many of the frames go into the next writev, and their bytes.
func chunk(frames []wire.Frame) (n, bytes int) {
	for n < len(frames) && n < keptFrames && bytes < chunkBytes {
		bytes += wire.HeaderBytes + len(frames[n].Payload)
		n++
	}
	return n, bytes
}

// writeChunk writes frames. While the peer takes bytes, it may take its time.
func (c *tcpConn) writeChunk(frames []wire.Frame) error {
	c.gather(frames)
	defer func() { clear(c.pieces) }()
	return c.writePieces()
}

// writeTail writes the rest of what was written directly.
func (c *tcpConn) writeTail() error {
	c.mu.Lock()
	tail := c.tail
	c.tail = nil
	c.mu.Unlock()
	if len(tail) == 0 {
		return nil
	}
	c.pieces = append(c.pieces[:0], tail)
	err := c.writePieces()
	c.mu.Lock()
	c.gate.leave(len(tail))
	c.mu.Unlock()
	return err
}

// writePieces writes pieces.
func (c *tcpConn) writePieces() error {
	c.vector = c.pieces
	for {
		c.mu.Lock()
		closing := c.gate.err != nil
		if !closing { // else Close's deadline holds
			_ = c.sock.SetWriteDeadline(time.Now().Add(c.stall)) // fails when the write will
		}
		c.mu.Unlock()
		n, err := c.vector.WriteTo(c.sock)
		if err == nil || closing || n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// gather lines up the frames' bytes in pieces: payloads where they are, and
// between them headers and small payloads, from slab.
func (c *tcpConn) gather(frames []wire.Frame) {
	size := 0
	for i := range frames {
		size += wire.HeaderBytes
		if n := len(frames[i].Payload); n <= inlineBytes {
			size += n
		}
	}
	if cap(c.slab) < size { // now, so that it does not move below
		c.slab = make([]byte, size, 2*size)
	}
	slab, start, end := c.slab[:size], 0, 0
	c.pieces = c.pieces[:0]
	for i := range frames {
		f := &frames[i]
		wire.PutHeader(slab[end:], f)
		end += wire.HeaderBytes
		if len(f.Payload) <= inlineBytes {
			end += copy(slab[end:], f.Payload)
			continue
		}
		c.pieces = append(c.pieces, slab[start:end], f.Payload)
		start = end
	}
	if start < end {
		c.pieces = append(c.pieces, slab[start:end])
	}
}

// stopWriting breaks the connection after a failed write. A peer that refused
// to go on may have said why before it closed: that can still be received.
func (c *tcpConn) stopWriting(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.breakWith(err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gate.err == nil {
		_ = c.sock.SetReadDeadline(time.Now().Add(closeGrace)) // fails when the read will
	}
	c.fail(broken(c.peer, err))
}

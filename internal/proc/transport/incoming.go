package transport

import (
	"errors"
	"io"
	"sync"
	"syscall"

	"github.com/perdure/perdure/internal/data/wire"
)

const (
	// readBuffer is the size of a read buffer.
	readBuffer = 64 << 10
	// largePayload is the size from which a copy is avoided: the rest of the payload is read directly into its place.
	// After a large payload, another one is expected.
	largePayload = 16 << 10
	// firstBytes is how much is read first if a large payload is expected: the header and a little more, so that nearly
	// all of the payload is read in place.
	firstBytes = 4 << 10
	// sumBytes is the maximum number of bytes read before they are added to the checksum, so that they are still in the
	// processor's cache.
	sumBytes = 256 << 10
)

// readBuffers are the buffers of connections with received data that has not been returned yet. Idle connections have
// none.
var readBuffers = sync.Pool{New: func() any { return new([readBuffer]byte) }}

// incoming reads from a socket.
type incoming struct {
	sock      socket
	raw       syscall.RawConn
	onWait    func()                // called before waiting for data; may be nil
	fillFn    func(fd uintptr) bool // in.fillNow; stored because each method value allocates
	readFn    func(fd uintptr) bool // in.takeNow
	err       error                 // set by look and take
	dst       []byte                // destination of take
	nRead     int                   // number of bytes read by take
	buffer    *[readBuffer]byte     // nil if nothing is buffered
	from      int                   // buffer[from:to] holds the buffered data
	to        int
	large     bool      // a large payload is expected
	tlsReader io.Reader // a TLS connection that reads from another incoming; nil without TLS

	header [wire.HeaderBytes]byte
}

func (in *incoming) init(sock socket, raw syscall.RawConn) {
	in.sock, in.raw = sock, raw
	in.fillFn, in.readFn = in.fillNow, in.takeNow
}

// buffered returns the number of buffered bytes.
func (in *incoming) buffered() int { return in.to - in.from }

// freeBuffer returns where to read next. in.buffer must be set and empty.
func (in *incoming) freeBuffer() []byte {
	if in.large {
		return in.buffer[:firstBytes]
	}
	return in.buffer[:]
}

// read reads at least one byte.
func (in *incoming) read(dst []byte) (int, error) {
	if in.tlsReader != nil {
		return in.tlsReader.Read(dst)
	}
	if in.buffered() == 0 {
		if len(dst) >= largePayload || in.large && len(dst) >= firstBytes {
			return in.readInto(dst)
		}
		if err := in.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(dst, in.buffer[in.from:in.to])
	in.from += n
	return n, nil
}

// readHeader reads the next frame's header.
func (in *incoming) readHeader() ([]byte, error) {
	for n := 0; n < len(in.header); {
		k, err := in.read(in.header[n:])
		if err != nil {
			if n > 0 {
				err = unexpected(err)
			}
			return nil, err
		}
		n += k
	}
	return in.header[:], nil
}

// readPayload reads a part of the payload and adds it to the checksum.
func (in *incoming) readPayload(dst []byte, sum *wire.Sum) error {
	for len(dst) > 0 {
		n, err := in.read(dst[:min(len(dst), sumBytes)])
		if err != nil {
			return unexpected(err)
		}
		sum.Add(dst[:n])
		dst = dst[n:]
	}
	return nil
}

// notifyWait calls waits, because no data is available.
func (in *incoming) notifyWait() {
	if in.onWait != nil {
		in.onWait()
	}
}

// unexpected converts an end of data in the middle of a frame.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// releaseBuffer returns the buffer to the pool if it is empty.
func (in *incoming) releaseBuffer() {
	if in.buffer != nil && in.buffered() == 0 {
		readBuffers.Put(in.buffer)
		in.buffer = nil
	}
}

// Recv implements Conn.
func (c *socketConn) Recv(f *wire.Frame) error { return c.RecvInto(f, nil) }

// RecvInto implements Conn.
func (c *socketConn) RecvInto(f *wire.Frame, place func(f *wire.Frame, n int) []byte) error {
	if c.closed.Load() {
		return ErrClosed
	}
	if c.recvErr != nil {
		return c.recvErr
	}
	err := c.awaitHandshake()
	if err == nil {
		err = c.receive(f, place)
	}
	if err != nil {
		if errors.Is(err, wire.ErrVersion) { // the frame's header tells the peer this side's version
			_ = c.TrySend(wire.Control(wire.KindRefuse, wire.Refusal{Reason: err.Error()})) // best effort
		}
		c.recvErr = c.breakWith(c.explained(err))
		c.in.from = c.in.to
		c.in.releaseBuffer()
		return c.recvErr
	}
	return nil
}

// OnWait implements Conn.
func (c *socketConn) OnWait(f func()) { c.in.onWait = f }

func (c *socketConn) receive(f *wire.Frame, place func(f *wire.Frame, n int) []byte) error {
	header, err := c.in.readHeader()
	if err != nil {
		return err
	}
	n, err := wire.ParseHeader(header, f)
	if err != nil {
		return err
	}
	body, err := payloadBuffer(f, n, place)
	if err != nil {
		return err
	}
	head := n - len(body)
	if cap(f.Payload) < head {
		f.Payload = make([]byte, head)
	}
	f.Payload = f.Payload[:head]
	c.in.large = n >= largePayload
	sum := wire.NewSum(header)
	if err := c.in.readPayload(f.Payload, &sum); err != nil {
		return err
	}
	if err := c.in.readPayload(body, &sum); err != nil {
		return err
	}
	f.Body = body
	return sum.Verify()
}

package bench

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// Benchmarks compare Perdure with a raw exchange: two processes exchange the same number of bytes over plain
// connections as fast as the machine allows, without frames, checksums, rows or rules. A rawPeer is the other process;
// it runs this program as COMMAND bench-peer, which calls AnswerRaw. A rawClient belongs to one goroutine; only Stop
// may be called from another.

// File descriptors of the listening sockets that the benchmark passes to its raw peer.
const (
	rawTCPFD  = 3
	rawUnixFD = 4
	rawTLSFD  = 5
)

// rawShape describes the exchange on one connection. It is the first message on the connection.
type rawShape struct {
	Ask, Answer int64 // bytes
	Chunk       int64 // maximum bytes per Read or Write
	Buffer      int64 // bytes of the kernel's buffers; 0: the system's default
}

// maxRawBytes limits the buffers that a peer allocates.
const maxRawBytes = 1 << 30

func (s *rawShape) check() error {
	for _, n := range []int64{s.Ask, s.Answer, s.Chunk} {
		if n < 1 || n > maxRawBytes {
			return fmt.Errorf("raw exchange: invalid number of bytes %d", n)
		}
	}
	return nil
}

// setBuffers sets the kernel's buffers of a connection. The system may grant less.
func (s *rawShape) setBuffers(c net.Conn) error {
	if t, is := c.(*tls.Conn); is {
		c = t.NetConn()
	}
	b, ok := c.(interface {
		SetReadBuffer(bytes int) error
		SetWriteBuffer(bytes int) error
	})
	if !ok || s.Buffer == 0 {
		return nil
	}
	return errors.Join(b.SetReadBuffer(int(s.Buffer)), b.SetWriteBuffer(int(s.Buffer)))
}

// read fills b.
func (s *rawShape) read(c net.Conn, b []byte) error {
	for len(b) > 0 {
		n, err := c.Read(b[:min(len(b), int(s.Chunk))])
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// write writes all of b.
func (s *rawShape) write(c net.Conn, b []byte) error {
	for len(b) > 0 {
		n, err := c.Write(b[:min(len(b), int(s.Chunk))])
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// AnswerRaw serves raw exchanges on the inherited sockets until ctx ends.
func AnswerRaw(ctx context.Context) error {
	config, err := serverTLS()
	if err != nil {
		return err
	}
	for _, fd := range []uintptr{rawTCPFD, rawUnixFD, rawTLSFD} {
		l, err := net.FileListener(os.NewFile(fd, "raw"))
		if err != nil {
			return fmt.Errorf("inherited socket: %w", err)
		}
		if fd == rawTLSFD {
			l = tls.NewListener(l, config)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return // the process ends
				}
				go answerRaw(c)
			}
		}()
	}
	<-ctx.Done()
	return nil
}

// answerRaw serves one connection until it breaks.
func answerRaw(c net.Conn) {
	defer c.Close()
	var s rawShape
	if binary.Read(c, binary.LittleEndian, &s) != nil || s.check() != nil || s.setBuffers(c) != nil {
		return
	}
	buf := make([]byte, max(s.Ask, s.Answer))
	for s.read(c, buf[:s.Ask]) == nil && s.write(c, buf[:s.Answer]) == nil {
	}
}

// rawClient is the benchmark's side of a raw exchange over one or more connections.
type rawClient struct {
	conns []*rawConn
	fails chan error
	done  sync.WaitGroup
}

// rawConn is the part of an exchange on one connection.
type rawConn struct {
	rawShape
	conn  net.Conn
	buf   []byte
	start chan struct{}
}

// dialRaw opens connections and splits the exchange evenly over them. private selects TLS.
func dialRaw(ctx context.Context, addr net.Addr, private bool, conns int, whole rawShape) (*rawClient, error) {
	r := &rawClient{fails: make(chan error, conns)}
	var d net.Dialer
	for i := range int64(conns) {
		n := int64(conns)
		s := whole
		s.Ask, s.Answer = max(1, whole.Ask*(i+1)/n-whole.Ask*i/n), max(1, whole.Answer*(i+1)/n-whole.Answer*i/n)
		c, err := d.DialContext(ctx, addr.Network(), addr.String())
		if err != nil {
			return nil, errors.Join(err, r.Close())
		}
		if private {
			c = tls.Client(c, clientTLS())
		}
		p := &rawConn{rawShape: s, conn: c, buf: make([]byte, max(s.Ask, s.Answer)), start: make(chan struct{})}
		r.conns = append(r.conns, p)
		if err := errors.Join(s.setBuffers(c), binary.Write(c, binary.LittleEndian, &s)); err != nil {
			return nil, errors.Join(err, r.Close())
		}
		if i > 0 {
			r.done.Go(func() {
				for range p.start {
					r.fails <- p.exchange()
				}
			})
		}
	}
	return r, nil
}

func (p *rawConn) exchange() error {
	if err := p.write(p.conn, p.buf[:p.Ask]); err != nil {
		return err
	}
	return p.read(p.conn, p.buf[:p.Answer])
}

// Exchange performs one exchange on all connections concurrently.
func (r *rawClient) Exchange() (err error) {
	for _, p := range r.conns[1:] {
		p.start <- struct{}{}
	}
	err = r.conns[0].exchange()
	for range r.conns[1:] {
		err = errors.Join(err, <-r.fails)
	}
	return err
}

// Fill writes to the buffer that is sent first, so that its memory is allocated.
func (r *rawClient) Fill() {
	for i := range r.conns[0].buf {
		r.conns[0].buf[i] = byte(i)
	}
}

// Stop makes an exchange in progress fail.
func (r *rawClient) Stop() {
	for _, p := range r.conns {
		_ = p.conn.SetDeadline(time.Unix(1, 0)) // a closed connection fails anyway
	}
}

func (r *rawClient) Close() (err error) {
	for _, p := range r.conns {
		close(p.start)
		err = errors.Join(err, p.conn.Close())
	}
	r.done.Wait()
	return err
}

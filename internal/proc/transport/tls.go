package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/keys"
)

const (
	// sealedInline replaces inlineBytes on a private connection. Adjacent pieces are encrypted together, since a TLS
	// record costs more than copying a few KiB.
	sealedInline = 8 << 10
	// maxUnsolicited is the maximum number of bytes that TLS may send by itself, in answer to a peer's key updates.
	maxUnsolicited = 64 << 10
	// maxHandshake is the time limit of a caller's handshake.
	maxHandshake = 10 * time.Second
	// sealBytes is how much is encrypted before it is written, small enough to stay in the processor's cache.
	sealBytes = 256 << 10
	// maxSealed is how much memory for encrypted data a connection keeps when all is written.
	maxSealed = sealBytes + sealBytes/8
)

// tlsState is TLS on a socketConn. Data is encrypted in memory and then written like any other data: by its sender as
// far as the socket accepts it without blocking, and by the writer otherwise. So TLS itself waits for the socket only
// during the handshake.
type tlsState struct {
	conn        *tls.Conn
	ring        *keys.Ring
	accepted    bool          // the peer has dialled this process
	done        chan struct{} // closed when the handshake has ended
	good        atomic.Bool   // the handshake has succeeded
	encryptedIn incoming      // encrypted input; owned by the receiving goroutine after the handshake

	mu      sync.Mutex // guards the fields below
	ended   bool       // the handshake has ended, or the connection before it
	err     error      // why the handshake failed
	peer    keys.Identity
	tracked *keys.TrackedConn
	turn    bool   // a goroutine is encrypting
	sealed  []byte // encrypted data that is not written yet
	spare   []byte // memory for the next data to encrypt
}

// enableTLS makes a connection private. The handshake must follow.
func (c *socketConn) enableTLS(ring *keys.Ring, called bool) {
	p := &tlsState{ring: ring, accepted: called, done: make(chan struct{})}
	p.encryptedIn.init(c.sock, c.raw)
	below := &tlsSocket{c.sock, p}
	if called {
		p.conn = tls.Server(below, ring.Server())
	} else {
		p.conn = tls.Client(below, ring.Client(keys.Coordinator, keys.Server))
	}
	c.tls, c.in.tlsReader, c.out.inline = p, p.conn, sealedInline
}

// PeerIdentity implements Conn.
func (c *socketConn) PeerIdentity() keys.Identity {
	if c.tls == nil {
		return keys.Identity{}
	}
	c.tls.mu.Lock()
	defer c.tls.mu.Unlock()
	return c.tls.peer
}

// awaitHandshake waits until the handshake has ended.
func (c *socketConn) awaitHandshake() error {
	p := c.tls
	if p == nil {
		return nil
	}
	<-p.done
	if p.good.Load() {
		p.encryptedIn.onWait = c.in.onWait
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// handshake performs the handshake. It must be called once.
func (c *socketConn) handshake(ctx context.Context) error {
	p := c.tls
	err := p.conn.HandshakeContext(ctx)
	if err == nil {
		err = p.recordPeer(func(why error) { go c.breakWith(why) })
	}
	if err != nil && p.accepted {
		c.refusePlaintext(err)
		c.drainBeforeClose()
	}
	p.end(err)
	return err
}

// maxShaking is the maximum number of concurrent handshakes.
const maxShaking = 256

// handshakes tracks connections in their handshake. If there are too many, the oldest is closed, so that silent callers
// keep no other process out.
type handshakes struct {
	mu  sync.Mutex // guards all
	all []*socketConn
}

// start starts the handshake of an accepted connection.
func (s *handshakes) start(c *socketConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all = append(s.all, c); len(s.all) > maxShaking {
		go s.all[0].breakWith(errTooManyHandshakes)
		s.all = slices.Delete(s.all, 0, 1)
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), maxHandshake)
		defer cancel()
		_ = c.handshake(ctx) // the user of the connection receives the error
		s.mu.Lock()
		defer s.mu.Unlock()
		if at := slices.Index(s.all, c); at >= 0 {
			s.all = slices.Delete(s.all, at, at+1)
		}
	}()
}

// errTooManyHandshakes closes the connection of a slow caller.
var errTooManyHandshakes = errors.New("too many concurrent handshakes")

// PeerRevokedError ends a connection whose peer has a revoked certificate.
type PeerRevokedError struct{ Holder keys.Identity }

// Error implements error.
func (e *PeerRevokedError) Error() string {
	return fmt.Sprintf("the peer's certificate (%s) is revoked", e.Holder)
}

// recordPeer records the peer's identity. broken must end the connection without blocking.
func (p *tlsState) recordPeer(broken func(why error)) error {
	cert := p.conn.ConnectionState().PeerCertificates[0]
	who, err := keys.IdentityOf(cert)
	if err != nil {
		return err
	}
	revoked := &PeerRevokedError{who}
	hold, good := p.ring.Track(cert, func() { broken(revoked) })
	if !good {
		return revoked
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended { // closed during the handshake
		hold.Release()
		return p.err
	}
	p.peer, p.tracked = who, hold
	return nil
}

// refusePlaintext sends a refusal to a caller that started with a frame instead of a TLS handshake.
func (c *socketConn) refusePlaintext(err error) {
	var record tls.RecordHeaderError
	if !errors.As(err, &record) || !wire.HasMagic(record.RecordHeader[:]) {
		return
	}
	f := wire.Control(wire.KindRefuse, wire.Refusal{
		Reason: "the job requires keys, but the caller presents none; specify them with --keys or PERDURE_KEYS",
	})
	_, _ = c.sock.Write(wire.Append(nil, &f)) // the caller may have gone
}

// drainBeforeClose lets the peer read why its certificate was rejected before the socket is closed. If unread data
// remained, the system would reset the connection and discard the alert in flight.
func (c *socketConn) drainBeforeClose() {
	_ = c.sock.SetReadDeadline(time.Now().Add(closeGrace)) // if it fails, the read fails too
	if tcp, ok := c.sock.(*net.TCPConn); ok {
		_ = tcp.CloseWrite() // best effort
	}
	_, _ = io.CopyN(io.Discard, c.sock, maxUnsolicited)
}

// end records the result of the handshake if it has not ended yet.
func (p *tlsState) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.ended, p.err = true, err
		p.good.Store(err == nil)
		close(p.done)
	}
}

// release releases the resources of the connection.
func (p *tlsState) release() {
	p.end(ErrClosed)
	p.mu.Lock()
	hold := p.tracked
	p.tracked = nil
	p.mu.Unlock()
	if hold != nil {
		hold.Release()
	}
}

// prepare is like outgoing.prepare. On a private connection, the prepared data is not encrypted yet.
func (c *socketConn) prepare(frames []wire.Frame) (n int) {
	n = c.out.prepare(frames)
	if c.tls != nil {
		c.out.plain, c.out.vector = c.out.vector, nil
	}
	return n
}

// writeNow writes the prepared data without blocking and reports whether all was written.
func (c *socketConn) writeNow() bool {
	for c.sealNow() && c.tryWrite() {
		if len(c.out.plain) == 0 {
			return true
		}
	}
	return false
}

// writeAll writes the prepared data.
func (c *socketConn) writeAll() error {
	for {
		err := c.seal()
		if err == nil {
			err = c.writeVector()
		}
		if err != nil || len(c.out.plain) == 0 {
			return err
		}
	}
}

// sealNow is like seal but does not block. It returns false if the data is left to the writer.
func (c *socketConn) sealNow() bool {
	if c.tls == nil {
		return true
	}
	select {
	case <-c.tls.done:
		return c.seal() == nil // the writer gets the error again
	default:
		return false
	}
}

// seal encrypts the next prepared data once the handshake has ended and earlier encrypted data is written. It belongs
// to the goroutine that has the turn to write.
func (c *socketConn) seal() error {
	p, o := c.tls, &c.out
	if p == nil || len(o.vector) > 0 || len(o.plain) == 0 {
		return nil
	}
	<-p.done
	p.mu.Lock()
	err := p.err
	p.turn = true
	p.mu.Unlock()
	for left := sealBytes; err == nil && left > 0 && len(o.plain) > 0; {
		piece := o.plain[0]
		if len(piece) > left {
			piece = piece[:left]
		}
		if _, err = p.conn.Write(piece); err == nil {
			left -= len(piece)
			if o.plain[0] = o.plain[0][len(piece):]; len(o.plain[0]) == 0 {
				o.plain = o.plain[1:]
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn = false
	if err != nil {
		return err
	}
	o.sealed[0] = p.sealed
	o.vector = o.sealed[:]
	if p.sealed, p.spare = p.spare[:0], p.sealed; cap(p.spare) > maxSealed {
		p.spare = nil
	}
	return nil
}

// explained explains an error of a private connection to the user. perdure.ErrRefused marks permanent errors.
func (c *socketConn) explained(err error) error {
	p := c.tls
	if p == nil || p.accepted {
		return err
	}
	var alert *net.OpError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &alert) && alert.Op == "remote error":
		if until := p.ring.Expiry(); time.Now().After(until) {
			return fmt.Errorf("our own certificate, in %s, expired at %s: renew it with perdure keys renew",
				p.ring.Dir(),
				until.UTC().Format(time.RFC3339))
		}
		return fmt.Errorf("%w: the peer rejects %w", perdure.ErrRefused, p.ring.ExplainRejection(err))
	case !p.good.Load() && errors.Is(err, io.EOF): // the peer may also be dying
		return fmt.Errorf("the peer closed the connection during the handshake; check whether its job uses keys (%w)",
			err)
	case errors.As(err, &record):
		return fmt.Errorf("%w: the peer does not speak TLS: its job has no keys", perdure.ErrRefused)
	case keys.IsPermanent(err):
		return fmt.Errorf("%w: %w", perdure.ErrRefused, err)
	}
	return err
}

// tlsSocket is the socket as used by TLS.
type tlsSocket struct {
	net.Conn
	p *tlsState
}

// Read implements net.Conn. It returns at least one byte.
func (b *tlsSocket) Read(dst []byte) (int, error) {
	n, err := b.p.encryptedIn.read(dst)
	b.p.encryptedIn.releaseBuffer()
	return n, err
}

// Write implements net.Conn. After the handshake, the data stays in memory.
func (b *tlsSocket) Write(sealed []byte) (int, error) {
	p := b.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		n, err := b.Conn.Write(sealed) // a few KiB, which the socket accepts without blocking
		traffic.out.Add(int64(n))
		return n, err
	}
	if !p.turn && len(p.sealed)+len(sealed) > maxUnsolicited {
		return 0, errors.New("the peer requests new keys too often")
	}
	p.sealed = append(p.sealed, sealed...)
	return len(sealed), nil
}

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
	// sealedInline is inlineBytes of a private connection: what lies together is sealed together, and each record of
	// TLS costs more than the copy of a few KiB.
	sealedInline = 8 << 10
	// mostUnasked bounds what TLS has to send by itself, as answers to a peer that asks for new keys, in bytes.
	mostUnasked = 64 << 10
	// mostHandshake is how long a caller may take for the handshake.
	mostHandshake = 10 * time.Second
	// sealBytes is how much is sealed before it is written: few enough that the processor's cache still holds it.
	sealBytes = 256 << 10
	// mostSealed is how much memory for what is sealed a connection keeps when all is written.
	mostSealed = sealBytes + sealBytes/8
)

// private is TLS on a socketConn. What is to be sent is sealed in memory, and then written as any bytes are: by its
// sender as far as the socket takes it at once, and by the writer where it does not. So TLS waits for the socket in the
// handshake only.
type private struct {
	tls    *tls.Conn
	ring   *keys.Ring
	called bool          // by the peer, and not the peer by this process
	over   chan struct{} // closed when the handshake is over
	good   atomic.Bool   // and there was one
	bare   incoming      // what comes in, still sealed; of the goroutine that receives, once the handshake is over

	mu      sync.Mutex // guards what follows
	ended   bool       // the handshake has, or the connection before it
	err     error      // why there will be no handshake
	peer    keys.Identity
	hold    *keys.Hold
	turn    bool   // somebody is sealing
	sealed  []byte // not written yet
	written []byte // memory to seal into next
}

// keep makes a connection private. The handshake is still to be done.
func (c *socketConn) keep(ring *keys.Ring, called bool) {
	p := &private{ring: ring, called: called, over: make(chan struct{})}
	p.bare.init(c.sock, c.raw)
	below := &belowTLS{c.sock, p}
	if called {
		p.tls = tls.Server(below, ring.Server())
	} else {
		p.tls = tls.Client(below, ring.Client(keys.Coordinator, keys.Server))
	}
	c.private, c.in.over, c.out.inline = p, p.tls, sealedInline
}

// Who implements Conn.
func (c *socketConn) Who() keys.Identity {
	if c.private == nil {
		return keys.Identity{}
	}
	c.private.mu.Lock()
	defer c.private.mu.Unlock()
	return c.private.peer
}

// settled waits until the handshake is over.
func (c *socketConn) settled() error {
	p := c.private
	if p == nil {
		return nil
	}
	<-p.over
	if p.good.Load() {
		p.bare.waits = c.in.waits
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// shakeHands does the handshake. It is called once.
func (c *socketConn) shakeHands(ctx context.Context) error {
	p := c.private
	err := p.tls.HandshakeContext(ctx)
	if err == nil {
		err = p.settle(func() { go c.breakWith(errRevoked) })
	}
	if err != nil && p.called {
		c.tellBare(err)
		c.lastWord()
	}
	p.end(err)
	return err
}

// mostShaking is how many callers may be in their handshake at once.
const mostShaking = 256

// shaking are the callers who are in their handshake. For the newest the oldest has to go, so that those who say
// nothing keep nobody out.
type shaking struct {
	mu  sync.Mutex // guards all
	all []*socketConn
}

// begin begins the handshake of a caller.
func (s *shaking) begin(c *socketConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all = append(s.all, c); len(s.all) > mostShaking {
		go s.all[0].breakWith(errCrowd)
		s.all = slices.Delete(s.all, 0, 1)
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), mostHandshake)
		defer cancel()
		_ = c.shakeHands(ctx) // who uses the connection hears of it
		s.mu.Lock()
		defer s.mu.Unlock()
		if at := slices.Index(s.all, c); at >= 0 {
			s.all = slices.Delete(s.all, at, at+1)
		}
	}()
}

// errCrowd is why the connection of a slow caller ends.
var errCrowd = errors.New("too many others are in their handshake")

// errRevoked is why a connection ends whose peer's certificate is revoked.
var errRevoked = errors.New("the certificate of the peer is revoked")

// settle notes who the peer is. broken ends the connection, without waiting.
func (p *private) settle(broken func()) error {
	cert := p.tls.ConnectionState().PeerCertificates[0]
	who, err := keys.Of(cert)
	if err != nil {
		return err
	}
	hold, good := p.ring.Hold(cert, broken)
	if !good {
		return errRevoked
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended { // closed meanwhile
		hold.Release()
		return p.err
	}
	p.peer, p.hold = who, hold
	return nil
}

// tellBare tells a caller that has begun with a frame, and not with a handshake, what it lacks.
func (c *socketConn) tellBare(err error) {
	var record tls.RecordHeaderError
	if !errors.As(err, &record) || !wire.Begins(record.RecordHeader[:]) {
		return
	}
	f := wire.Control(wire.KindRefuse, wire.Refusal{
		Reason: "the job has keys, and the caller shows none; name them with --keys, or in PERDURE_KEYS",
	})
	_, _ = c.sock.Write(wire.Append(nil, &f)) // it may have gone
}

// lastWord lets the peer read why its certificate is not taken, before the socket is closed: with something unread the
// system would close it at once, and throw away what is on its way.
func (c *socketConn) lastWord() {
	_ = c.sock.SetReadDeadline(time.Now().Add(closeGrace)) // fails when the read will
	if tcp, ok := c.sock.(*net.TCPConn); ok {
		_ = tcp.CloseWrite() // likewise
	}
	_, _ = io.CopyN(io.Discard, c.sock, mostUnasked)
}

// end says how the handshake has ended, unless it has.
func (p *private) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.ended, p.err = true, err
		p.good.Store(err == nil)
		close(p.over)
	}
}

// release lets go of what outlives no connection.
func (p *private) release() {
	p.end(ErrClosed)
	p.mu.Lock()
	hold := p.hold
	p.hold = nil
	p.mu.Unlock()
	if hold != nil {
		hold.Release()
	}
}

// lineUp is outgoing.lineUp; on a private connection what is lined up is still to be sealed.
func (c *socketConn) lineUp(frames []wire.Frame) (n int) {
	n = c.out.lineUp(frames)
	if c.private != nil {
		c.out.plain, c.out.vector = c.out.vector, nil
	}
	return n
}

// writeNow writes what is lined up, without waiting, and reports whether that was all.
func (c *socketConn) writeNow() bool {
	for c.sealNow() && c.tryWrite() {
		if len(c.out.plain) == 0 {
			return true
		}
	}
	return false
}

// writeAll writes what is lined up.
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

// sealNow is seal for who must not wait. False: it is left to the writer.
func (c *socketConn) sealNow() bool {
	if c.private == nil {
		return true
	}
	select {
	case <-c.private.over:
		return c.seal() == nil // the writer meets the error again
	default:
		return false
	}
}

// seal seals the next of what is lined up, once the handshake is over and what was sealed before is written. It belongs
// to whoever has the turn to write.
func (c *socketConn) seal() error {
	p, o := c.private, &c.out
	if p == nil || len(o.vector) > 0 || len(o.plain) == 0 {
		return nil
	}
	<-p.over
	p.mu.Lock()
	err := p.err
	p.turn = true
	p.mu.Unlock()
	for left := sealBytes; err == nil && left > 0 && len(o.plain) > 0; {
		piece := o.plain[0]
		if len(piece) > left {
			piece = piece[:left]
		}
		if _, err = p.tls.Write(piece); err == nil {
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
	if p.sealed, p.written = p.written[:0], p.sealed; cap(p.written) > mostSealed {
		p.written = nil
	}
	return nil
}

// explained says what an error of a private connection means for who wants to know what to do. perdure.ErrRefused is
// for good.
func (c *socketConn) explained(err error) error {
	p := c.private
	if p == nil || p.called {
		return err
	}
	var alert *net.OpError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &alert) && alert.Op == "remote error":
		if until := p.ring.Until(); time.Now().After(until) {
			return fmt.Errorf("our own certificate, in %s, ran out at %s: perdure keys renew makes a new one",
				p.ring.Dir(),
				until.UTC().Format(time.RFC3339))
		}
		return fmt.Errorf("%w: the peer does not take our certificate, in %s; its log says why (%w)",
			perdure.ErrRefused,
			p.ring.Dir(), err)
	case !p.good.Load() && errors.Is(err, io.EOF): // it may also be dying
		return fmt.Errorf("the peer has ended the handshake: has its job keys, too? (%w)", err)
	case errors.As(err, &record):
		return fmt.Errorf("%w: the peer does not speak TLS: its job has no keys", perdure.ErrRefused)
	case keys.Foreign(err):
		return fmt.Errorf("%w: %w", perdure.ErrRefused, err)
	}
	return err
}

// belowTLS is the socket as TLS sees it.
type belowTLS struct {
	net.Conn
	p *private
}

// Read implements net.Conn: what there is, at least one byte.
func (b *belowTLS) Read(dst []byte) (int, error) {
	n, err := b.p.bare.read(dst)
	b.p.bare.drained()
	return n, err
}

// Write implements net.Conn. After the handshake what TLS writes stays in memory.
func (b *belowTLS) Write(sealed []byte) (int, error) {
	p := b.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		n, err := b.Conn.Write(sealed) // a few KiB, which the socket takes at once
		traffic.out.Add(int64(n))
		return n, err
	}
	if !p.turn && len(p.sealed)+len(sealed) > mostUnasked {
		return 0, errors.New("the peer asks for new keys again and again")
	}
	p.sealed = append(p.sealed, sealed...)
	return len(sealed), nil
}

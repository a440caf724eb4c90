package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/perdure/perdure/internal/proc/keys"
)

const (
	// defaultStallTimeout is how long a peer may accept no bytes at all.
	defaultStallTimeout = 30 * time.Second
	// closeGrace limits how long Close waits until the last frames (for example a refusal) are written, and how long a
	// connection whose write failed is still read for the peer's last frames.
	closeGrace = 100 * time.Millisecond
)

// localBuffer is the send buffer of a Unix socket. With the system's usual 208 KiB, or with 1 MiB, the two sides wait
// for each other more often: a block of 4 MiB took 10 % longer.
const localBuffer = 4 << 20

// keepAlive detects an idle peer whose machine is gone: 15 s of silence, then 3 unanswered probes 5 s apart.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// TCP is the network of the operating system. Addresses are "host:port". The zero value is ready to use.
//
// On Linux, processes of one user on one machine use a Unix socket instead, which costs less. A listener on HOST:PORT
// also listens on an abstract Unix socket (without a file) named after its address, and Dial tries that name first if
// the address belongs to this machine. Both sides reject peers of other users, so that another user's listener is never
// mistaken for the intended one. Like ports, abstract names belong to a network namespace, so processes of different
// containers do not meet.
type TCP struct {
	// MaxQueued limits the bytes queued on a connection; 0: DefaultMaxQueued.
	MaxQueued int
	// StallTimeout breaks a connection whose peer accepts no bytes for this time while there are bytes to write
	// (detected after one to two times this duration); 0: 30 s.
	StallTimeout time.Duration
	// Socket selects the kind of socket.
	Socket Socket
	// Keys, unless nil, make each connection private: both sides present certificates, and all data is encrypted (TLS
	// 1.3). All connections then use TCP sockets.
	Keys *keys.Ring
}

// Socket is a kind of socket that connects two processes.
type Socket int

// The kinds of sockets.
const (
	SocketAuto Socket = iota // Unix if possible, otherwise TCP
	SocketTCP                // TCP
	SocketUnix               // Unix; Dial and Listen fail if it is not possible
)

// Dial implements Network.
func (t TCP) Dial(ctx context.Context, addr string) (Conn, error) {
	if t.Socket != SocketTCP && t.Keys == nil {
		c, err := t.dialLocal(ctx, addr)
		if err == nil {
			return c, nil
		}
		if t.Socket == SocketUnix {
			return nil, err
		}
	}
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("transport: %w", err)
	}
	c, err := t.overTCP(nc, false)
	if err != nil {
		return nil, err
	}
	if t.Keys == nil {
		return c, nil
	}
	if err := c.handshake(ctx); err != nil {
		return nil, errors.Join(brokenError(addr, c.explained(err)), c.Close())
	}
	return c, nil
}

// dialLocal connects to a listener of the same user on this machine.
func (t TCP) dialLocal(ctx context.Context, addr string) (Conn, error) {
	var err error
	for _, name := range localNames(ctx, addr) {
		nc, dialErr := new(net.Dialer).DialContext(ctx, "unix", name)
		if dialErr != nil {
			if err == nil {
				err = fmt.Errorf("transport: %w", dialErr)
			}
			continue
		}
		sock := nc.(*net.UnixConn)
		if _, ok := samePeer(sock); !ok {
			err = errors.Join(fmt.Errorf("transport: %s is served by another user", name), sock.Close())
			continue
		}
		return t.overUnix(sock, addr)
	}
	if err == nil {
		err = fmt.Errorf("transport: there is no Unix socket for %s", addr)
	}
	return nil, err
}

// Listen implements Network.
func (t TCP) Listen(addr string) (Listener, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // enabled by default for listeners; no peer uses it
	nl, err := lc.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("transport: %w", err)
	}
	inner := []net.Listener{nl}
	if t.Socket != SocketTCP && t.Keys == nil {
		local, err := listenLocal(nl.Addr().(*net.TCPAddr).AddrPort())
		if err == nil {
			inner = append(inner, local)
		} else if t.Socket == SocketUnix {
			return nil, errors.Join(fmt.Errorf("transport: %w", err), nl.Close())
		}
	}
	return t.listener(inner), nil
}

// ListenFile returns a listener for a listening TCP socket inherited from the parent process. It takes ownership of f
// and closes it. The listener has no Unix socket.
func (t TCP) ListenFile(f *os.File) (Listener, error) {
	nl, err := net.FileListener(f)
	err = errors.Join(err, f.Close())
	if err != nil {
		if nl != nil {
			err = errors.Join(err, nl.Close())
		}
		return nil, fmt.Errorf("transport: inherited socket %s: %w", f.Name(), err)
	}
	if _, ok := nl.(*net.TCPListener); !ok {
		err := fmt.Errorf("transport: inherited socket %s is %s, not TCP", f.Name(), nl.Addr().Network())
		return nil, errors.Join(err, nl.Close())
	}
	return t.listener([]net.Listener{nl}), nil
}

// socketListener accepts connections on a TCP socket and on the Unix socket named after it.
type socketListener struct {
	tcp      TCP
	inner    []net.Listener // TCP first
	accepted chan accepted
	closed   chan struct{}
	once     sync.Once
	loops    sync.WaitGroup
	shaking  handshakes
}

type accepted struct {
	nc  net.Conn
	err error
}

func (t TCP) listener(inner []net.Listener) *socketListener {
	l := &socketListener{tcp: t, inner: inner, accepted: make(chan accepted), closed: make(chan struct{})}
	for _, nl := range inner {
		l.loops.Go(func() { l.accept(nl) })
	}
	return l
}

// accept forwards accepted connections until the listener is closed.
func (l *socketListener) accept(nl net.Listener) {
	for {
		nc, err := nl.Accept()
		select {
		case <-l.closed:
			if err == nil {
				_ = nc.Close() // unused
			}
			return
		case l.accepted <- accepted{nc, err}:
		}
	}
}

// Accept implements Listener.
func (l *socketListener) Accept() (Conn, error) {
	for {
		select {
		case <-l.closed:
			return nil, ErrClosed
		case a := <-l.accepted:
			if a.err != nil {
				return nil, fmt.Errorf("transport: %w", a.err)
			}
			sock, local := a.nc.(*net.UnixConn)
			if !local {
				c, err := l.tcp.overTCP(a.nc, true)
				if err != nil {
					return nil, err
				}
				if c.tls != nil { // in its own goroutine, so that a slow caller blocks no others
					l.shaking.start(c)
				}
				return c, nil
			}
			if pid, ok := samePeer(sock); ok {
				return l.tcp.overUnix(sock, fmt.Sprintf("process %d", pid))
			}
			_ = sock.Close() // a peer of another user must use TCP
		}
	}
}

// Addr implements Listener.
func (l *socketListener) Addr() string { return l.inner[0].Addr().String() }

// Close implements Listener.
func (l *socketListener) Close() (err error) {
	l.once.Do(func() {
		close(l.closed)
		for i := range l.inner { // the Unix socket first, because the next owner of the port also needs the name
			err = errors.Join(err, l.inner[len(l.inner)-1-i].Close())
		}
		l.loops.Wait()
	})
	if err != nil {
		return fmt.Errorf("transport: %w", err)
	}
	return nil
}

// overTCP starts a connection on an established TCP socket. called is true if the peer has dialled.
func (t TCP) overTCP(nc net.Conn, called bool) (*socketConn, error) {
	sock, ok := nc.(*net.TCPConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("transport: %T is not a TCP connection", nc), nc.Close())
	}
	// If the peer has already gone, these calls fail, and so will the first read.
	err := errors.Join(sock.SetNoDelay(true), sock.SetKeepAliveConfig(keepAlive))
	c, startErr := t.conn(sock, sock.RemoteAddr().String())
	if startErr != nil {
		return nil, startErr
	}
	if t.Keys != nil {
		c.enableTLS(t.Keys, called)
	}
	if err != nil {
		c.breakWith(err)
	}
	return c, nil
}

// overUnix starts a connection on an established Unix socket.
func (t TCP) overUnix(sock *net.UnixConn, peer string) (Conn, error) {
	_ = sock.SetWriteBuffer(localBuffer) // without it, the socket is only slower
	c, err := t.conn(sock, peer+" (Unix socket)")
	if err != nil {
		return nil, err
	}
	return c, nil
}

package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

const (
	// defaultStallTimeout is how long a peer may take no bytes at all.
	defaultStallTimeout = 30 * time.Second
	// closeGrace bounds how long Close waits for the last frames to be written
	// (a refusal, say), and how long a connection that can no longer be written
	// may be read (the peer's last words).
	closeGrace = 100 * time.Millisecond
)

// keepAlive finds an idle peer whose machine has gone: 15 s of silence, then 3
// unanswered probes 5 s apart.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// TCP is the network of the operating system. Addresses are "host:port". The
// zero value is ready to use.
type TCP struct {
	// MaxQueued bounds the bytes queued on a connection; 0: DefaultMaxQueued.
	MaxQueued int
	// StallTimeout breaks a connection with bytes to write whose peer took none
	// for so long (noticed after once to twice this time); 0: 30 s.
	StallTimeout time.Duration
}

// Dial implements Network.
func (t TCP) Dial(ctx context.Context, addr string) (Conn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("transport: %w", err)
	}
	return t.conn(nc)
}

// Listen implements Network.
func (t TCP) Listen(addr string) (Listener, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // on by default for listeners; no peer here uses it
	nl, err := lc.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("transport: %w", err)
	}
	return &tcpListener{nl, t}, nil
}

// ListenFile makes a listener of a listening TCP socket that was inherited from
// the parent process. It takes f over and closes it.
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
		return nil, errors.Join(fmt.Errorf("transport: inherited socket %s is %s, not TCP", f.Name(), nl.Addr().Network()), nl.Close())
	}
	return &tcpListener{nl, t}, nil
}

type tcpListener struct {
	nl  net.Listener
	tcp TCP
}

func (l *tcpListener) Accept() (Conn, error) {
	nc, err := l.nl.Accept()
	if err != nil {
		if errors.Is(err, net.ErrClosed) {
			return nil, ErrClosed
		}
		return nil, fmt.Errorf("transport: %w", err)
	}
	return l.tcp.conn(nc)
}

func (l *tcpListener) Addr() string { return l.nl.Addr().String() }

func (l *tcpListener) Close() error {
	if err := l.nl.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("transport: %w", err)
	}
	return nil
}

// conn starts a connection on an established socket.
func (t TCP) conn(nc net.Conn) (Conn, error) {
	sock, ok := nc.(*net.TCPConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("transport: %T is not a TCP connection", nc), nc.Close())
	}
	// A peer may have gone already; then these fail, and so will the first read.
	err := errors.Join(sock.SetNoDelay(true), sock.SetKeepAliveConfig(keepAlive))
	c := newTCPConn(sock, t)
	if err != nil {
		c.breakWith(err)
	}
	return c, nil
}

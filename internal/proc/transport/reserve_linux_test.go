package transport

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// ipLocalPortRange is the option of a socket that says from which ports the system
// chooses, where it may choose any.
const ipLocalPortRange = 51

// listenAny listens at any port of an address that the system chooses, of which it has
// the choice of one.
func listenAny(t *testing.T, addr *net.TCPAddr) (net.Listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		must(t, c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, ipLocalPortRange, addr.Port<<16|addr.Port)
		}))
		return err
	}}
	return lc.Listen(context.Background(), "tcp", (&net.TCPAddr{IP: addr.IP}).String())
}

// TestReserve: whoever names a reserved port may listen there, again and again, and
// whoever takes any port gets another, until it is let go.
func TestReserve(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1", "localhost"} {
		addr, hold, err := Reserve(host)
		if host == "::1" && errors.Is(err, syscall.EADDRNOTAVAIL) {
			continue // no such address on this machine
		}
		must(t, err)
		at, err := net.ResolveTCPAddr("tcp", addr)
		must(t, err)
		if at.Port == 0 {
			t.Fatalf("reserved %s", addr)
		}
		for range 2 {
			if l, err := listenAny(t, at); errors.Is(err, syscall.ENOPROTOOPT) {
				t.Skip("the system has no range of ports for one socket")
			} else if !errors.Is(err, syscall.EADDRINUSE) {
				t.Fatalf("%s is reserved, and was given away: %v, %v", addr, l, err)
			}
			l, err := TCP{Socket: SocketTCP}.Listen(addr)
			must(t, err)
			near, far := dialPair(t, TCP{Socket: SocketTCP}, l)
			must(t, near.Send(numbered(1, nil)))
			must(t, near.Close())
			must(t, far.Close())
			must(t, l.Close())
		}
		must(t, hold.Close())
	}
	_, _, err := Reserve("203.0.113.7") // of nobody
	mustBe(t, err, syscall.EADDRNOTAVAIL)

	addr, hold, err := Reserve("127.0.0.1")
	must(t, err)
	must(t, hold.Close())
	at, err := net.ResolveTCPAddr("tcp", addr)
	must(t, err)
	l, err := listenAny(t, at)
	must(t, err)
	if must(t, l.Close()); l.Addr().String() != addr {
		t.Errorf("listens at %s, not at %s", l.Addr(), addr)
	}
	if err := hold.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
}

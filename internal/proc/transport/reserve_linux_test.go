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

// ipLocalPortRange is the socket option that restricts the range of ports from which the system chooses.
const ipLocalPortRange = 51

// listenAny listens on any port of an address, with a range that contains only the port of addr.
func listenAny(t *testing.T, addr *net.TCPAddr) (net.Listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		must(t, c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, ipLocalPortRange, addr.Port<<16|addr.Port)
		}))
		return err
	}}
	return lc.Listen(context.Background(), "tcp", (&net.TCPAddr{IP: addr.IP}).String())
}

// TestReserve checks that a process can listen on a reserved port by naming it, repeatedly, and that processes which
// ask for any port get another one until the port is released.
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
	_, _, err := Reserve("203.0.113.7") // an address of no machine
	mustBe(t, err, syscall.EADDRNOTAVAIL)

	addr, hold, err := Reserve("127.0.0.1")
	must(t, err)
	must(t, hold.Close())
	at, err := net.ResolveTCPAddr("tcp", addr)
	must(t, err)
	l, err := listenAny(t, at)
	must(t, err)
	if must(t, l.Close()); l.Addr().String() != addr {
		t.Errorf("listening at %s, want %s", l.Addr(), addr)
	}
	if err := hold.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
}

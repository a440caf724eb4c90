package transport

import (
	"context"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/data/wire"
)

// exchange fails unless frames arrive in both directions.
func exchange(t *testing.T, near, far Conn) {
	t.Helper()
	var f wire.Frame
	must(t, near.Send(numbered(1, []byte("question"))))
	must(t, far.Recv(&f))
	must(t, far.Send(numbered(2, []byte("answer"))))
	must(t, near.Recv(&f))
}

func isUnix(c Conn) bool {
	_, is := c.(*socketConn).sock.(*net.UnixConn)
	if is != strings.Contains(c.Peer(), "Unix socket") {
		panic("wrong kind of socket: " + c.Peer())
	}
	return is
}

// TestSocketKinds checks which kind of socket is used.
func TestSocketKinds(t *testing.T) {
	names := map[Socket]string{SocketAuto: "auto", SocketTCP: "tcp", SocketUnix: "unix"}
	for _, c := range []struct {
		listen     string
		host       string // host to dial; "": as listened
		from, to   Socket
		unix, fail bool
	}{
		{"127.0.0.1:0", "", SocketAuto, SocketAuto, true, false},
		{"127.0.0.1:0", "localhost", SocketAuto, SocketAuto, true, false},
		{"0.0.0.0:0", "127.0.0.1", SocketAuto, SocketAuto, true, false},
		{":0", "127.0.0.1", SocketAuto, SocketAuto, true, false},
		{"127.0.0.1:0", "", SocketAuto, SocketTCP, false, false},
		{"127.0.0.1:0", "", SocketTCP, SocketAuto, false, false},
		{"127.0.0.1:0", "", SocketUnix, SocketAuto, true, false},
		{"127.0.0.1:0", "", SocketUnix, SocketTCP, false, true},
		{"127.0.0.1:0", "", SocketAuto, SocketUnix, true, false},
	} {
		t.Run(c.listen+" "+c.host+" "+names[c.from]+" to "+names[c.to], func(t *testing.T) {
			l, err := TCP{Socket: c.to}.Listen(c.listen)
			must(t, err)
			defer l.Close()
			addr := l.Addr()
			if c.host != "" {
				_, port, err := net.SplitHostPort(addr)
				must(t, err)
				addr = net.JoinHostPort(c.host, port)
			}
			near, err := TCP{Socket: c.from}.Dial(t.Context(), addr)
			if c.fail {
				if err == nil || strings.Contains(err.Error(), "\n") {
					t.Fatalf("dialling gave %v", err)
				}
				return
			}
			must(t, err)
			defer near.Close()
			far, err := l.Accept()
			must(t, err)
			defer far.Close()
			if isUnix(near) != c.unix || isUnix(far) != c.unix {
				t.Fatalf("%s is connected to %s", far.Peer(), near.Peer())
			}
			exchange(t, near, far)
		})
	}
}

// TestSocketNameTaken checks that a listener whose Unix name is taken is reached over TCP, and that a closed listener
// leaves nothing behind.
func TestSocketNameTaken(t *testing.T) {
	l, err := TCP{Socket: SocketTCP}.Listen("127.0.0.1:0")
	must(t, err)
	addr := l.Addr()
	must(t, l.Close())
	at := netip.MustParseAddrPort(addr)
	squatter, err := listenLocal(at)
	must(t, err)
	_, err = TCP{Socket: SocketUnix}.Listen(addr)
	mustBe(t, err, syscall.EADDRINUSE)
	l, err = TCP{}.Listen(addr)
	must(t, err)
	near, far := dialPair(t, TCP{Socket: SocketTCP}, l)
	exchange(t, near, far)
	must(t, l.Close())
	must(t, squatter.Close())
	for range 2 {
		l, err = TCP{Socket: SocketUnix}.Listen(addr)
		must(t, err)
		must(t, l.Close())
	}
}

// TestSocketOfAnotherUser checks that another user's Unix listener is not mistaken for the intended one, and that TCP
// is used instead. The test needs root to act as another user.
func TestSocketOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can act as another user")
	}
	own, err := TCP{Socket: SocketTCP}.Listen("127.0.0.1:0")
	must(t, err)
	defer own.Close()
	foreign, err := asUser(12345, func() (net.Listener, error) {
		return listenLocal(netip.MustParseAddrPort(own.Addr()))
	})
	must(t, err)
	defer foreign.Close()
	near, far := dialPair(t, TCP{}, own)
	if isUnix(near) {
		t.Fatal("connected to another user's listener")
	}
	exchange(t, near, far)
	if _, err := (TCP{Socket: SocketUnix}).Dial(t.Context(), own.Addr()); err == nil ||
		!strings.Contains(err.Error(), "another user") {
		t.Fatalf("dialling another user's socket gave %v", err)
	}

	// Another user's connection is rejected and does not block others.
	both, err := TCP{}.Listen("127.0.0.1:0")
	must(t, err)
	defer both.Close()
	name := localNames(context.Background(), both.Addr())[0]
	stranger, err := asUser(12345, func() (net.Conn, error) { return net.Dial("unix", name) })
	must(t, err)
	defer stranger.Close()
	near, far = dialPair(t, TCP{}, both)
	exchange(t, near, far)
	if n, err := stranger.Read(make([]byte, 1)); err == nil {
		t.Fatalf("another user received %d bytes", n)
	}
}

// asUser runs do as another user, in a thread whose effective user alone is changed.
func asUser[T any](uid uintptr, do func() (T, error)) (result T, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine
		const same = ^uintptr(0)
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, same, uid, same); errno != 0 {
			err = errno
			return
		}
		result, err = do()
	}()
	<-done
	return result, err
}

package testcluster_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testcluster"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, n int) *testcluster.LAN {
	t.Helper()
	l, err := testcluster.NewLAN(n, 1)
	if errors.Is(err, testcluster.ErrNoLAN) {
		t.Skip(err)
	}
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	return l
}

// echo sends back everything that it receives on a host.
func echo(t *testing.T, h *testcluster.LANHost) string {
	t.Helper()
	l, err := h.Listen(7000)
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
		}
	}()
	return l.Addr().String()
}

// ping sends a message and returns the time until the answer. It waits at most patience.
func ping(c net.Conn, patience time.Duration) (time.Duration, error) {
	began := time.Now()
	_ = c.SetDeadline(began.Add(patience))
	if _, err := c.Write([]byte("ping")); err != nil {
		return 0, err
	}
	_, err := io.ReadFull(c, make([]byte, 4))
	return time.Since(began), err
}

// TestSwitch checks that hosts reach each other only through the switch, and that it delays, loses and blocks frames.
func TestSwitch(t *testing.T) {
	l := start(t, 3)
	addr := echo(t, l.Host(0))
	if c, err := net.DialTimeout("tcp", addr, 50*time.Millisecond); err == nil { // another host at that address
		_, err = ping(c, 50*time.Millisecond)
		if c.Close(); err == nil {
			t.Fatal("a host can be reached from outside")
		}
	}
	c, err := l.Host(1).Dial(addr, 10*time.Second)
	must(t, err)
	defer c.Close()
	_, err = ping(c, 10*time.Second)
	must(t, err)
	l.SetAll(testcluster.LANLink{Delay: 30 * time.Millisecond})
	if took, err := ping(c, 10*time.Second); err != nil || took < 60*time.Millisecond {
		t.Errorf("with 30 ms each way, the round trip took %v: %v", took, err)
	}
	l.SetAll(testcluster.LANLink{Delay: time.Millisecond, Jitter: time.Millisecond, LossRate: 0.1, ReorderRate: 0.2})
	for range 20 {
		_, err := ping(c, 30*time.Second)
		must(t, err)
	}
	l.SetAll(testcluster.LANLink{})
	l.Cut(0, 1) // answers get lost
	if _, err := ping(c, 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("received an answer although the direction is cut: %v", err)
	}
	other, err := l.Host(2).Dial(addr, 10*time.Second)
	must(t, err)
	defer other.Close()
	_, err = ping(other, 10*time.Second)
	must(t, err)
	l.Partition([]int{0}, []int{1, 2})
	if _, err := ping(other, 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("received an answer through a partition: %v", err)
	}
	l.Heal()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	_, err = io.ReadFull(c, make([]byte, 4)) // in transit when the direction was cut
	must(t, err)
}

// TestProcess checks that a process on a host has only that host's addresses.
func TestProcess(t *testing.T) {
	l := start(t, 2)
	c := exec.Command("/bin/cat", "/proc/self/net/fib_trie")
	out, err := c.StdoutPipe()
	must(t, err)
	must(t, l.Host(1).Start(c))
	text, err := io.ReadAll(out)
	must(t, err)
	must(t, c.Wait())
	if !strings.Contains(string(text), testcluster.LANAddr(1).String()) || strings.Contains(string(text),
		testcluster.LANAddr(0).String()) {
		t.Errorf("its addresses are\n%s", text)
	}
}

// TestNewAt checks that hosts have the requested addresses, in one network.
func TestNewAt(t *testing.T) {
	for _, wrong := range []string{"10.0.0.254", "fd00::5"} {
		if _, err := testcluster.NewLANAt(
			netip.MustParseAddr(wrong),
			2,
			1,
		); err == nil ||
			errors.Is(err, testcluster.ErrNoLAN) {
			t.Errorf("two hosts from %s: %v", wrong, err)
		}
	}
	l, err := testcluster.NewLANAt(netip.MustParseAddr("10.0.0.5"), 2, 1)
	if errors.Is(err, testcluster.ErrNoLAN) {
		t.Skip(err)
	}
	must(t, err)
	defer func() { must(t, l.Close()) }()
	c, err := l.Host(0).Dial(echo(t, l.Host(1)), 10*time.Second)
	must(t, err)
	defer c.Close()
	_, err = ping(c, 10*time.Second)
	must(t, err)
	if at := c.RemoteAddr().String(); at != "10.0.0.6:7000" {
		t.Errorf("the second host has address %s", at)
	}
}

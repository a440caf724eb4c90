package transport

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// TestLinkAddresses checks that a link tries its addresses in turn, stays with the one that welcomes it, starts again
// from that one when it breaks, and tries all others without a pause.
func TestLinkAddresses(t *testing.T) {
	const first, second, third = "a/1", "b/1", "c/1"
	served, dialled := map[string]chan Conn{}, []string{}
	var ups chan bool
	runLink(t, nil, func(l *linked) {
		served[second], served[third] = make(chan Conn, 1), make(chan Conn, 1)
		ups = make(chan bool, 4)
		l.link.Up = func(Conn, *wire.Frame) { ups <- true }
		l.link.Addr = first + ", " + second + "," + third
		l.link.Network = noting{l.link.Network, &dialled}
		for addr, conns := range served {
			host, _, _ := strings.Cut(addr, "/")
			listener, err := l.mem.Host(host).Listen(addr)
			must(t, err)
			go func() {
				for {
					c, err := listener.Accept()
					if err != nil {
						return
					}
					var f wire.Frame
					_ = c.Recv(&f)                                             // hello
					_ = c.Send(wire.Control(wire.KindWelcome, wire.Welcome{})) // the link may be gone
					conns <- c
				}
			}()
		}
		t.Cleanup(func() { l.mem.Kill("b"); l.mem.Kill("c") })
	}, func(l *linked) {
		began := time.Now()
		<-ups
		c := <-served[second]
		if took := time.Since(began); took > 2*time.Millisecond {
			t.Errorf("the second address was tried after %v", took)
		}
		c.Close()
		c = <-served[second] // the same address again
		<-ups
		l.mem.Kill("b")
		c.Close()
		<-served[third]
		if want := []string{first, second, second, second, third}; !slices.Equal(dialled, want) {
			t.Errorf("dialled %v, want %v", dialled, want)
		}
		l.mem.Kill("c")
	})
}

// TestLinkFile checks that addresses in a file are read for each attempt, so that a link finds a peer that has moved.
func TestLinkFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "addresses")
	moves := func(addrs string) { must(t, os.WriteFile(name, []byte(addrs), 0o600)) }
	dialled := []string{}
	var ups chan bool
	var conns chan Conn
	moves("a/1,c/1")
	runLink(t, nil, func(l *linked) {
		ups, conns = make(chan bool, 4), make(chan Conn, 2)
		l.link.Up = func(Conn, *wire.Frame) { ups <- true }
		l.link.Addr = "@" + name
		l.link.Network = noting{l.link.Network, &dialled}
		for _, host := range []string{"b", "d"} {
			listener, err := l.mem.Host(host).Listen(host + "/1")
			must(t, err)
			go func() {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				var f wire.Frame
				_ = c.Recv(&f)                                             // hello
				_ = c.Send(wire.Control(wire.KindWelcome, wire.Welcome{})) // the link may be gone
				conns <- c
			}()
		}
	}, func(l *linked) {
		defer l.mem.Kill("b")
		defer l.mem.Kill("d")
		<-time.After(3 * time.Second) // one attempt takes 2 s
		moves("b/1\n")
		<-ups
		c := <-conns
		moves("d/1") // while the connection is up
		<-time.After(time.Second)
		c.Close()
		<-ups
		(<-conns).Close()
		if n := len(dialled); n < 4 || dialled[0] != "a/1" || dialled[1] != "c/1" || dialled[n-1] != "d/1" {
			t.Errorf("dialled %v", dialled)
		}
	})
}

// noting records the addresses dialled.
type noting struct {
	Network
	dialled *[]string
}

func (n noting) Dial(ctx context.Context, addr string) (Conn, error) {
	*n.dialled = append(*n.dialled, addr)
	return n.Network.Dial(ctx, addr)
}

// TestVersions checks that a peer of another version receives a refusal whose header names this process's version, and
// that both sides explain what to do.
func TestVersions(t *testing.T) {
	newer := func(f wire.Frame) []byte {
		b := wire.Append(nil, &f)
		b[4]++
		return b
	}
	const says = "wire: other version: the peer speaks wire version "
	const what = "install the same version of Perdure on every machine"
	c, raw := rawPair(t, TCP{})
	_, err := raw.Write(newer(wire.Control(wire.KindHello, wire.Hello{Role: wire.RoleWorker})))
	must(t, err)
	_, err = ReceiveHello(c, time.Minute, wire.Keys{})
	if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), what) {
		t.Errorf("the accepting side reports %v", err)
	}
	mustBe(t, err, wire.ErrVersion)
	var header [wire.HeaderBytes]byte
	must(t, raw.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err = raw.Read(header[:])
	must(t, err)
	if header[4] != wire.Version || wire.Kind(header[5]) != wire.KindRefuse {
		t.Errorf("the answer is % x", header[:8])
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err == nil {
			defer c.Close()
			_, _ = c.Write(newer(wire.Control(wire.KindRefuse, wire.Refusal{}))) // the link reports what it has read
			_, _ = io.Copy(io.Discard, c)                                        // until the link has read it
		}
	}()
	link := Link{
		Network: TCP{}, Addr: l.Addr().String(), Hello: func() wire.Hello { return wire.Hello{Role: wire.RoleWorker} },
	}
	err = link.Run(t.Context())
	mustBe(t, err, perdure.ErrRefused)
	if !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), what) {
		t.Errorf("the dialling side reports %v", err)
	}
}

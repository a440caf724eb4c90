package bench

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/perdure/perdure/internal/run/localrun"
)

// counted is a connection that counts bytes.
type counted struct {
	net.Conn
	read, written *atomic.Int64
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Add(int64(n))
	return n, err
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}

// TestRawExchange checks the number of bytes in both directions, over any number of connections.
func TestRawExchange(t *testing.T) {
	for _, kind := range socketKinds {
		for _, conns := range []int{1, 3} {
			t.Run(fmt.Sprint(kind, conns), func(t *testing.T) {
				network, addr := kind, localrun.AnyPort
				switch kind {
				case "unix":
					addr = filepath.Join(t.TempDir(), "s")
				case socketTLS:
					network = "tcp"
				}
				l, err := net.Listen(network, addr)
				must(t, err)
				if kind == socketTLS {
					config, err := serverTLS()
					must(t, err)
					l = tls.NewListener(l, config)
				}
				defer l.Close()
				var read, written atomic.Int64
				served := make(chan struct{})
				go func() {
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						go func() {
							answerRaw(counted{c, &read, &written})
							served <- struct{}{}
						}()
					}
				}()
				s := rawShape{Ask: 88, Answer: 1<<20 + 1, Chunk: 100_000, Buffer: 1 << 20}
				r, err := dialRaw(t.Context(), l.Addr(), kind == socketTLS, conns, s)
				must(t, err)
				const times = 5
				for range times {
					must(t, r.Exchange())
				}
				must(t, r.Close())
				for range conns {
					<-served
				}
				if got, want := read.Load(), times*s.Ask+int64(conns)*32; got != want {
					t.Errorf("the peer read %d bytes, want %d", got, want)
				}
				if got, want := written.Load(), times*s.Answer; got != want {
					t.Errorf("the peer wrote %d bytes, want %d", got, want)
				}
			})
		}
	}
}

// TestRawStop checks that a pending exchange fails when it is stopped.
func TestRawStop(t *testing.T) {
	l, err := net.Listen("tcp", localrun.AnyPort)
	must(t, err)
	defer l.Close() // only the system accepts connections
	r, err := dialRaw(t.Context(), l.Addr(), false, 2, rawShape{Ask: 1, Answer: 1, Chunk: 1})
	must(t, err)
	failed := make(chan error)
	go func() { failed <- r.Exchange() }()
	r.Stop()
	if err := <-failed; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v", err)
	}
	must(t, r.Close())
}

// TestRawRefuses checks that a peer rejects invalid shapes before it allocates memory.
func TestRawRefuses(t *testing.T) {
	for _, s := range []rawShape{
		{Ask: 0, Answer: 1, Chunk: 1},
		{Ask: 1, Answer: maxRawBytes + 1, Chunk: 1},
		{Ask: 1, Answer: 1, Chunk: -1},
	} {
		if s.check() == nil {
			t.Errorf("%+v is accepted", s)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

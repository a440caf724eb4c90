package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/keys/authority"
)

// jobKeys creates the keys of a job.
func jobKeys(t testing.TB, job string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), job)
	if _, err := authority.New(dir, job, time.Hour, time.Now); err != nil {
		t.Fatal(err)
	}
	return dir
}

// as returns the network of a process with a role. If dir is "", it has no keys.
func as(t testing.TB, dir string, role keys.Role) TCP {
	t.Helper()
	if dir == "" {
		return TCP{Socket: SocketTCP}
	}
	ring, err := keys.Open(keys.RoleDir(dir, role))
	if err != nil {
		t.Fatal(err)
	}
	return TCP{Keys: ring}
}

// recorder forwards and records the data that it receives.
func recorder(t *testing.T, to string) (addr string, kept func() []byte) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var mu sync.Mutex
	var all []byte
	go func() {
		near, err := l.Accept()
		if err != nil {
			return
		}
		defer near.Close()
		far, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		defer far.Close()
		go func() { _, _ = io.Copy(near, far) }()
		b := make([]byte, 64<<10)
		for {
			n, err := near.Read(b)
			mu.Lock()
			all = append(all, b[:n]...)
			mu.Unlock()
			if err != nil {
				return
			}
			if _, err := far.Write(b[:n]); err != nil {
				return
			}
		}
	}()
	return l.Addr().String(), func() []byte {
		mu.Lock()
		defer mu.Unlock()
		return bytes.Clone(all)
	}
}

// TestPrivate checks that data can be read on its way only if there are no keys.
func TestPrivate(t *testing.T) {
	for _, dir := range []string{jobKeys(t, "job"), ""} {
		l, err := as(t, dir, keys.Server).Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr, kept := recorder(t, l.Addr())
		got := make(chan wire.Frame, 1)
		go func() {
			far, err := l.Accept()
			if err != nil {
				return
			}
			defer far.Close()
			var f wire.Frame
			if err := far.Recv(&f); err != nil {
				t.Error(err)
			}
			if who := far.PeerIdentity(); (who.Role == keys.Worker) != (dir != "") {
				t.Errorf("the caller is %v", who)
			}
			got <- f
		}()
		near, err := as(t, dir, keys.Worker).Dial(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		secret := bytes.Repeat([]byte("weights of a model; "), 20_000) // more than one record and more than one chunk
		if err := near.Send(wire.Frame{Header: wire.Header{Kind: wire.KindTick}, Payload: secret}); err != nil {
			t.Fatal(err)
		}
		if f := <-got; !bytes.Equal(f.Payload, secret) {
			t.Error("received other data")
		}
		if readable := bytes.Contains(kept(), []byte("weights")); readable == (dir != "") {
			t.Errorf("with keys: %v, readable in transit: %v", dir != "", readable)
		}
		if who := near.PeerIdentity(); (who.Role == keys.Server) != (dir != "") {
			t.Errorf("the called peer is %v", who)
		}
		near.Close()
		l.Close()
	}
}

// greet connects two processes, where the caller claims a role, and returns the errors of both sides.
func greet(t *testing.T, near, far TCP, wants keys.Role, role wire.Role) (said, received error) {
	t.Helper()
	l, err := far.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		defer c.Close()
		_, err = ReceiveHello(c, 10*time.Second, wire.Keys{})
		if err == nil {
			err = c.Send(wire.Control(wire.KindWelcome, wire.Welcome{}))
			_ = c.Recv(new(wire.Frame)) // until the caller closes it
		}
		done <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	link := Link{
		Network: near, Addr: l.Addr(), PeerRole: wants,
		Hello:       func() wire.Hello { return wire.Hello{Role: role, Process: "p", Index: -1} },
		Up:          func(Conn, *wire.Frame) { cancel() },
		Frame:       func(Conn, *wire.Frame) error { return nil },
		Down:        func(Conn, error) {},
		ShouldRetry: func(int, error) bool { return false },
	}
	if said = link.Run(ctx); errors.Is(said, context.Canceled) {
		said = nil
	}
	return said, <-done
}

// TestMayBe checks which roles the holders of certificates may claim.
func TestMayBe(t *testing.T) {
	dir := jobKeys(t, "job")
	far := as(t, dir, keys.Coordinator)
	may := map[keys.Role]string{
		keys.Coordinator: "supervisor observer", keys.Server: "server observer", keys.Worker: "worker observer",
		keys.Operator: "supervisor observer", keys.Viewer: "",
	}
	for _, has := range keys.Roles {
		near := as(t, dir, has)
		for _, says := range []wire.Role{
			wire.RoleCoordinator, wire.RoleServer, wire.RoleWorker, wire.RoleObserver, wire.RoleSupervisor,
		} {
			want := slices.Contains(strings.Fields(may[has]), string(says))
			said, received := greet(t, near, far, keys.Coordinator, says)
			if (said == nil) != want || (received == nil) != want {
				t.Errorf("a caller with the certificate of a %s claims to be a %s: %v, %v; want it admitted: %v",
					has, says, said,
					received, want)
			}
			if !want && (!errors.Is(said, perdure.ErrRefused) || !strings.Contains(said.Error(),
				"does not allow the role")) {
				t.Errorf("a %s that claims to be a %s received %v", has, says, said)
			}
		}
	}
}

// TestStrangers checks that a process without the job's keys gets a one-line explanation, and whether it may retry.
func TestStrangers(t *testing.T) {
	dir, other := jobKeys(t, "job"), jobKeys(t, "other")
	for name, c := range map[string]struct {
		near, far TCP
		wants     keys.Role
		want      string
		again     bool // the result may differ later
	}{
		"another job's worker": {
			as(t, other, keys.Worker), as(t, dir, keys.Server), keys.Server,
			"another job's keys", false,
		},
		"no keys": {
			as(t, "", keys.Worker), as(t, dir, keys.Server), keys.Server, "the job requires keys",
			false,
		},
		"a job without keys": {
			as(t, dir, keys.Worker), as(t, "", keys.Server), keys.Server,
			"check whether its job uses keys", true,
		},
		"a server at a coordinator's address": {
			as(t, dir, keys.Worker), as(t, dir, keys.Server), keys.Coordinator, "has the certificate of a server",
			false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			said, received := greet(t, c.near, c.far, c.wants, wire.RoleWorker)
			if said == nil || received == nil || !strings.Contains(said.Error(), c.want) ||
				strings.Contains(said.Error(), "\n") {
				t.Errorf("the caller reports %v, want one line with %q; the other side %v", said, c.want, received)
			}
			if errors.Is(said, perdure.ErrRefused) == c.again {
				t.Errorf("%v must be permanent: %v", said, !c.again)
			}
		})
	}
}

// TestRevoked checks that a connection ends when the peer's certificate is revoked, and that a new one is rejected.
func TestRevoked(t *testing.T) {
	dir := jobKeys(t, "job")
	near, far := as(t, dir, keys.Worker), as(t, dir, keys.Server)
	l, err := far.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	came, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			came <- err
			return
		}
		defer c.Close()
		var f wire.Frame
		came <- c.Recv(&f)
		ended <- c.Recv(&f)
	}()
	c, err := near.Dial(t.Context(), l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Send(wire.Frame{Header: wire.Header{Kind: wire.KindTick}}); err != nil {
		t.Fatal(err)
	}
	if err := <-came; err != nil {
		t.Fatal(err)
	}
	a, err := authority.Open(dir, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Revoke([]string{"worker"}); err != nil {
		t.Fatal(err)
	}
	if err := far.Keys.Refresh(); err != nil {
		t.Fatal(err)
	}
	var revoked *PeerRevokedError
	if err := <-ended; !errors.As(err, &revoked) || revoked.Holder.String() != "worker/worker" {
		t.Errorf("the connection ended with %v", err)
	}
	if err := c.Recv(new(wire.Frame)); err == nil {
		t.Error("the worker's side still works")
	}
	said, received := greet(t, near, far, keys.Server, wire.RoleWorker)
	if !errors.Is(said, perdure.ErrRefused) || !strings.Contains(said.Error(), "rejects our certificate") {
		t.Errorf("the worker reports %v", said)
	}
	if received == nil || !strings.Contains(received.Error(), "(worker/worker) is revoked") {
		t.Errorf("the server reports %v", received)
	}
}

// TestCrowd checks that many silent callers do not block others, and that the oldest are disconnected.
func TestCrowd(t *testing.T) {
	dir := jobKeys(t, "job")
	near, far := as(t, dir, keys.Worker), as(t, dir, keys.Server)
	l, err := far.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	came := make(chan Conn, 2*maxShaking)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			came <- c
		}
	}()
	var silent []net.Conn
	for range maxShaking + 50 {
		nc, err := net.Dial("tcp", l.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		silent = append(silent, nc)
	}
	for range silent {
		c := <-came
		defer c.Close()
	}
	c, err := near.Dial(t.Context(), l.Addr())
	if err != nil {
		t.Fatalf("a caller is not admitted: %v", err)
	}
	defer c.Close()
	last := <-came
	defer last.Close()
	if who := c.PeerIdentity(); who.Role != keys.Server {
		t.Errorf("the called peer is %v", who)
	}
	for i, nc := range silent {
		_ = nc.SetReadDeadline(time.Now().Add(time.Millisecond))
		if i < 50 {
			_ = nc.SetReadDeadline(time.Now().Add(10 * time.Second))
		}
		_, err := nc.Read(make([]byte, 1))
		if closed := !errors.Is(err, os.ErrDeadlineExceeded); closed != (i < 51) {
			t.Errorf("silent caller %d was disconnected: %v (%v)", i, closed, err)
		}
	}
}

// TestSlowHandshake checks that a caller which sends nothing, or only a part of its handshake, is disconnected.
func TestSlowHandshake(t *testing.T) {
	far := as(t, jobKeys(t, "job"), keys.Server)
	l, err := far.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, says := range [][]byte{nil, {22, 3, 1, 0, 200, 1}} { // half of a TLS ClientHello
		nc, err := net.Dial("tcp", l.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if _, err := nc.Write(says); err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		sent := make(chan error, 1)
		go func() { sent <- c.Send(wire.Frame{Header: wire.Header{Kind: wire.KindTick}}) }() // waits for the handshake
		if _, err := ReceiveHello(c, 50*time.Millisecond, wire.Keys{}); err == nil {
			t.Error("the caller was accepted")
		}
		<-sent
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

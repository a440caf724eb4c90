package logauth_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/keys/authority"
	"github.com/perdure/perdure/internal/proc/logauth"
	"github.com/perdure/perdure/internal/proc/logserver"
)

// within limits how long a connection may survive the revocation of its certificate.
const within = 10 * time.Second

func matches(err error, pattern string) bool {
	return err != nil && regexp.MustCompile(pattern).MatchString(err.Error())
}

func (w *fixture) authority(now func() time.Time) *authority.Authority {
	w.Helper()
	a, err := authority.Open(w.dir, now)
	must(w.T, err)
	return a
}

// issue issues the keys of another worker.
func (w *fixture) issue(name string) *keys.Ring {
	w.Helper()
	h, err := w.authority(time.Now).Issue(keys.Worker, name, time.Hour)
	must(w.T, err)
	return ring(w.T, h.Dir, keys.Worker)
}

func (w *fixture) revoke(name string) {
	w.Helper()
	_, err := w.authority(time.Now).Revoke([]string{name})
	must(w.T, err)
}

// expired returns a worker's keys that expired an hour ago.
func (w *fixture) expired() *updatelog.Access {
	w.Helper()
	then := func() time.Time { return time.Now().Add(-2 * time.Hour) }
	h, err := w.authority(then).Issue(keys.Worker, "old", time.Hour)
	must(w.T, err)
	return logauth.NewAccess(ring(w.T, h.Dir, keys.Worker))
}

// TestRevoked checks that a revoked client loses its connection within seconds and cannot reconnect, and that other
// clients keep theirs.
func TestRevoked(t *testing.T) {
	t.Parallel()
	w := serve(t, newKeys(t, "mine"), "")
	w.create("a")
	lost := make(chan string, 2)
	connect := func(r *keys.Ring) *nats.Conn {
		disconnected := nats.DisconnectErrHandler(func(*nats.Conn, error) {
			select {
			case lost <- r.Identity().Name:
			default:
			}
		})
		nc, err := w.bare(logauth.NewAccess(r), disconnected, nats.Timeout(time.Second))
		must(t, err)
		t.Cleanup(nc.Close)
		return nc
	}
	gone, stays := connect(w.issue("gone")), connect(w.issue("stays"))
	w.revoke("worker-gone")
	must(t, w.ring.Refresh()) // a process does this every second
	select {
	case name := <-lost:
		if name != "gone" {
			t.Errorf("%s lost its connection", name)
		}
	case <-time.After(within):
		t.Fatal("the revoked client keeps its connection")
	}
	if err := try(stays, acts["append"].subject, "x"); err != nil {
		t.Errorf("the client that is not revoked: %v", err)
	}
	if err := gone.FlushTimeout(time.Second); err == nil || gone.IsConnected() {
		t.Errorf("the revoked client reconnected: %v", err)
	}
}

// TestRenewed checks that both sides present renewed certificates on the next connection, and that existing connections
// survive.
func TestRenewed(t *testing.T) {
	t.Parallel()
	dir := newKeys(t, "mine")
	var mu sync.Mutex
	var callers, called []string
	note := func(to *[]string, c *x509.Certificate) {
		mu.Lock()
		defer mu.Unlock()
		*to = append(*to, keys.Serial(c.SerialNumber))
	}
	w := serve(t, dir, "", func(g *logserver.Guard) {
		admit := g.Admit
		g.Admit = func(c *x509.Certificate) (string, updatelog.Rights) { note(&callers, c); return admit(c) }
	})
	w.create("a")
	mine := ring(t, dir, keys.Worker)
	a := logauth.NewAccess(mine)
	verify := a.TLS.VerifyConnection
	a.TLS.VerifyConnection = func(s tls.ConnectionState) error {
		note(&called, s.PeerCertificates[0])
		return verify(s)
	}
	again := make(chan struct{}, 1)
	nc, err := w.bare(a, nats.ReconnectHandler(func(*nats.Conn) { again <- struct{}{} }))
	must(t, err)
	defer nc.Close()
	_, err = w.authority(time.Now).Renew([]string{"worker", "server"}, time.Hour)
	must(t, errors.Join(err, mine.Refresh(), w.ring.Refresh()))
	must(t, try(nc, acts["append"].subject, "x"))
	must(t, nc.ForceReconnect())
	select {
	case <-again:
	case <-time.After(within):
		t.Fatal("no reconnection with new keys")
	}
	must(t, try(nc, acts["append"].subject, "x"))
	mu.Lock()
	defer mu.Unlock()
	for who, serials := range map[string][]string{"the caller": callers, "the log": called} {
		if n := len(serials); n < 2 || serials[n-1] == serials[n-2] {
			t.Errorf("%s presents its old certificate: %v", who, serials)
		}
	}
}

// TestPlain checks that a log with keys neither answers nor accepts anything from a client that does not use TLS.
func TestPlain(t *testing.T) {
	t.Parallel()
	w := serve(t, newKeys(t, "mine"), "")
	w.create("a")
	at := strings.TrimPrefix(w.log.URL(), updatelog.KeysScheme+"://")
	for _, says := range []string{
		"CONNECT {}\r\nPING\r\n", "PUB perdure.j.0 1\r\nx\r\n",
		"CONNECT {\"tls_required\":false}\r\nPUB perdure.j.0 1\r\nx\r\n",
	} {
		c, err := net.Dial("tcp", at)
		must(t, err)
		must(t, c.SetDeadline(time.Now().Add(time.Minute)))
		_, err = c.Write([]byte(says))
		must(t, err)
		received, _ := io.ReadAll(c) // until the log closes the connection, in whatever way
		// A TLS server answers plain text with an unencrypted alert of 7 bytes.
		if len(received) > 7 || strings.Contains(string(received), "INFO") {
			t.Errorf("the log answers %q with %q", says, received)
		}
		_ = c.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err := updatelog.Dial(ctx, "nats://"+at, updatelog.DialOptions{Options: updatelog.Options{Job: job, Shards: 1}})
	if err == nil || !matches(err, "if the log is served with keys, its address must start with perdure://") {
		t.Errorf("a client without TLS: %v", err)
	}
	first, next, err := w.dial(keys.Server).Extent(t.Context(), 0)
	if err != nil || first != 1 || next != 2 {
		t.Errorf("the stream has records %d to %d: %v", first, next-1, err)
	}
}

// TestInspect checks that an operator can read all records, but not remove the stream.
func TestInspect(t *testing.T) {
	t.Parallel()
	w := serve(t, newKeys(t, "mine"), "")
	want := []string{"a", "b", "c"}
	w.create(want...)
	look := func(role keys.Role) (i *updatelog.Inspector, s []updatelog.Stream) {
		access, err := logauth.Open(w.dir, role)
		must(t, err)
		i, err = updatelog.Inspect(t.Context(), w.log.URL(), updatelog.DialOptions{Access: access})
		must(t, err)
		t.Cleanup(func() { _ = i.Close() })
		s, err = i.Streams(t.Context())
		must(t, err)
		return i, s
	}
	for _, role := range []keys.Role{keys.Operator, keys.Coordinator} {
		i, streams := look(role)
		if len(streams) != 1 || streams[0].Name != stream {
			t.Fatalf("a %s sees the streams %v", role, streams)
		}
		var got []string
		must(t, i.Records(t.Context(), streams[0], func(r updatelog.Record) error {
			for _, e := range r.Entries {
				got = append(got, string(e.Payload))
			}
			return nil
		}))
		if !slices.Equal(got, want) {
			t.Errorf("a %s reads %v, want %v", role, got, want)
		}
	}
	i, streams := look(keys.Operator)
	if err := i.Remove(t.Context(), streams); !errors.Is(err, updatelog.ErrRefused) ||
		!matches(err, "does not allow the holder of the keys of operator/operator to do this") {
		t.Errorf("removing streams as an operator: %v", err)
	}
	i, streams = look(keys.Coordinator)
	must(t, i.Remove(t.Context(), streams))
	if left, err := i.Streams(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("after removal by a coordinator, these streams are left: %v (error %v)", left, err)
	}
}

// TestMaxPerPeer checks the limit on connections per certificate. Other certificates have limits of their own, and
// closing a connection makes room for another.
func TestMaxPerPeer(t *testing.T) {
	t.Parallel()
	const most = 3
	w := serve(t, newKeys(t, "mine"), "", func(g *logserver.Guard) { g.MaxConnsPerPeer = most })
	mine, others := logauth.NewAccess(w.issue("mine")), logauth.NewAccess(w.issue("others"))
	var inside []*nats.Conn
	for range most {
		nc, err := w.bare(mine)
		must(t, err)
		defer nc.Close()
		inside = append(inside, nc)
	}
	for range 3 {
		if _, err := w.bare(mine); !errors.Is(err, nats.ErrAuthorization) {
			t.Fatalf("connection above the limit of %d: %v", most, err)
		}
	}
	nc, err := w.bare(others)
	must(t, err)
	defer nc.Close()
	inside[0].Close()
	for ended := time.Now().Add(within); ; { // the log notices with a delay
		nc, err := w.bare(mine)
		if err == nil {
			nc.Close()
			return
		}
		if time.Now().After(ended) {
			t.Fatalf("still rejected after a connection was closed: %v", err)
		}
	}
}

// TestNoKeys checks that a job without keys neither presents nor requires any.
func TestNoKeys(t *testing.T) {
	if logserver.NewGuard(nil, true) != nil || logauth.NewAccess(nil) != nil {
		t.Error("a job without keys has a guard or credentials")
	}
	if a, err := logauth.Open("", keys.Operator); a != nil || err != nil {
		t.Errorf("%v, %v", a, err)
	}
	if _, err := logauth.Open(filepath.Join(t.TempDir(), "none"), keys.Operator); err == nil {
		t.Error("Open succeeded for a missing directory")
	}
}

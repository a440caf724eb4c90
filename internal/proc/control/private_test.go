package control

import (
	"crypto/tls"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/keys/authority"
	"github.com/perdure/perdure/internal/proc/web"
)

// TestRevokedCaller: who is revoked calls nothing any more, also on the connection that it has, and with the
// certificate that a newer one has replaced.
func TestRevokedCaller(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	_, err := authority.New(dir, "job", time.Hour, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	open := func(role keys.Role) *keys.Ring {
		r, err := keys.Open(keys.Folder(dir, role))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	own := open(keys.Coordinator)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gate := Gate{Alive: isAlive, Ring: own}
	s := web.NewServer(gate.Guard(NewHandler(&fakeJob{})))
	go func() { _ = s.Serve(tls.NewListener(l, own.Web())) }() // ends with the test
	t.Cleanup(func() { _ = s.Close() })
	c := NewClient(l.Addr().String(), "", open(keys.Operator))
	if _, err := c.Status(t.Context()); err != nil {
		t.Fatal(err)
	}
	a, err := authority.Open(dir, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Renew([]string{"operator"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Revoke([]string{"operator"}); err != nil {
		t.Fatal(err)
	}
	if err := own.Refresh(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "is revoked") {
		t.Errorf("on its connection it is told %v", err)
	}
}

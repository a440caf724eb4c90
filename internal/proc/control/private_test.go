package control

import (
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/keys/authority"
)

// privateJob serves the control API of a job whose keys are in dir. own are the coordinator's keys.
func privateJob(t *testing.T) (dir string, own *keys.Ring, addr string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "keys")
	if _, err := authority.New(dir, "job", time.Hour, time.Now); err != nil {
		t.Fatal(err)
	}
	own = ringIn(t, filepath.Join(dir, "coordinator"))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gate := Authorizer{Alive: isAlive, Ring: own}
	s := httpdebug.NewHTTPServer(gate.Guard(NewHandler(&fakeJob{})))
	s.ErrorLog = log.New(io.Discard, "", 0)
	go func() { _ = s.Serve(tls.NewListener(l, own.WebServer())) }() // returns at the end of the test
	t.Cleanup(func() { _ = s.Close() })
	return dir, own, l.Addr().String()
}

func ringIn(t *testing.T, dir string) *keys.Ring {
	t.Helper()
	r, err := keys.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// revokes renews the keys of an operator, and revokes that name.
func revokes(t *testing.T, dir string, own *keys.Ring) {
	t.Helper()
	a, err := authority.Open(dir, time.Now)
	if err == nil {
		_, err = a.Renew([]string{"operator"}, time.Hour)
	}
	if err == nil {
		_, err = a.Revoke([]string{"operator"})
	}
	if err == nil {
		err = own.Refresh()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestRevokedCaller checks that a revoked holder is rejected, also on an open connection, and also with a certificate
// that was replaced by a newer one.
func TestRevokedCaller(t *testing.T) {
	dir, own, addr := privateJob(t)
	c := NewClient(addr, "", ringIn(t, filepath.Join(dir, "operator")))
	if _, err := c.Status(t.Context()); err != nil {
		t.Fatal(err)
	}
	revokes(t, dir, own)
	if _, err := c.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "is revoked") {
		t.Errorf("on the open connection: error %v", err)
	}
}

// TestRefusedCertificate checks that the error names the rejected certificate, instead of reporting that no coordinator
// answers.
func TestRefusedCertificate(t *testing.T) {
	dir, own, addr := privateJob(t)
	revokes(t, dir, own)
	copied := filepath.Join(t.TempDir(), "copied") // without the new revocation list
	if err := os.CopyFS(copied, os.DirFS(keys.RoleDir(dir, keys.Operator))); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{keys.IdentityFile, keys.SecretFile} {
		if err := os.Chmod(filepath.Join(copied, file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(copied, keys.RevokedFile)); err != nil {
		t.Fatal(err)
	}
	expired, err := authority.Open(dir, func() time.Time { return time.Now().Add(-2 * time.Hour) })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := expired.Issue(keys.Operator, "late", time.Hour); err != nil {
		t.Fatal(err)
	}
	another := filepath.Join(t.TempDir(), "another")
	if _, err := authority.New(another, "job", time.Hour, time.Now); err != nil {
		t.Fatal(err)
	}
	for folder, want := range map[string]string{
		filepath.Join(dir, "operator"):      "which is revoked",
		copied:                              "it rejects our certificate",
		filepath.Join(dir, "operator-late"): "which expired at",
		filepath.Join(another, "operator"):  "comes from another job's keys",
	} {
		ring := ringIn(t, folder)
		for range 10 { // the reason must be found even if the broken connection lost it
			c := NewClient(addr, "", ring)
			_, err := c.Scale(t.Context(), Scale{Workers: 1})
			if !errors.Is(err, perdure.ErrRefused) || errors.Is(err, ErrUnreachable) ||
				!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("with the keys in %s: %v, want %q", folder, err, want)
			}
		}
	}
}

// TestKeysForJobWithout checks that the errors distinguish a job without keys from an address without a coordinator.
func TestKeysForJobWithout(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	if _, err := authority.New(dir, "job", time.Hour, time.Now); err != nil {
		t.Fatal(err)
	}
	ring := ringIn(t, filepath.Join(dir, "operator"))
	addr := guardedJob(t, &fakeJob{}, isAlive)
	if _, err := NewClient(addr, "", ring).Status(t.Context()); !errors.Is(err, perdure.ErrUsage) ||
		!strings.Contains(err.Error(), "remove --keys") {
		t.Errorf("unexpected error for a job without keys: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := NewClient(l.Addr().String(), "", ring).Status(t.Context()); !errors.Is(err, ErrUnreachable) {
		t.Errorf("unexpected error for an address without a listener: %v", err)
	}
}

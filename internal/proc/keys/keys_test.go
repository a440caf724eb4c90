package keys_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/keys/authority"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// folder creates the keys of a job.
func folder(t *testing.T, job string, now func() time.Time) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), job)
	_, err := authority.New(dir, job, time.Hour, now)
	must(t, err)
	return dir
}

func open(t *testing.T, dir string, role keys.Role) *keys.Ring {
	t.Helper()
	r, err := keys.Open(keys.RoleDir(dir, role))
	must(t, err)
	return r
}

// meet connects the two sides and returns the error of each. If both accept, a byte from the caller must arrive.
func meet(t *testing.T, caller, called *tls.Config) (near, far error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		defer c.Close()
		b := make([]byte, 2)
		s := tls.Server(c, called)
		if _, err = io.ReadFull(s, b); err == nil && string(b) != "hi" {
			err = errors.New(string(b))
		}
		if err == nil {
			_, err = s.Write(b)
		}
		done <- err
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	defer c.Close()
	s := tls.Client(c, caller)
	_, near = s.Write([]byte("hi"))
	if near == nil {
		_, near = io.ReadFull(s, make([]byte, 2))
	}
	return near, <-done
}

// TestMeet checks which peers accept each other.
func TestMeet(t *testing.T) {
	now := time.Now
	ours, others := folder(t, "ours", now), folder(t, "others", now)
	past := folder(t, "past", func() time.Time { return time.Now().Add(-2 * time.Hour) })
	future := folder(t, "future", func() time.Time { return time.Now().Add(time.Hour) })
	gone := revokedWorker(t, ours)
	all := []keys.Role{keys.Coordinator, keys.Server}
	// mixed is another job whose keys are signed by an authority that ours also trusts.
	mixed := folder(t, "mixed", now)
	for _, side := range []string{ours, mixed} {
		for _, role := range keys.Roles {
			both := read(t, filepath.Join(ours, "ca", keys.CAFile)) + read(t, filepath.Join(mixed, "ca", keys.CAFile))
			must(t, os.WriteFile(filepath.Join(side, string(role), keys.CAFile), []byte(both), 0o600))
		}
	}
	for name, c := range map[string]struct {
		caller, called *keys.Ring
		near, far      string // errors of both sides; "": none
	}{
		"a worker calls a server":      {open(t, ours, keys.Worker), open(t, ours, keys.Server), "", ""},
		"a viewer calls a coordinator": {open(t, ours, keys.Viewer), open(t, ours, keys.Coordinator), "", ""},
		"another job's worker calls": {
			open(t, others, keys.Worker), open(t, ours, keys.Server),
			"another job's keys", "",
		},
		"a worker calls another job's": {
			open(t, ours, keys.Worker), open(t, others, keys.Server),
			"another job's keys", "",
		},
		"a worker is called": {
			open(t, ours, keys.Worker), open(t, ours, keys.Worker),
			"the role worker, which is not allowed", "",
		},
		"an operator is called": {
			open(t, ours, keys.Worker), open(t, ours, keys.Operator), "the role operator",
			"",
		},
		"expired keys": {open(t, past, keys.Worker), open(t, past, keys.Server), "expired at", ""},
		"keys that are not valid yet": {
			open(t, future, keys.Worker), open(t, future, keys.Server),
			"the clocks", "",
		},
		"a job of another name calls": {
			open(t, mixed, keys.Worker), open(t, ours, keys.Server),
			"is for job ours, but ours is for mixed", "",
		},
		"a worker whose keys are revoked": {
			gone, open(t, ours, keys.Server), "bad certificate",
			"(worker/gone) is revoked",
		},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := meet(t, c.caller.Client(all...), c.called.Server())
			if (near == nil) != (c.near == "") || near != nil && !strings.Contains(near.Error(), c.near) {
				t.Errorf("the caller's error is %v, want %q", near, c.near)
			}
			if c.near == "" && far != nil || c.far != "" && (far == nil || !strings.Contains(far.Error(), c.far)) {
				t.Errorf("the server's error is %v, want %q", far, c.far)
			}
		})
	}
}

// TestMeetNobody checks that a client without keys is rejected, except where it may authenticate in another way.
func TestMeetNobody(t *testing.T) {
	ours := folder(t, "ours", time.Now)
	gone := revokedWorker(t, ours)
	all := []keys.Role{keys.Coordinator, keys.Server}
	t.Run("no keys", func(t *testing.T) {
		near, far := meet(t, &tls.Config{InsecureSkipVerify: true}, open(t, ours, keys.Server).Server())
		if near == nil || far == nil {
			t.Errorf("a client without keys was admitted: %v, %v", near, far)
		}
	})
	t.Run("an old TLS", func(t *testing.T) {
		old := open(t, ours, keys.Worker).Client(all...)
		old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		if near, far := meet(t, old, open(t, ours, keys.Server).Server()); near == nil || far == nil {
			t.Errorf("TLS 1.2 was accepted: %v, %v", near, far)
		}
	})
	if near, far := meet(t, &tls.Config{InsecureSkipVerify: true}, open(t, ours,
		keys.Coordinator).WebServer()); near != nil ||
		far != nil {
		t.Errorf("Web rejected a tool without keys: %v, %v", near, far)
	}
	if near, _ := meet(t, gone.Client(all...), open(t, ours, keys.Coordinator).WebServer()); near == nil {
		t.Error("Web accepted a revoked certificate")
	}
}

// revokedWorker returns the revoked keys of a worker.
func revokedWorker(t *testing.T, dir string) *keys.Ring {
	t.Helper()
	a, err := authority.Open(dir, time.Now)
	must(t, err)
	gone, err := a.Issue(keys.Worker, "gone", time.Hour)
	must(t, err)
	_, err = a.Revoke([]string{"worker-gone"})
	must(t, err)
	return ring(t, gone.Dir)
}

func ring(t *testing.T, dir string) *keys.Ring {
	t.Helper()
	r, err := keys.Open(dir)
	must(t, err)
	return r
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return string(b)
}

// TestRefresh checks that renewed and revoked keys are picked up, and that invalid files are ignored.
func TestRefresh(t *testing.T) {
	dir := folder(t, "job", time.Now)
	a, err := authority.Open(dir, time.Now)
	must(t, err)
	server, worker := open(t, dir, keys.Server), open(t, dir, keys.Worker)
	all := []keys.Role{keys.Server}
	before := server.Expiry()
	_, err = a.Renew([]string{"server"}, 3*time.Hour)
	must(t, err)
	must(t, server.Refresh())
	if !server.Expiry().After(before) {
		t.Errorf("renewed keys are valid until %v, the old ones until %v", server.Expiry(), before)
	}
	file := filepath.Join(dir, "server", keys.IdentityFile)
	good := read(t, file)
	half := good[:len(good)/2]
	must(t, os.WriteFile(file, []byte(half), 0o600))
	if err := server.Refresh(); err == nil || !strings.Contains(err.Error(), "the previous keys stay in use") {
		t.Errorf("unexpected error for half a file: %v", err)
	}
	if err := server.Refresh(); err != nil {
		t.Errorf("the error is reported again: %v", err)
	}
	if near, far := meet(t, worker.Client(all...), server.Server()); near != nil || far != nil {
		t.Errorf("connecting with half a file: %v, %v", near, far)
	}
	must(t, os.WriteFile(file, []byte(good), 0o600))
	must(t, server.Refresh())

	ended := make(chan string, 2)
	leaf, err := tls.X509KeyPair([]byte(read(t, filepath.Join(dir, "worker", keys.IdentityFile))),
		[]byte(read(t, filepath.Join(dir, "worker", keys.IdentityFile))))
	must(t, err)
	mine, err := tls.X509KeyPair([]byte(good), []byte(good))
	must(t, err)
	_, ok := server.Track(leaf.Leaf, func() { ended <- "worker" })
	other, ok2 := server.Track(mine.Leaf, func() { ended <- "server" })
	if !ok || !ok2 {
		t.Fatal("Hold failed for valid certificates")
	}
	_, err = a.Revoke([]string{"worker"})
	must(t, err)
	must(t, server.Refresh())
	if who := <-ended; who != "worker" || len(ended) > 0 {
		t.Errorf("the connection of %s was closed, want only the worker's", who)
	}
	if _, ok := server.Track(leaf.Leaf, func() {}); ok {
		t.Error("Hold succeeded for a revoked certificate")
	}
	other.Release()
	if near, _ := meet(t, worker.Client(all...), server.Server()); near == nil {
		t.Error("a worker with a revoked certificate was admitted")
	}
	// A list signed by another authority revokes nothing, and is reported as invalid.
	stranger := folder(t, "stranger", time.Now)
	must(t, os.WriteFile(filepath.Join(dir, "server", keys.RevokedFile),
		[]byte(read(t, filepath.Join(stranger, "ca", keys.RevokedFile))), 0o600))
	if err := server.Refresh(); err == nil || !strings.Contains(err.Error(), "is not signed by any certificate") {
		t.Errorf("unexpected error for another authority's list: %v", err)
	}
}

// TestOpen checks the one-line errors for invalid directories.
func TestOpen(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, dir string)
		want  string
	}{
		"no directory":    {func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)) }, "no such file"},
		"no certificates": {spoiled(keys.CAFile, "", 0o600), "has no certificate"},
		"a torn certificate": {spoiled(keys.CAFile, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END "+
			"CERTIFICATE-----\n", 0o600), "ca.pem: "},
		"no key":                {spoiled(keys.IdentityFile, "", 0o600), "has no certificate with a matching key"},
		"a key for all to read": {spoiled(keys.IdentityFile, "", 0o644), "run chmod 600"},
		"nonsense in the list": {spoiled(keys.RevokedFile, "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 "+
			"CRL-----\n", 0o600), "revoked.pem: "},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(folder(t, "job", time.Now), "server")
			c.spoil(t, dir)
			_, err := keys.Open(dir)
			if err == nil || !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), c.want) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, c.want)
			}
		})
	}
}

func spoiled(name, text string, mode os.FileMode) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), mode))
		must(t, os.Chmod(path, mode))
	}
}

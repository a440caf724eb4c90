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

// folder makes the keys of a job.
func folder(t *testing.T, job string, now func() time.Time) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), job)
	_, err := authority.New(dir, job, time.Hour, now)
	must(t, err)
	return dir
}

func open(t *testing.T, dir string, role keys.Role) *keys.Ring {
	t.Helper()
	r, err := keys.Open(keys.Folder(dir, role))
	must(t, err)
	return r
}

// meet has one side call the other, and returns what each says. What the caller sends arrives, where both agree.
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

// TestMeet: who is let in, and who is taken for whom he says to be.
func TestMeet(t *testing.T) {
	now := time.Now
	ours, others := folder(t, "ours", now), folder(t, "others", now)
	past := folder(t, "past", func() time.Time { return time.Now().Add(-2 * time.Hour) })
	future := folder(t, "future", func() time.Time { return time.Now().Add(time.Hour) })
	gone := revokedWorker(t, ours)
	all := []keys.Role{keys.Coordinator, keys.Server}
	// mixed is a job of another name whose keys somebody whom ours trust has signed.
	mixed := folder(t, "mixed", now)
	for _, side := range []string{ours, mixed} {
		for _, role := range keys.Roles {
			both := read(t, filepath.Join(ours, "ca", keys.CAFile)) + read(t, filepath.Join(mixed, "ca", keys.CAFile))
			must(t, os.WriteFile(filepath.Join(side, string(role), keys.CAFile), []byte(both), 0o600))
		}
	}
	for name, c := range map[string]struct {
		caller, called *keys.Ring
		near, far      string // what each says; "": nothing is wrong
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
			"for a worker, whom nobody", "",
		},
		"an operator is called": {
			open(t, ours, keys.Worker), open(t, ours, keys.Operator), "for a operator",
			"",
		},
		"keys that have run out": {open(t, past, keys.Worker), open(t, past, keys.Server), "ran out at", ""},
		"keys of tomorrow": {
			open(t, future, keys.Worker), open(t, future, keys.Server),
			"do the clocks", "",
		},
		"a job of another name calls": {
			open(t, mixed, keys.Worker), open(t, ours, keys.Server),
			"is for job ours, and ours for mixed", "",
		},
		"a worker whose keys are taken": {
			gone, open(t, ours, keys.Server), "bad certificate",
			"is revoked",
		},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := meet(t, c.caller.Client(all...), c.called.Server())
			if (near == nil) != (c.near == "") || near != nil && !strings.Contains(near.Error(), c.near) {
				t.Errorf("the caller says %v, want %q", near, c.near)
			}
			if c.near == "" && far != nil || c.far != "" && (far == nil || !strings.Contains(far.Error(), c.far)) {
				t.Errorf("who is called says %v, want %q", far, c.far)
			}
		})
	}
}

// TestMeetNobody: who has no keys is let in nowhere but where he may show something else.
func TestMeetNobody(t *testing.T) {
	ours := folder(t, "ours", time.Now)
	gone := revokedWorker(t, ours)
	all := []keys.Role{keys.Coordinator, keys.Server}
	t.Run("nobody's keys", func(t *testing.T) {
		near, far := meet(t, &tls.Config{InsecureSkipVerify: true}, open(t, ours, keys.Server).Server())
		if near == nil || far == nil {
			t.Errorf("somebody without keys is let in: %v, %v", near, far)
		}
	})
	t.Run("an old TLS", func(t *testing.T) {
		old := open(t, ours, keys.Worker).Client(all...)
		old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		if near, far := meet(t, old, open(t, ours, keys.Server).Server()); near == nil || far == nil {
			t.Errorf("TLS 1.2 is spoken: %v, %v", near, far)
		}
	})
	if near, far := meet(t, &tls.Config{InsecureSkipVerify: true}, open(t, ours,
		keys.Coordinator).Web()); near != nil ||
		far != nil {
		t.Errorf("a tool without keys is not let in where it may show something else: %v, %v", near, far)
	}
	if near, _ := meet(t, gone.Client(all...), open(t, ours, keys.Coordinator).Web()); near == nil {
		t.Error("where a certificate is no must, one that is revoked is taken")
	}
}

// revokedWorker is the keys of a worker that were revoked.
func revokedWorker(t *testing.T, dir string) *keys.Ring {
	t.Helper()
	a, err := authority.Open(dir, time.Now)
	must(t, err)
	gone, err := a.Issue(keys.Worker, "gone", time.Hour)
	must(t, err)
	_, err = a.Revoke([]string{"worker-gone"})
	must(t, err)
	return ring(t, gone.Folder)
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

// TestRefresh: keys are renewed and revoked while they are used, and files that do not fit are not.
func TestRefresh(t *testing.T) {
	dir := folder(t, "job", time.Now)
	a, err := authority.Open(dir, time.Now)
	must(t, err)
	server, worker := open(t, dir, keys.Server), open(t, dir, keys.Worker)
	all := []keys.Role{keys.Server}
	before := server.Until()
	_, err = a.Renew([]string{"server"}, 3*time.Hour)
	must(t, err)
	must(t, server.Refresh())
	if !server.Until().After(before) {
		t.Errorf("renewed keys are good until %v, those before until %v", server.Until(), before)
	}
	file := filepath.Join(dir, "server", keys.IdentityFile)
	good := read(t, file)
	half := good[:len(good)/2]
	must(t, os.WriteFile(file, []byte(half), 0o600))
	if err := server.Refresh(); err == nil || !strings.Contains(err.Error(), "those from before are used on") {
		t.Errorf("half a file: %v", err)
	}
	if err := server.Refresh(); err != nil {
		t.Errorf("it says so again: %v", err)
	}
	if near, far := meet(t, worker.Client(all...), server.Server()); near != nil || far != nil {
		t.Errorf("with half a file there: %v, %v", near, far)
	}
	must(t, os.WriteFile(file, []byte(good), 0o600))
	must(t, server.Refresh())

	ended := make(chan string, 2)
	leaf, err := tls.X509KeyPair([]byte(read(t, filepath.Join(dir, "worker", keys.IdentityFile))),
		[]byte(read(t, filepath.Join(dir, "worker", keys.IdentityFile))))
	must(t, err)
	mine, err := tls.X509KeyPair([]byte(good), []byte(good))
	must(t, err)
	_, ok := server.Hold(leaf.Leaf, func() { ended <- "worker" })
	other, ok2 := server.Hold(mine.Leaf, func() { ended <- "server" })
	if !ok || !ok2 {
		t.Fatal("what is not revoked cannot be held")
	}
	_, err = a.Revoke([]string{"worker"})
	must(t, err)
	must(t, server.Refresh())
	if who := <-ended; who != "worker" || len(ended) > 0 {
		t.Errorf("the connection of %s has ended, want the worker's alone", who)
	}
	if _, ok := server.Hold(leaf.Leaf, func() {}); ok {
		t.Error("a connection is held whose peer's certificate is revoked")
	}
	other.Release()
	if near, _ := meet(t, worker.Client(all...), server.Server()); near == nil {
		t.Error("a worker is let in whose certificate is revoked")
	}
	// A list that somebody else has signed revokes nothing, and is said to be wrong.
	stranger := folder(t, "stranger", time.Now)
	must(t, os.WriteFile(filepath.Join(dir, "server", keys.RevokedFile),
		[]byte(read(t, filepath.Join(stranger, "ca", keys.RevokedFile))), 0o600))
	if err := server.Refresh(); err == nil || !strings.Contains(err.Error(), "is signed by nobody") {
		t.Errorf("a stranger's list: %v", err)
	}
}

// TestOpen: what is wrong with a folder is one line.
func TestOpen(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, dir string)
		want  string
	}{
		"no folder":       {func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)) }, "no such file"},
		"no certificates": {spoiled(keys.CAFile, "", 0o600), "has no certificate"},
		"a torn certificate": {spoiled(keys.CAFile, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END "+
			"CERTIFICATE-----\n", 0o600), "ca.pem: "},
		"no key":                {spoiled(keys.IdentityFile, "", 0o600), "has no certificate with its key"},
		"a key for all to read": {spoiled(keys.IdentityFile, "", 0o644), "write chmod 600"},
		"nonsense in the list": {spoiled(keys.RevokedFile, "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 "+
			"CRL-----\n", 0o600), "revoked.pem: "},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(folder(t, "job", time.Now), "server")
			c.spoil(t, dir)
			_, err := keys.Open(dir)
			if err == nil || !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), c.want) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want one line with %q", err, c.want)
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

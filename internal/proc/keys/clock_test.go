package keys_test

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/keys/authority"
)

// TestJumps lets the wall clock of one side jump. New connections are accepted while the certificates are valid by the
// verifier's clock. A rejection is temporary, and existing connections are never closed.
func TestJumps(t *testing.T) {
	made := time.Now()
	dir := folder(t, "job", func() time.Time { return made }) // valid from five minutes before made until an hour after
	server, worker := open(t, dir, keys.Server), open(t, dir, keys.Worker)
	leaf, err := tls.LoadX509KeyPair(filepath.Join(dir, "worker", keys.IdentityFile),
		filepath.Join(dir, "worker", keys.IdentityFile))
	must(t, err)
	if _, ok := server.Track(leaf.Leaf, func() { t.Error("an existing connection was closed") }); !ok {
		t.Fatal("Hold failed")
	}
	for _, c := range []struct {
		is   time.Duration // clock reading, relative to the creation of the certificates
		want string        // the verifier's error; "": none
	}{
		{0, ""},
		{0, ""}, // the clock stands still
		{59 * time.Minute, ""},
		{time.Hour + time.Minute, "expired at"},
		{0, ""}, // the clock is corrected
		{-4 * time.Minute, ""},
		{-time.Hour, "the clocks of both machines agree"},
		{0, ""},
	} {
		for _, side := range []*keys.Ring{server, worker} {
			server.SetClock(func() time.Time { return made })
			worker.SetClock(func() time.Time { return made })
			side.SetClock(func() time.Time { return made.Add(c.is) })
			near, far := meet(t, worker.Client(keys.Server), server.Server())
			says := near
			if side == server {
				says = far
			}
			switch {
			case c.want == "" && (near != nil || far != nil):
				t.Errorf("at %v: %v, %v", c.is, near, far)
			case c.want != "" && (says == nil || !strings.Contains(says.Error(), c.want) || keys.IsPermanent(says)):
				t.Errorf("at %v: %v, want a temporary error with %q", c.is, says, c.want)
			}
			must(t, side.Refresh())
		}
	}
}

// TestClockStands checks that new files with the same size and modification time are noticed.
func TestClockStands(t *testing.T) {
	dir := folder(t, "job", time.Now)
	server := open(t, dir, keys.Server)
	a, err := authority.Open(dir, time.Now)
	must(t, err)
	path := filepath.Join(dir, "server", keys.IdentityFile)
	before, err := os.Stat(path)
	must(t, err)
	stands := func() {
		for _, name := range []string{keys.CAFile, keys.IdentityFile, keys.RevokedFile} {
			must(t, os.Chtimes(filepath.Join(dir, "server", name), before.ModTime(), before.ModTime()))
		}
	}
	stands()
	must(t, server.Refresh())
	for { // the length of a signature varies by a byte
		_, err := a.Renew([]string{"server"}, 3*time.Hour)
		must(t, err)
		now, err := os.Stat(path)
		must(t, err)
		if now.Size() == before.Size() {
			break
		}
	}
	stands()
	must(t, server.Refresh())
	if left := time.Until(server.Expiry()); left < 2*time.Hour {
		t.Errorf("the keys are valid for %v: the new ones were not noticed", left)
	}
}

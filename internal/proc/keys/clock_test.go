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

// TestJumps: the wall clock of one side jumps. Who calls anew is let in as long as the certificates are good by the
// clock of who looks; the refusal is for now, and not for good. No connection that is there ends.
func TestJumps(t *testing.T) {
	made := time.Now()
	dir := folder(t, "job", func() time.Time { return made }) // for an hour, and from five minutes before
	server, worker := open(t, dir, keys.Server), open(t, dir, keys.Worker)
	leaf, err := tls.LoadX509KeyPair(filepath.Join(dir, "worker", keys.IdentityFile),
		filepath.Join(dir, "worker", keys.IdentityFile))
	must(t, err)
	if _, ok := server.Hold(leaf.Leaf, func() { t.Error("a connection that is there has ended") }); !ok {
		t.Fatal("it cannot be held")
	}
	for _, c := range []struct {
		is   time.Duration // what the clock shows, since the certificates were made
		want string        // what who looks says of the other; "": nothing
	}{
		{0, ""},
		{0, ""}, // it stands
		{59 * time.Minute, ""},
		{time.Hour + time.Minute, "ran out at"},
		{0, ""}, // it is set right
		{-4 * time.Minute, ""},
		{-time.Hour, "do the clocks of both machines agree?"},
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
			case c.want != "" && (says == nil || !strings.Contains(says.Error(), c.want) || keys.Foreign(says)):
				t.Errorf("at %v: %v, want one with %q that is not for good", c.is, says, c.want)
			}
			must(t, side.Refresh())
		}
	}
}

// TestClockStands: new files are noticed that are as long as those before, and have the same time.
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
	for { // a signature takes a byte more or less
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
	if left := time.Until(server.Until()); left < 2*time.Hour {
		t.Errorf("the keys are good for %v: the new ones were not noticed", left)
	}
}

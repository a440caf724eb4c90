package authority_test

import (
	"errors"
	"io/fs"
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

// TestNew checks that each role gets the files that it needs, and no others.
func TestNew(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	list, err := authority.New(dir, "job", time.Hour, time.Now)
	must(t, err)
	if len(list) != len(keys.Roles) {
		t.Fatalf("%d holders of keys for %d roles", len(list), len(keys.Roles))
	}
	servers := map[keys.Role]bool{keys.Server: true, keys.Coordinator: true}
	for _, h := range list {
		r, err := keys.Open(h.Dir)
		must(t, err)
		if r.Identity() != h.Identity || h.Domain != "job" {
			t.Errorf("the directory of %s has the keys of %s", h, r.Identity())
		}
		_, job := os.Stat(filepath.Join(h.Dir, keys.SecretFile))
		_, more := os.Stat(filepath.Join(h.Dir, keys.SecretFile+keys.ServersExt))
		if (job == nil) == (h.Role == keys.Viewer) || (more == nil) != servers[h.Role] {
			t.Errorf("%s: error reading the run's secret: %v, the servers' secret: %v", h, job, more)
		}
	}
	// Other users of this machine must not be able to read a key or a secret.
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		public := d.Name() == keys.CAFile || d.Name() == keys.RevokedFile || d.Name() == "lock"
		if err == nil && !public && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %04o, want 0600", path, info.Mode().Perm())
		}
		if strings.HasPrefix(d.Name(), ".") {
			t.Errorf("temporary file %s is left", path)
		}
		return err
	}))
}

// TestHolders checks issuing, renewing and revoking the keys of several holders.
func TestHolders(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	_, err := authority.New(dir, "job", time.Hour, time.Now)
	must(t, err)
	a, err := authority.Open(dir, time.Now)
	must(t, err)
	alice, err := a.Issue(keys.Worker, "alice", time.Hour)
	must(t, err)
	renewed, err := a.Renew(nil, 2*time.Hour)
	must(t, err)
	if len(renewed) != len(keys.Roles)+1 {
		t.Errorf("renewed the keys of %d holders", len(renewed))
	}
	_, err = a.Revoke([]string{"worker-alice", keys.Serial(alice.Serial)})
	must(t, err)
	_, err = a.Revoke([]string{"viewer"})
	must(t, err)
	list, _, err := a.List()
	must(t, err)
	revoked := ""
	for _, h := range list {
		if replaced := h.Dir == ""; h.Serial.Cmp(alice.Serial) == 0 && !replaced {
			t.Error("the list has a folder for keys that were renewed")
		}
		if h.Revoked && h.Dir != "" {
			revoked += h.String() + " "
		}
	}
	if revoked != "viewer/viewer worker/alice " {
		t.Errorf("revoked holders: %s", revoked)
	}
	renewed, err = a.Renew(nil, time.Hour)
	must(t, err)
	if len(renewed) != len(keys.Roles)-1 {
		t.Errorf("with two holders revoked, renewed %d: %v", len(renewed), renewed)
	}
	renewed, err = a.Renew([]string{"viewer"}, time.Hour)
	must(t, err)
	if len(renewed) != 1 || renewed[0].Revoked {
		t.Errorf("renewing a named holder returned %v", renewed)
	}
}

// TestRefused checks that invalid requests return a one-line error and change nothing.
func TestRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	_, err := authority.New(dir, "job", time.Hour, time.Now)
	must(t, err)
	a, err := authority.Open(dir, time.Now)
	must(t, err)
	torn := filepath.Join(t.TempDir(), "torn")
	_, err = authority.New(torn, "job", time.Hour, time.Now)
	must(t, err)
	key, err := os.ReadFile(filepath.Join(dir, "ca", "key.pem"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(torn, "ca", "key.pem"), key, 0o600))
	for name, c := range map[string]struct {
		do   func() error
		want string
	}{
		"an existing directory": {func() error {
			_, err := authority.New(dir, "job", time.Hour,
				time.Now)
			return err
		}, "is not empty"},
		"an invalid job name": {func() error {
			_, err := authority.New(filepath.Join(t.TempDir(), "x"), "My Job", time.Hour, time.Now)
			return err
		}, `invalid job "My Job"`},
		"not a directory of keys": {
			func() error { _, err := authority.Open(t.TempDir(), time.Now); return err },
			"perdure keys new",
		},
		"another's key": {
			func() error { _, err := authority.Open(torn, time.Now); return err },
			"is not the key of",
		},
		"a role": {
			func() error { _, err := a.Issue("king", "alice", time.Hour); return err },
			`unknown role "king"; roles: coordinator`,
		},
		"a name": {
			func() error { _, err := a.Issue(keys.Worker, "../x", time.Hour); return err },
			`invalid name "../x"`,
		},
		"no lifetime": {func() error { _, err := a.Issue(keys.Worker, "bob", 0); return err }, "invalid lifetime 0s"},
		"an unknown holder": {
			func() error { _, err := a.Revoke([]string{"worker-nobody"}); return err },
			"worker-nobody",
		},
		"no holder to renew": {
			func() error { _, err := a.Renew([]string{"worker-nobody"}, time.Hour); return err },
			"worker-nobody",
		},
	} {
		err := c.do()
		if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want one line with %q", name, err, c.want)
		}
	}
	list, _, err := a.List()
	must(t, err)
	if len(list) != len(keys.Roles) {
		t.Errorf("%d holders after failed requests", len(list))
	}
}

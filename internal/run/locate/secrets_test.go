package locate_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/run/locate"
)

func draw(t *testing.T) (s *locate.Secrets, run string) {
	t.Helper()
	run = t.TempDir()
	s, err := locate.WriteSecrets(run, locate.NewKeys())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // only read
	return s, run
}

// TestInherits checks that workers do not inherit the servers' secret.
func TestInherits(t *testing.T) {
	s, _ := draw(t)
	for role, want := range map[wire.Role]int{wire.RoleWorker: 1, wire.RoleServer: 2, wire.RoleCoordinator: 2} {
		if n := len(s.InheritedBy(role)); n != want {
			t.Errorf("a %s inherits %d secrets, want %d", role, n, want)
		}
	}
}

// TestReadSecrets checks that a joining process finds the secrets for its role in the run's directory or in a copy.
func TestReadSecrets(t *testing.T) {
	s, run := draw(t)
	other, otherRun := draw(t)
	if s.Job == other.Job || s.Job == s.Servers {
		t.Fatal("two secrets are equal")
	}
	file := filepath.Join(run, locate.SecretFile)
	for name, c := range map[string]struct {
		read func() (wire.Keys, error)
		want wire.Keys
	}{
		"a worker, of the folder": {
			func() (wire.Keys, error) { return locate.ReadSecrets("", run, wire.RoleWorker) },
			wire.Keys{Job: s.Job},
		},
		"a server, of the folder": {
			func() (wire.Keys, error) { return locate.ReadSecrets("", run, wire.RoleServer) },
			s.Keys,
		},
		"a server, of a file": {func() (wire.Keys,
			error,
		) {
			return locate.ReadSecrets(file, otherRun, wire.RoleServer)
		}, s.Keys},
		"a caller, of the folder": {
			func() (wire.Keys, error) { return locate.ReadSecretsOf(file, otherRun) },
			wire.Keys{Job: other.Job},
		},
		"a caller, of another's file": {
			func() (wire.Keys, error) { return locate.ReadSecretsOf(file, t.TempDir()) },
			wire.Keys{Job: s.Job},
		},
		"a coordinator's, of a folder": {func() (wire.Keys,
			error,
		) {
			return locate.ReadSecrets("", otherRun, wire.RoleCoordinator)
		}, wire.Keys{Job: other.Job}},
	} {
		if got, err := c.read(); err != nil || got != c.want {
			t.Errorf("%s: another secret, or %v", name, err)
		}
	}
	if _, err := locate.ReadSecrets("", "", wire.RoleWorker); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("without a file or a directory: %v", err)
	}
	if err := os.Remove(file + locate.ServersExt); err != nil {
		t.Fatal(err)
	}
	if _, err := locate.ReadSecrets(file, "", wire.RoleServer); err == nil ||
		!strings.Contains(err.Error(), "a server also needs the file secret.servers") {
		t.Errorf("server without the servers' secret: %v", err)
	}
}

// TestDrawnOnce checks that the secrets of a run are never overwritten.
func TestDrawnOnce(t *testing.T) {
	s, run := draw(t)
	if again, err := locate.WriteSecrets(run, locate.NewKeys()); err == nil {
		t.Error("drawn again")
		_ = again.Close()
	}
	if k, err := locate.ReadSecrets("", run, wire.RoleServer); err != nil || k != s.Keys {
		t.Errorf("the secrets have changed: %v", err)
	}
	kept, err := locate.ReadRunSecrets(run)
	if err != nil {
		t.Fatal(err)
	}
	if kept.Keys != s.Keys || kept.Path != s.Path || len(kept.InheritedBy(wire.RoleServer)) != 2 {
		t.Errorf("kept secrets: %v", kept.Path)
	}
	if err := kept.Close(); err != nil {
		t.Error(err)
	}
	if _, err := locate.ReadRunSecrets(t.TempDir()); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("directory without secrets: %v ", err)
	}
}

package locate_test

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/run/locate"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// folder creates a run's directory whose control API is at an address.
func folder(t *testing.T, path, addr string, at time.Time) (job perdure.Secret) {
	t.Helper()
	must(t, os.MkdirAll(path, 0o777))
	s, err := locate.WriteSecrets(path, locate.NewKeys())
	must(t, err)
	must(t, s.Close())
	file := filepath.Join(path, "control")
	must(t, os.WriteFile(file, []byte(addr+"\n"), 0o666))
	must(t, os.Chtimes(file, at, at))
	return s.Job
}

// TestControl checks that a run is found by directory, by address or as the newest run, and that the caller presents
// that run's secret.
func TestControl(t *testing.T) {
	t.Chdir(t.TempDir())
	if _, _, err := locate.Control("", "", "", ""); !errors.Is(err, perdure.ErrUsage) ||
		!strings.Contains(err.Error(), "there is no run in runs/") {
		t.Errorf("without a run: %v", err)
	}
	srv := httptest.NewUnstartedServer(nil)
	addr, shown := srv.Listener.Addr().String(), ""
	srv.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown = r.Header.Get("Authorization")
		w.WriteHeader(http.StatusForbidden)
	})
	srv.Start()
	defer srv.Close()
	now := time.Now()
	older := folder(t, "runs/older", addr, now.Add(-time.Hour))
	newer := folder(t, "runs/newer", addr, now)
	for name, c := range map[string]struct {
		addr, run, file, found string
		secret                 perdure.Secret
	}{
		"the newest":             {"", "", "", "runs/newer", newer},
		"a folder":               {"", "runs/older", "", "runs/older", older},
		"a folder, not the file": {"", "runs/older", "runs/newer/secret", "runs/older", older},
		"an address and a file":  {addr, "", "runs/older/secret", "", older},
	} {
		client, found, err := locate.Control(c.addr, c.run, c.file, "")
		must(t, err)
		if found != c.found {
			t.Errorf("%s: found in %q, want %q", name, found, c.found)
		}
		if _, err := client.Status(t.Context()); err == nil || !strings.Contains(shown, c.secret.Reveal()) {
			t.Errorf("%s: presented another secret; %v", name, err)
		}
	}
	if _, _, err := locate.Control(addr, "", "", ""); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("an address without a secret: %v", err)
	}
	if _, _, err := locate.Control("", t.TempDir(), "", ""); err == nil ||
		!strings.Contains(err.Error(), "is not a run's directory") {
		t.Errorf("not a run's directory: %v", err)
	}
}

// TestFind checks the errors for processes that lack information to find their job.
func TestFind(t *testing.T) {
	run := t.TempDir()
	folder(t, run, "127.0.0.1:1", time.Now())
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, closed.Close())
	for want, job := range map[string]locate.Job{
		"no job given; add --join":            {Run: run},
		"remove --coordinator":                {Join: "127.0.0.1:1", Coordinator: "127.0.0.1:1"},
		"the run requires its secret":         {Join: "127.0.0.1:1"},
		"no job answers at " + addrOf(closed): {Join: addrOf(closed), Run: run},
	} {
		if _, err := job.Find(t.Context(), wire.RoleWorker); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", job, err, want)
		}
	}
	if err := (&locate.Job{}).RequireDir("its rows are there"); !errors.Is(err, perdure.ErrUsage) ||
		!strings.Contains(err.Error(), "its rows are there") {
		t.Errorf("without a directory: %v", err)
	}
	must(t, (&locate.Job{Run: run}).RequireDir(""))
}

func addrOf(l net.Listener) string { return l.Addr().String() }

// TestNames checks that process names are unique.
func TestNames(t *testing.T) {
	if a, b := locate.ProcessName(), locate.ProcessName(); a == b {
		t.Errorf("twice %s", a)
	}
}

package host

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/run/role"
)

// frozen is a registry that answers nobody until it is told to.
type frozen struct {
	registry.Registry
	goesOn chan struct{}
}

func (f *frozen) Acquire(ctx context.Context, h registry.Holder) (registry.Lease, error) {
	<-f.goesOn
	return f.Registry.Acquire(ctx, h)
}

// TestStandingBy: the loop that asks for the lease says that it stands by. While a registry is slow it waits, and that
// is well; for ever is not.
func TestStandingBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := registry.NewMemory()
		held, err := first.Acquire(t.Context(), registry.Self())
		must(t, err)
		f := &frozen{first.Another(), make(chan struct{})}
		s := newStanding()
		probe := httpdebug.NewProbe(2*time.Second, s.look, nil)
		c := &Coordinator{Log: slog.New(slog.DiscardHandler)}
		taken := make(chan error, 1)
		go func() {
			_, err := c.take(t.Context(), f, s)
			taken <- err
		}()
		if seen := probe.Ask(t.Context()); seen.Waits == "" || seen.Err != nil {
			t.Errorf("while its registry is slow: %+v", seen)
		}
		<-time.After(longestTry)
		if seen := probe.Ask(t.Context()); seen.Err == nil {
			t.Errorf("after %v in one try: %+v", longestTry, seen)
		}
		close(f.goesOn)
		synctest.Wait()
		if seen := probe.Ask(t.Context()); !strings.HasPrefix(seen.NotReady, "it stands by: ") || seen.Err != nil ||
			seen.Waits != "" || !strings.Contains(seen.NotReady, registry.Self().Host) {
			t.Errorf("while somebody else leads: %+v", seen)
		}
		must(t, held.Release())
		must(t, <-taken)
		if seen := probe.Ask(t.Context()); !strings.HasPrefix(seen.NotReady, "it stands by no more") {
			t.Errorf("with the lease: %+v", seen)
		}
	})
}

// TestStandbyIsWatched: one that stands by answers at its address: it is healthy, not ready, and leads nobody.
func TestStandbyIsWatched(t *testing.T) {
	first := registry.NewMemory()
	held, err := first.Acquire(t.Context(), registry.Self())
	must(t, err)
	c := &Coordinator{
		Log: slog.New(slog.DiscardHandler), Watch: role.Watched{Metrics: "127.0.0.1:0", Version: "test"},
	}
	c.eye, err = c.Watch.Open(t.Context(), c.Log)
	must(t, err)
	defer c.eye.Close()
	taken := make(chan error, 1)
	go func() {
		_, err := c.await(t.Context(), first.Another(), "j1")
		taken <- err
	}()
	asks := func(path, words string) (code int) {
		answer, err := http.Get("http://" + c.eye.Addr() + path)
		must(t, err)
		defer answer.Body.Close()
		b, err := io.ReadAll(answer.Body)
		must(t, err)
		if !strings.Contains(string(b), words) {
			return 0
		}
		return answer.StatusCode
	}
	until := time.Now().Add(time.Minute)
	for asks("/readyz", "it stands by") == 0 && time.Now().Before(until) { // it has just begun
	}
	if code := asks("/healthz", "is working"); code != http.StatusOK {
		t.Errorf("it is not healthy: %d", code)
	}
	if code := asks("/readyz", "it stands by"); code != http.StatusServiceUnavailable {
		t.Errorf("it is ready: %d", code)
	}
	if code := asks("/metrics", "perdure_coordinator_leads 0\n"); code != http.StatusOK {
		t.Errorf("it leads: %d", code)
	}
	must(t, held.Release())
	must(t, <-taken)
}

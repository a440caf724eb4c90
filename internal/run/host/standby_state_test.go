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

// frozen is a registry that does not answer until the test lets it.
type frozen struct {
	registry.Registry
	goesOn chan struct{}
}

func (f *frozen) Acquire(ctx context.Context, h registry.Holder) (registry.Lease, error) {
	<-f.goesOn
	return f.Registry.Acquire(ctx, h)
}

// TestStandingBy checks that the loop that requests the lease reports its standby state. Waiting for a slow registry is
// healthy, waiting forever is not.
func TestStandingBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := registry.NewMemory()
		held, err := first.Acquire(t.Context(), registry.Self())
		must(t, err)
		f := &frozen{first.NewClient(), make(chan struct{})}
		s := &standbyState{since: time.Now()}
		probe := httpdebug.NewProbe(2*time.Second, s.state, nil)
		c := &Coordinator{Log: slog.New(slog.DiscardHandler)}
		taken := make(chan error, 1)
		go func() {
			_, err := c.acquireLease(t.Context(), f, s)
			taken <- err
		}()
		if seen := probe.Ask(t.Context()); seen.BlockedOn == "" || seen.Err != nil {
			t.Errorf("while its registry is slow: %+v", seen)
		}
		<-time.After(maxRequestTime)
		if seen := probe.Ask(t.Context()); seen.Err == nil {
			t.Errorf("after %v in one request: %+v", maxRequestTime, seen)
		}
		close(f.goesOn)
		synctest.Wait()
		if seen := probe.Ask(t.Context()); !strings.HasPrefix(seen.NotReady, "it is on standby: ") || seen.Err != nil ||
			seen.BlockedOn != "" || !strings.Contains(seen.NotReady, registry.Self().Host) {
			t.Errorf("while another coordinator leads: %+v", seen)
		}
		must(t, held.Release())
		must(t, <-taken)
		if seen := probe.Ask(t.Context()); !strings.HasPrefix(seen.NotReady, "it is no longer on standby") {
			t.Errorf("with the lease: %+v", seen)
		}
	})
}

// TestStandbyIsWatched checks that a standby coordinator answers health checks: it is healthy, but not ready, and does
// not lead.
func TestStandbyIsWatched(t *testing.T) {
	first := registry.NewMemory()
	held, err := first.Acquire(t.Context(), registry.Self())
	must(t, err)
	c := &Coordinator{
		Log: slog.New(slog.DiscardHandler), Watch: role.Observability{Metrics: "127.0.0.1:0", Version: "test"},
	}
	c.debug, err = c.Watch.Open(t.Context(), c.Log)
	must(t, err)
	defer c.debug.Close()
	taken := make(chan error, 1)
	go func() {
		_, err := c.awaitLease(t.Context(), first.NewClient(), "j1")
		taken <- err
	}()
	asks := func(path, words string) (code int) {
		answer, err := http.Get("http://" + c.debug.Addr() + path)
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
	for asks("/readyz", "it is on standby") == 0 && time.Now().Before(until) { // it has just started
	}
	if code := asks("/healthz", "is working"); code != http.StatusOK {
		t.Errorf("it is not healthy: %d", code)
	}
	if code := asks("/readyz", "it is on standby"); code != http.StatusServiceUnavailable {
		t.Errorf("it is ready: %d", code)
	}
	if code := asks("/metrics", "perdure_coordinator_leads 0\n"); code != http.StatusOK {
		t.Errorf("it leads: %d", code)
	}
	must(t, held.Release())
	must(t, <-taken)
}

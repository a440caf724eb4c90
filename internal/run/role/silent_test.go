package role

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	perdurelib "github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/control"
)

// TestCoordinatorAwaitsDisk checks that a coordinator that is still reading its disk reports that it is alive, and that
// other calls wait.
func TestCoordinatorAwaitsDisk(t *testing.T) {
	const secret = perdurelib.Secret("the run's")
	api := &deferredAPI{ready: make(chan struct{})} // the disk never answers
	srv := httptest.NewUnstartedServer(nil)
	addr := srv.Listener.Addr().String()
	srv.Config.Handler = (&control.Authorizer{Secret: secret, Addrs: []string{addr}, Alive: api.check}).Guard(api)
	srv.Start()
	defer srv.Close()
	r, err := http.Get(srv.URL + control.AlivePath)
	must(t, err)
	if must(t, r.Body.Close()); r.StatusCode != http.StatusOK {
		t.Errorf("the health check answers %s", r.Status)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if s, err := control.NewClient(addr, secret, nil).Status(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without its disk it reports the job: %+v, %v", s, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

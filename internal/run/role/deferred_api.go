package role

import (
	"context"
	"net/http"

	"github.com/perdure/perdure/internal/proc/coordinator"
)

// deferredAPI is a control API that becomes available once the disk has been read. Callers wait until then.
type deferredAPI struct {
	ready   chan struct{} // closed when the handler is set
	handler http.Handler
	co      *coordinator.Coordinator
}

// check checks that the coordinator's loop responds. It returns immediately while the disk is being read, which may
// take any time.
func (a *deferredAPI) check(ctx context.Context) error {
	select {
	case <-a.ready:
		return a.co.Alive(ctx)
	default:
		return nil
	}
}

// serve sets the handler. It must be called once.
func (a *deferredAPI) serve(co *coordinator.Coordinator, h http.Handler) {
	a.co, a.handler = co, h
	close(a.ready)
}

func (a *deferredAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case <-a.ready:
		a.handler.ServeHTTP(w, r)
	case <-r.Context().Done():
	}
}

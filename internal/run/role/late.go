package role

import (
	"context"
	"net/http"

	"github.com/perdure/perdure/internal/proc/coordinator"
)

// lateAPI is a control API that becomes available once the disk has been read. Callers wait until then.
type lateAPI struct {
	there   chan struct{} // closed when the handler is set
	handler http.Handler
	co      *coordinator.Coordinator
}

// alive checks that the coordinator's loop responds. It returns immediately while the disk is being read, which may
// take any time.
func (a *lateAPI) alive(ctx context.Context) error {
	select {
	case <-a.there:
		return a.co.Alive(ctx)
	default:
		return nil
	}
}

// serve sets the handler. It must be called once.
func (a *lateAPI) serve(co *coordinator.Coordinator, h http.Handler) {
	a.co, a.handler = co, h
	close(a.there)
}

func (a *lateAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case <-a.there:
		a.handler.ServeHTTP(w, r)
	case <-r.Context().Done():
	}
}

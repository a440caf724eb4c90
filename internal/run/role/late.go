package role

import (
	"context"
	"net/http"

	"github.com/perdure/perdure/internal/proc/coordinator"
)

// lateAPI is a control API that comes once the disk has been read. Who asks for it waits.
type lateAPI struct {
	there   chan struct{} // closed when there is a handler
	handler http.Handler
	co      *coordinator.Coordinator
}

// alive returns when the coordinator shows that it is: at once while its disk is read,
// which takes as long as it takes.
func (a *lateAPI) alive(ctx context.Context) error {
	select {
	case <-a.there:
		return a.co.Alive(ctx)
	default:
		return nil
	}
}

// serve is called once.
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

package httpdebug

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// The bounds. Callers that somebody has a use for keep far away from them.
const (
	MostConnections = 64
	MostHeaderBytes = 16 << 10

	headerPatience = 5 * time.Second
	callPatience   = 10 * time.Second // for the whole of a request
	answerPatience = time.Minute      // a view of many shards, over a slow line
	idlePatience   = time.Minute
)

// NewHTTPServer returns a server for a handler, with these bounds.
func NewHTTPServer(h http.Handler) *http.Server {
	var all crowd
	return &http.Server{
		Handler: h, ConnState: all.note, MaxHeaderBytes: MostHeaderBytes,
		ReadHeaderTimeout: headerPatience, ReadTimeout: callPatience, WriteTimeout: answerPatience,
		IdleTimeout: idlePatience,
	}
}

// crowd bounds how many connections there are: for the newest the oldest has to go, so that
// those who hold theirs for long keep nobody out.
type crowd struct {
	mu    sync.Mutex // guards what follows
	conns []net.Conn // in the order in which they came
}

func (a *crowd) note(c net.Conn, s http.ConnState) {
	if s != http.StateNew && s != http.StateClosed && s != http.StateHijacked {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if s != http.StateNew {
		for i := range a.conns {
			if a.conns[i] == c {
				a.conns = append(a.conns[:i], a.conns[i+1:]...)
				return
			}
		}
		return
	}
	if a.conns = append(a.conns, c); len(a.conns) > MostConnections {
		_ = a.conns[0].Close() // its goroutine notices
		a.conns = a.conns[1:]
	}
}

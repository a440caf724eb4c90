package httpdebug

import (
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// The limits of an HTTP server. Legitimate callers stay far below them.
const (
	MaxConnections = 64
	MaxHeaderBytes = 16 << 10

	headerTimeout   = 5 * time.Second
	requestTimeout  = 10 * time.Second // for a whole request
	responseTimeout = time.Minute      // enough for a view with many shards over a slow connection
	idleTimeout     = time.Minute
)

// NewHTTPServer returns an HTTP server with these limits.
func NewHTTPServer(h http.Handler) *http.Server { return NewHTTPServerFor(h, MaxConnections) }

// NewHTTPServerFor is like NewHTTPServer, for a number of open connections.
func NewHTTPServerFor(h http.Handler, connections int) *http.Server {
	all := connLimit{most: connections}
	return &http.Server{
		Handler: h, ConnState: all.stateChanged, MaxHeaderBytes: MaxHeaderBytes,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout, WriteTimeout: responseTimeout,
		IdleTimeout: idleTimeout,
	}
}

// connLimit limits the number of open connections. A new connection above the limit replaces the oldest one, so clients
// with long-lived connections cannot lock out others.
type connLimit struct {
	most int

	mu    sync.Mutex // guards conns
	conns []net.Conn // oldest first
}

func (a *connLimit) stateChanged(c net.Conn, s http.ConnState) {
	if s != http.StateNew && s != http.StateClosed && s != http.StateHijacked {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if s != http.StateNew {
		a.conns = slices.DeleteFunc(a.conns, func(o net.Conn) bool { return o == c })
		return
	}
	if a.conns = append(a.conns, c); len(a.conns) > a.most {
		_ = a.conns[0].Close() // its goroutine notices and ends
		a.conns = a.conns[1:]
	}
}

package control

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/perdure/perdure"
)

// AlivePath is where whoever looks after the coordinator asks whether it is alive. It needs
// no secret, and its answer says nothing else.
const AlivePath = "/alive"

// Bounds on those who call. A call is short; who is slow, or opens more connections than
// anybody needs, takes nothing from the others.
const (
	maxHeaderBytes = 16 << 10
	headerPatience = 5 * time.Second
	callPatience   = 10 * time.Second // for the whole of a request
	answerPatience = time.Minute      // a view of many shards, over a slow line
	idlePatience   = time.Minute
	maxConnections = 64
)

// Guard lets only those through who show the secret, in the header Authorization: Bearer,
// and who name this machine, or the address at which it listens, as the Host: a page of
// another origin, in a browser of this machine, does neither. To AlivePath it answers as
// soon as alive returns, whose context ends with the call.
func Guard(h http.Handler, secret perdure.Secret, addr string, alive func(context.Context) error) http.Handler {
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == AlivePath {
			if alive(r.Context()) != nil {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			return
		}
		if err := admits(r, secret, addr); err != nil {
			if !refuse.IsSupported(r) {
				http.Error(w, err.Error(), http.StatusForbidden)
				return
			}
			_ = refuse.Write(w, r, connect.NewError(connect.CodePermissionDenied, err)) // its caller has gone
			return
		}
		h.ServeHTTP(w, r)
	})
}

func admits(r *http.Request, secret perdure.Secret, addr string) error {
	if !here(r.Host, addr) {
		return errors.New("the control API is called by the address of its machine, not by another name")
	}
	for _, origin := range r.Header.Values("Origin") {
		if u, err := url.Parse(origin); err != nil || u.Host != r.Host {
			return errors.New("the control API answers no pages of other origins")
		}
	}
	shown, is := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case secret == "", is && secret.Admits(perdure.Secret(shown)):
		return nil
	case !is:
		return errors.New("the secret is missing: it is in the file secret in the run's folder, which " +
			"PERDURE_SECRET_FILE names; show it as Authorization: Bearer SECRET")
	}
	return errors.New("the secret is not this run's: that is in the file secret in its folder, which " +
		"PERDURE_SECRET_FILE names")
}

// here reports whether a Host is this machine, or the address that is listened at.
func here(host, addr string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	ip := net.ParseIP(name)
	return host == addr || name == "localhost" || ip != nil && ip.IsLoopback()
}

// NewServer returns an HTTP server for a handler, with bounds on what callers may take of
// it.
func NewServer(h http.Handler) *http.Server {
	var all crowd
	return &http.Server{
		Handler: h, ConnState: all.note, MaxHeaderBytes: maxHeaderBytes,
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
	if a.conns = append(a.conns, c); len(a.conns) > maxConnections {
		_ = a.conns[0].Close() // its goroutine notices
		a.conns = a.conns[1:]
	}
}

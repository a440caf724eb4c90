// Package httpdebug implements the HTTP endpoints for operators: Prometheus metrics at /metrics, liveness at /healthz
// and readiness at /readyz. It also provides loggers whose lines name their process. The package depends on neither job
// nor role: the process describes itself in a State. [NewHTTPServer] bounds the resources that HTTP callers can use.
//
//	e, err := httpdebug.Open(addr, log)
//	e.SetProbe(httpdebug.NewProbe(bound, look))
//	defer e.Close()
package httpdebug

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Loopback completes the address of a metrics endpoint. An address without a host is bound to 127.0.0.1.
func Loopback(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("--metrics %s: write HOST:PORT, for example 127.0.0.1:9464", addr)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}

// Endpoint is the HTTP endpoint through which a process is observed.
type Endpoint struct {
	addr   string
	served *http.Server
	cancel context.CancelFunc
	probe  atomic.Pointer[Probe] // nil until the process starts its work
}

// Open listens on an address and answers immediately. It serves the state of the process after SetProbe is called.
func Open(addr string, log *slog.Logger) (*Endpoint, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, inUse(addr, err)
	}
	return open(l, addr, log), nil
}

// OpenRetrying is like Open, but if the address is in use, it retries in the background until the address is free.
func OpenRetrying(ctx context.Context, addr string, log *slog.Logger) *Endpoint {
	if e, err := Open(addr, log); err == nil {
		return e
	}
	ctx, stop := context.WithCancel(ctx)
	e := prepare(addr, log)
	e.cancel = stop
	go func() {
		for sent := false; ; {
			l, err := net.Listen("tcp", addr)
			if err == nil {
				if ctx.Err() != nil {
					_ = l.Close() // closed without any connection
					return
				}
				e.serve(l)
				return
			}
			if !sent {
				sent = true
				log.Warn("cannot serve metrics; retrying every second", "err", inUse(addr, err))
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return
			}
		}
	}()
	return e
}

func inUse(addr string, err error) error {
	if errno, is := errors.AsType[syscall.Errno](err); is {
		err = errno
	}
	return fmt.Errorf("cannot listen on %s for metrics: %w; choose another address for --metrics", addr, err)
}

func prepare(addr string, log *slog.Logger) *Endpoint {
	e := &Endpoint{addr: addr, cancel: func() {}}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(Gatherer(e.probe.Load), promhttp.HandlerOpts{
		ErrorLog: ErrorLog(log), ErrorHandling: promhttp.ContinueOnError,
		DisableCompression: true, // scrapers are nearby, and compression would cost a third more CPU
		// Concurrent scrapes share one gathering, and slow readers are served from a copy, so neither blocks the
		// others.
		MaxRequestsInFlight: MaxScrapes, CoalesceGather: true, Timeout: gatherTimeout,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { reply(w, e.health(r.Context())) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { reply(w, e.ready(r.Context())) })
	e.served = NewHTTPServer(mux)
	e.served.ErrorLog = ErrorLog(log)
	return e
}

const (
	// MaxScrapes limits concurrent scrapes. Further ones are answered with 503.
	MaxScrapes = 4
	// gatherTimeout limits how long gathering takes. The probe of the process has a shorter limit.
	gatherTimeout = 10 * time.Second
)

// Gatherer gathers the metrics of the process that the probe reports on, plus those of the Go runtime and the operating
// system. The probe is nil until the process starts its work.
func Gatherer(probe func() *Probe) prometheus.Gatherer {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		probeCollector(probe))
	return r
}

func open(l net.Listener, addr string, log *slog.Logger) *Endpoint {
	e := prepare(addr, log)
	e.addr = l.Addr().String()
	e.serve(l)
	return e
}

// serve accepts connections until the Endpoint is closed.
func (e *Endpoint) serve(l net.Listener) { go func() { _ = e.served.Serve(l) }() }

// Addr returns the address that the Endpoint listens on.
func (e *Endpoint) Addr() string { return e.addr }

// SetProbe sets the probe that is served from now on. Calling it on a nil Endpoint does nothing.
func (e *Endpoint) SetProbe(p *Probe) {
	if e != nil {
		e.probe.Store(p)
	}
}

// Close stops the server. It always returns nil.
func (e *Endpoint) Close() error {
	if e == nil {
		return nil
	}
	e.cancel()
	return e.served.Close()
}

// answer is the response to a health or readiness check.
type answer struct {
	good bool
	why  string
}

func reply(w http.ResponseWriter, a answer) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !a.good {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintln(w, a.why)
}

// starting is the answer of a process that has not started its work.
const starting = "the process is starting"

func (e *Endpoint) health(ctx context.Context) answer {
	p := e.probe.Load()
	if p == nil {
		return answer{true, starting}
	}
	seen := p.Ask(ctx)
	if seen.Err != nil {
		return answer{false, seen.Err.Error()}
	}
	if seen.BlockedOn != "" {
		return answer{true, seen.BlockedOn}
	}
	return answer{true, fmt.Sprintf("the process is working; it answered in %v", seen.Took.Round(time.Microsecond))}
}

func (e *Endpoint) ready(ctx context.Context) answer {
	p := e.probe.Load()
	if p == nil {
		return answer{false, starting}
	}
	seen := p.Ask(ctx)
	switch {
	case seen.Err != nil:
		return answer{false, seen.Err.Error()}
	case seen.BlockedOn != "":
		return answer{false, seen.BlockedOn}
	case seen.NotReady != "":
		return answer{false, seen.NotReady}
	}
	return answer{true, seen.Activity}
}

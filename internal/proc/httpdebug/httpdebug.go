// Package httpdebug serves what operators look at over HTTP: metrics for Prometheus at /metrics, liveness at
// /healthz, readiness at /readyz, and log lines that name their process. It knows neither job nor role: the
// process describes itself in a Look. It also bounds what HTTP callers may take ([NewHTTPServer]).
//
//	e, err := httpdebug.Open(addr, log)
//	e.Show(httpdebug.NewProbe(bound, look))
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

// Loopback completes an address of metrics: without a host it is of this machine alone.
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

// Eye is what a process is seen by.
type Eye struct {
	addr    string
	served  *http.Server
	stopped context.CancelFunc
	probe   atomic.Pointer[Probe] // nil: the process has not begun its work
}

// Open listens at an address and answers at once. What the process does is shown once Show was called.
func Open(addr string, log *slog.Logger) (*Eye, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, inUse(addr, err)
	}
	return open(l, addr, log), nil
}

// Insist is Open for a process that goes on where the address is in use, and tries it again until it is free.
func Insist(ctx context.Context, addr string, log *slog.Logger) *Eye {
	if e, err := Open(addr, log); err == nil {
		return e
	}
	ctx, stop := context.WithCancel(ctx)
	e := prepare(addr, log)
	e.stopped = stop
	go func() {
		for told := false; ; {
			l, err := net.Listen("tcp", addr)
			if err == nil {
				if ctx.Err() != nil {
					_ = l.Close() // nothing came
					return
				}
				e.serve(l)
				return
			}
			if !told {
				told = true
				log.Warn("nobody can watch this process; it is tried again", "err", inUse(addr, err))
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
	var errno syscall.Errno
	if errors.As(err, &errno) {
		err = errno
	}
	return fmt.Errorf("cannot listen on %s for metrics: %w; choose another --metrics", addr, err)
}

func prepare(addr string, log *slog.Logger) *Eye {
	e := &Eye{addr: addr, stopped: func() {}}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(Gatherer(e.probe.Load), promhttp.HandlerOpts{
		ErrorLog: ErrorLog(log), ErrorHandling: promhttp.ContinueOnError,
		DisableCompression: true, // whoever scrapes is near, and it would cost a third more
		// Who scrapes while others do has the same numbers, and who reads slowly has them from a copy: neither keeps
		// the others waiting.
		MaxRequestsInFlight: MostScrapes, CoalesceGather: true, Timeout: patience,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { say(w, e.health(r.Context())) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { say(w, e.ready(r.Context())) })
	e.served = NewHTTPServer(mux)
	e.served.ErrorLog = ErrorLog(log)
	return e
}

const (
	// MostScrapes is how many may ask for metrics at the same time. The next is told to come again.
	MostScrapes = 4
	// patience is how long it may take to gather them, whose work is asked for less.
	patience = 10 * time.Second
)

// Gatherer gathers what a process shows whose work a probe asks, and what Go and the system know of it; nil: it has not
// begun its work.
func Gatherer(probe func() *Probe) prometheus.Gatherer {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		unchecked(probe))
	return r
}

func open(l net.Listener, addr string, log *slog.Logger) *Eye {
	e := prepare(addr, log)
	e.addr = l.Addr().String()
	e.serve(l)
	return e
}

func (e *Eye) serve(l net.Listener) { go func() { _ = e.served.Serve(l) }() } // ends with the Eye

// Addr is where it listens.
func (e *Eye) Addr() string { return e.addr }

// Show says whom to ask from now on. A nil Eye shows nothing.
func (e *Eye) Show(p *Probe) {
	if e != nil {
		e.probe.Store(p)
	}
}

// Close ends it. It returns nil.
func (e *Eye) Close() error {
	if e == nil {
		return nil
	}
	e.stopped()
	return e.served.Close()
}

// word is an answer to a probe.
type word struct {
	good bool
	why  string
}

func say(w http.ResponseWriter, a word) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !a.good {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintln(w, a.why)
}

// begins is what a process is that has not begun its work.
const begins = "the process begins"

func (e *Eye) health(ctx context.Context) word {
	p := e.probe.Load()
	if p == nil {
		return word{true, begins}
	}
	seen := p.Ask(ctx)
	if seen.Err != nil {
		return word{false, seen.Err.Error()}
	}
	if seen.Waits != "" {
		return word{true, seen.Waits}
	}
	return word{true, fmt.Sprintf("its work goes on; it answered after %v", seen.Took.Round(time.Microsecond))}
}

func (e *Eye) ready(ctx context.Context) word {
	p := e.probe.Load()
	if p == nil {
		return word{false, begins}
	}
	seen := p.Ask(ctx)
	switch {
	case seen.Err != nil:
		return word{false, seen.Err.Error()}
	case seen.Waits != "":
		return word{false, seen.Waits}
	case seen.NotReady != "":
		return word{false, seen.NotReady}
	}
	return word{true, seen.Does}
}

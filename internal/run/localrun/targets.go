package localrun

import (
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strconv"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/settings"
)

// Watched says how the run's processes let themselves be watched.
type Watched struct {
	// Metrics is where the coordinator shows how it does, as HOST:PORT; the others do so at the next ports, or, if the
	// port is 0, each at a free one. "": nobody can look.
	Metrics string `group:"run" placeholder:"HOST:PORT"`
	// LogFormat is that of the processes' logs; "": text.
	LogFormat httpdebug.Format `group:"run" default:"text" enum:"text,json" placeholder:"HOW"`
}

// flags are how a process is told of its log.
func (w *Watched) flags() []string {
	if w.LogFormat == "" {
		return nil
	}
	return []string{"--log-format", string(w.LogFormat)}
}

// seat is a place of the run.
type seat struct {
	role  wire.Role
	index int
}

func (s seat) String() string {
	if s.role == wire.RoleCoordinator {
		return string(s.role)
	}
	return fmt.Sprintf("%s:%d", s.role, s.index)
}

// targets are where the run's processes can be watched: an address for each place, whoever is in it. Prometheus reads
// them in the run's folder.
type targets struct {
	host    string
	port    int // the coordinator's; 0: each has a free one
	servers int

	mu     sync.Mutex // guards what follows
	folder string     // of the run; "": not yet
	job    string
	addrs  map[seat]string  // "": it has none
	order  []seat           // those that have one
	left   map[seat]bool    // nobody comes there any more
	held   []io.Closer      // ports
	listed []metrics.Target // as the file has it
	failed bool             // it could not be written
}

const mostPort = 1<<16 - 1

// newTargets finds addresses for all places that a run has at its begin, and refuses ports that are in use; nil: nobody
// is to look.
func newTargets(w *Watched, s *settings.Run, warn func(string)) (t *targets, err error) {
	if w.Metrics == "" {
		return nil, nil
	}
	addr, err := httpdebug.Loopback(w.Metrics)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", perdure.ErrUsage, err)
	}
	host, port, _ := net.SplitHostPort(addr) // Loopback has looked
	t = &targets{host: host, servers: s.Job.Servers, job: s.Job.ID, addrs: map[seat]string{}, left: map[seat]bool{}}
	last := 1 + s.Job.Servers + s.Job.Slots
	if t.port, err = strconv.Atoi(port); err != nil || t.port < 0 || t.port > mostPort-last {
		return nil, fmt.Errorf("%w: --metrics %s: choose a port of 1 to %d, since each process has one, or 0 for "+
			"free ones", perdure.ErrUsage, w.Metrics, mostPort-last)
	}
	if warn != nil && !transport.IsLoopback(addr) {
		warn(fmt.Sprintf("others can reach the metrics at %s, and nothing is asked of them; use a network that "+
			"you trust", host))
	}
	seats := []seat{{wire.RoleCoordinator, 0}}
	for i := range s.Job.Servers {
		seats = append(seats, seat{wire.RoleServer, i})
	}
	for i := range s.Job.Slots {
		seats = append(seats, seat{wire.RoleWorker, i})
	}
	for _, p := range seats {
		if err := t.try(p); err != nil {
			return nil, errors.Join(err, t.Close())
		}
	}
	return t, nil
}

// try refuses a run one of whose ports cannot be had.
func (t *targets) try(p seat) error {
	if t.port == 0 {
		addr, hold, err := transport.Reserve(t.host)
		if err != nil {
			return fmt.Errorf("cannot listen on %s for metrics: %w; choose another --metrics", t.host, plain.Cause(err))
		}
		t.addrs[p], t.held = addr, append(t.held, hold)
		return nil
	}
	l, err := net.Listen("tcp", t.fixed(p))
	if err != nil {
		return fmt.Errorf("cannot listen on %s for the metrics of %s: %w; choose another --metrics", t.fixed(p), p,
			plain.Cause(err))
	}
	return l.Close()
}

// fixed is a place's address, if there is a port for it.
func (t *targets) fixed(p seat) string {
	port := t.port
	switch p.role {
	case wire.RoleServer:
		port += 1 + p.index
	case wire.RoleWorker:
		port += 1 + t.servers + p.index
	}
	if port > mostPort {
		return ""
	}
	return net.JoinHostPort(t.host, strconv.Itoa(port))
}

// at is where the process of a place shows how it does; "": nowhere.
func (t *targets) at(role wire.Role, index int) (addr string) {
	if t == nil {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := seat{role, index}
	addr, known := t.addrs[p]
	switch {
	case !known && t.port != 0:
		addr = t.fixed(p)
	case !known:
		var hold io.Closer
		var err error
		if addr, hold, err = transport.Reserve(t.host); err == nil {
			t.held = append(t.held, hold)
		} else {
			addr = "" // a worker that joins works without being watched
		}
	}
	t.addrs[p] = addr
	if addr != "" {
		t.list(p)
	}
	return addr
}

// list has a place in the file. It needs t.mu.
func (t *targets) list(p seat) {
	for _, o := range t.order {
		if o == p {
			return
		}
	}
	t.order = append(t.order, p)
}

// show writes the file of a run's folder, if it is to be another one. places are what was told of the run's.
func (t *targets) show(places []wire.PlaceProgress, tell func(string)) {
	if t == nil {
		return
	}
	if err := t.publish(places); err != nil {
		tell(fmt.Sprintf("cannot say where the processes can be watched (%v); it is tried again", err))
	}
}

func (t *targets) publish(places []wire.PlaceProgress) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range places {
		t.left[seat{p.Role, p.Index}] = p.State == "left"
	}
	all := []metrics.Target{}
	for _, p := range t.order {
		if !t.left[p] {
			all = append(all, metrics.NewTarget(t.job, string(p.role), strconv.Itoa(p.index), t.addrs[p]))
		}
	}
	return t.write(all)
}

// write replaces the file. It needs t.mu.
func (t *targets) write(all []metrics.Target) error {
	if t.folder == "" || t.listed != nil && reflect.DeepEqual(t.listed, all) {
		return nil
	}
	err := metrics.WriteTargets(t.folder, all)
	if err == nil {
		t.listed, t.failed = all, false
		return nil
	}
	if t.failed {
		return nil // it was told
	}
	t.failed = true
	return fmt.Errorf("run folder: %w", err)
}

// in says in which folder the file is.
func (t *targets) in(folder string) {
	if t != nil {
		t.folder = folder
	}
}

// Close takes all places off, and gives the ports back.
func (t *targets) Close() (err error) {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.listed != nil {
		err = t.write([]metrics.Target{})
	}
	for _, h := range t.held {
		err = errors.Join(err, h.Close())
	}
	t.held = nil
	return err
}

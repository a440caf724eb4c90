package localrun

import (
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"strconv"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/internal/run/settings"
)

// Observability configures the logs and the metrics of the run's processes.
type Observability struct {
	// Metrics is the address of the coordinator's metrics, as HOST:PORT. The other processes use the next ports or, if
	// the port is 0, any free ones. "" means no metrics.
	Metrics string `group:"run" placeholder:"HOST:PORT"`
	// LogFormat is the format of the processes' logs; "": text.
	LogFormat httpdebug.Format `group:"run" default:"text" enum:"text,json" placeholder:"HOW"`
}

// flags returns the flags of a process for its log.
func (w *Observability) flags() []string {
	if w.LogFormat == "" {
		return nil
	}
	return []string{"--log-format", string(w.LogFormat)}
}

// member is a role and index of the run, which successive processes may hold.
type member struct {
	role  wire.Role
	index int
}

func (s member) String() string {
	if s.role == wire.RoleCoordinator {
		return string(s.role)
	}
	return fmt.Sprintf("%s:%d", s.role, s.index)
}

// targets holds the metrics address of each seat of the run, whichever process holds it. Prometheus reads the addresses
// in the run's directory.
type targets struct {
	host    string
	port    int // the coordinator's; 0: any free port for each
	servers int

	mu      sync.Mutex // guards the fields below
	folder  string     // of the run; "": not yet known
	job     string
	addrs   map[member]string // "": it has no address
	order   []member          // seats with an address
	retired map[member]bool   // no process will hold the seat again
	held    []io.Closer       // ports
	listed  []metrics.Target  // content of the file
	failed  bool              // the file could not be written
}

const maxPort = 1<<16 - 1

// newTargets chooses addresses for all seats of a run at its start. It returns an error if a port is in use, and nil
// without metrics.
func newTargets(w *Observability, s *settings.Run, warn func(string)) (t *targets, err error) {
	if w.Metrics == "" {
		return nil, nil
	}
	addr, err := httpdebug.Loopback(w.Metrics)
	if err != nil {
		return nil, perdure.Usagef("%w", err)
	}
	host, port, _ := net.SplitHostPort(addr) // Loopback has checked it
	t = &targets{
		host: host, servers: s.Job.Servers, job: s.Job.ID, addrs: map[member]string{},
		retired: map[member]bool{},
	}
	last := 1 + s.Job.Servers + s.Job.Slots
	if t.port, err = strconv.Atoi(port); err != nil || t.port < 0 || t.port > maxPort-last {
		return nil, perdure.Usagef("--metrics %s: each process needs a port; choose 1 to %d for the first one, or 0 "+
			"for any free ports", w.Metrics, maxPort-last)
	}
	if warn != nil && !transport.IsLoopback(addr) {
		warn(fmt.Sprintf("other machines can reach the metrics at %s without credentials; use a network that you "+
			"trust", host))
	}
	seats := []member{{wire.RoleCoordinator, 0}}
	for i := range s.Job.Servers {
		seats = append(seats, member{wire.RoleServer, i})
	}
	for i := range s.Job.Slots {
		seats = append(seats, member{wire.RoleWorker, i})
	}
	for _, p := range seats {
		if err := t.try(p); err != nil {
			return nil, errors.Join(err, t.Close())
		}
	}
	return t, nil
}

// try returns an error if the member's port is not available.
func (t *targets) try(p member) error {
	if t.port == 0 {
		addr, hold, err := transport.Reserve(t.host)
		if err != nil {
			return fmt.Errorf("cannot listen on %s for metrics: %w; choose another address for --metrics", t.host,
				humanize.Cause(err))
		}
		t.addrs[p], t.held = addr, append(t.held, hold)
		return nil
	}
	l, err := net.Listen("tcp", t.fixed(p))
	if err != nil {
		return fmt.Errorf("cannot listen on %s for the metrics of %s: %w; choose another address for --metrics",
			t.fixed(p), p,
			humanize.Cause(err))
	}
	return l.Close()
}

// fixed returns a member's address, or "" if it has no valid port.
func (t *targets) fixed(p member) string {
	port := t.port
	switch p.role {
	case wire.RoleServer:
		port += 1 + p.index
	case wire.RoleWorker:
		port += 1 + t.servers + p.index
	}
	if port > maxPort {
		return ""
	}
	return net.JoinHostPort(t.host, strconv.Itoa(port))
}

// addrOf returns the metrics address of a seat; "" if it has none.
func (t *targets) addrOf(role wire.Role, index int) (addr string) {
	if t == nil {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := member{role, index}
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
			addr = "" // a worker that joins works without metrics
		}
	}
	t.addrs[p] = addr
	if addr != "" && !slices.Contains(t.order, p) {
		t.order = append(t.order, p)
	}
	return addr
}

// update writes the file in the run's directory if its content has changed. places are those that the coordinator
// reported.
func (t *targets) update(places []wire.MemberProgress, tell func(string)) {
	if t == nil {
		return
	}
	if err := t.publish(places); err != nil {
		tell(fmt.Sprintf("cannot write the addresses of the processes' metrics (%v); trying again", err))
	}
}

func (t *targets) publish(places []wire.MemberProgress) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range places {
		t.retired[member{p.Role, p.Index}] = p.State == "left"
	}
	all := []metrics.Target{}
	for _, p := range t.order {
		if !t.retired[p] {
			all = append(all, metrics.NewTarget(t.job, string(p.role), strconv.Itoa(p.index), t.addrs[p]))
		}
	}
	return t.writeLocked(all)
}

// writeLocked replaces the file. The caller must hold t.mu.
func (t *targets) writeLocked(all []metrics.Target) error {
	if t.folder == "" || t.listed != nil && reflect.DeepEqual(t.listed, all) {
		return nil
	}
	err := metrics.WriteTargets(t.folder, all)
	if err == nil {
		t.listed, t.failed = all, false
		return nil
	}
	if t.failed {
		return nil // already reported
	}
	t.failed = true
	return fmt.Errorf("run directory: %w", err)
}

// setDir sets the directory of the file.
func (t *targets) setDir(dir string) {
	if t != nil {
		t.folder = dir
	}
}

// Close removes all seats from the file and releases the ports.
func (t *targets) Close() (err error) {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.listed != nil {
		err = t.writeLocked([]metrics.Target{})
	}
	for _, h := range t.held {
		err = errors.Join(err, h.Close())
	}
	t.held = nil
	return err
}

package host

import (
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/httpdebug"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/watch"
	"github.com/perdure/perdure/worker"
)

// logsDir is where the processes' logs are, in the host's folder.
const logsDir = "logs"

// specs says what runs at each place.
func (h *Host) specs() (all []supervisor.Spec, err error) {
	for i := range h.Servers {
		s, err := h.server(i)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	for i := range h.Workers {
		s, err := h.worker(i)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// server says what runs as a server.
func (h *Host) server(index int) (s supervisor.Spec, err error) {
	listen, err := h.listens(index)
	if err != nil {
		return s, err
	}
	if err := free(listen); err != nil {
		return s, err
	}
	args := []string{"--listen", listen}
	if h.Advertise != "" {
		told, err := shifted("--advertise", h.Advertise, index)
		if err != nil {
			return s, err
		}
		args = append(args, "--advertise", told)
	}
	if h.Zone != "" {
		args = append(args, "--zone", h.Zone)
	}
	if h.Notice.For > 0 {
		args = append(args, "--notice", h.Notice.For.String())
	}
	return h.own(wire.RoleServer, index, index, args...)
}

// worker says what runs as a worker: perdure's, or the user's program, which is told where the job is.
func (h *Host) worker(index int) (s supervisor.Spec, err error) {
	at := h.Servers + index
	if len(h.Command) == 0 {
		return h.own(wire.RoleWorker, index, at, "--waits")
	}
	s = h.spec(wire.RoleWorker, index, h.Command)
	s.Env = append(s.Env, worker.EnvCoordinator+"="+h.Join)
	if h.secret != "" {
		s.Env = append(s.Env, worker.EnvSecretFile+"="+h.secret)
	}
	s.Env = append(s.Env, localrun.EnvRun+"="+h.Dir, fmt.Sprintf("LOCAL_RANK=%d", index),
		fmt.Sprintf("LOCAL_WORLD_SIZE=%d", h.Workers))
	if h.KeysDir != "" {
		s.Env = append(s.Env, worker.EnvKeys+"="+h.KeysDir)
	}
	addr, err := h.metricsAt(at)
	if addr != "" {
		s.Env = append(s.Env, watch.EnvMetrics+"="+addr)
	}
	return s, err
}

// own says what runs as a process of perdure's own, which is the host's at-th.
func (h *Host) own(role wire.Role, index, at int, more ...string) (s supervisor.Spec, err error) {
	beside := h.Servers
	if role == wire.RoleWorker {
		beside = h.Workers
	}
	args := []string{h.Program, string(role), "--join", h.Join}
	if h.secret != "" {
		args = append(args, "--secret-file", h.secret)
	}
	if h.KeysDir != "" {
		args = append(args, "--keys", h.KeysDir)
	}
	args = append(append(args, "--beside", strconv.Itoa(beside)), more...)
	if h.LogFormat != "" {
		args = append(args, "--log-format", string(h.LogFormat))
	}
	addr, err := h.metricsAt(at)
	if addr != "" {
		args = append(args, "--metrics", addr)
	}
	return h.spec(role, index, args), err
}

func (h *Host) spec(role wire.Role, index int, command []string) supervisor.Spec {
	s := supervisor.Spec{
		Role: role, Index: index, Command: command, Output: h.Output, Env: []string{wire.HostVariable + "=" + h.name},
	}
	if h.Output == nil {
		s.LogPath = filepath.Join(h.Dir, logsDir, name(role, index)+".log")
	}
	return s
}

// listens is where a server listens.
func (h *Host) listens(index int) (string, error) {
	if h.Listen != "" {
		return shifted("--listen", h.Listen, index)
	}
	for _, addr := range transport.Addresses(h.Join) {
		if host := transport.LeadingAddress(addr); host != "" {
			return net.JoinHostPort(host, "0"), nil
		}
	}
	return "", fmt.Errorf("%w: it is not known which address of this machine leads to %s; say where servers listen "+
		"with --listen HOST:PORT", perdure.ErrUsage, strings.Join(transport.Addresses(h.Join), ","))
}

// free refuses an address that somebody else has.
func free(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w; choose another --listen", addr, plain.Cause(err))
	}
	return l.Close()
}

// shifted is the address of the by-th of several that follow one another; one without a port, or with port 0,
// is that of all.
func shifted(flag, addr string, by int) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		host, port = addr, "0"
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if n > 0 {
		n += uint64(by)
	}
	if err != nil || host == "" || n > mostPort {
		return "", fmt.Errorf("%w: %s %s: write HOST:PORT; each server has the port after that of the one before",
			perdure.ErrUsage, flag, addr)
	}
	return net.JoinHostPort(host, strconv.FormatUint(n, 10)), nil
}

const mostPort = 1<<16 - 1

// metricsAt is where the host's at-th process shows how it does; "": nowhere. The host itself has the port
// before those of its processes.
func (h *Host) metricsAt(at int) (string, error) {
	if h.Watch.Metrics == "" {
		return "", nil
	}
	addr, err := httpdebug.Loopback(h.Watch.Metrics)
	if err != nil {
		return "", fmt.Errorf("%w: %w", perdure.ErrUsage, err)
	}
	host, port, _ := net.SplitHostPort(addr) // Loopback has looked
	n, err := strconv.ParseUint(port, 10, 16)
	if n += uint64(at) + 1; err != nil || port == "0" || n > mostPort {
		return "", fmt.Errorf("%w: --metrics %s: choose a port of 1 to %d: each process has one, after the host's",
			perdure.ErrUsage, h.Watch.Metrics, mostPort-h.Servers-h.Workers)
	}
	return net.JoinHostPort(host, strconv.FormatUint(n, 10)), nil
}

// targets are where the host and its processes can be watched. What is there is the same for as long as the host lives,
// so an id is the host's name, and that of a process after it, and not the place that it has in the job.
func (h *Host) targets(job string) (all []metrics.Target, err error) {
	own, err := httpdebug.Loopback(h.Watch.Metrics)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", perdure.ErrUsage, err)
	}
	all = append(all, metrics.NewTarget(job, hostRole, h.Called, transport.AddressUnder(own, h.Advertise)))
	for i := range h.Servers + h.Workers {
		role, id := wire.RoleServer, i
		if i >= h.Servers {
			role, id = wire.RoleWorker, i-h.Servers
		}
		addr, err := h.metricsAt(i)
		if err != nil {
			return nil, err
		}
		all = append(all, metrics.NewTarget(job, string(role), h.Called+"/"+name(role, id),
			transport.AddressUnder(addr, h.Advertise)))
	}
	return all, nil
}

// showTargets says for Prometheus where the host and its processes can be watched.
func (h *Host) showTargets(job string) error {
	if h.Watch.Metrics == "" {
		return nil
	}
	all, err := h.targets(job)
	if err == nil {
		h.listed = true
		err = metrics.WriteTargets(h.Dir, all)
	}
	return err
}

// hideTargets says that nobody is there any more.
func (h *Host) hideTargets() {
	if !h.listed {
		return
	}
	if err := metrics.WriteTargets(h.Dir, []metrics.Target{}); err != nil {
		h.Log.Warn("who has ended is still listed for Prometheus", "err", err)
	}
}

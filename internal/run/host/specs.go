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
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/watch"
	"github.com/perdure/perdure/worker"
)

// logsDir is the directory of the processes' logs in the host's directory.
const logsDir = "logs"

// specs returns all processes of the host.
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

// server returns the specification of a server.
func (h *Host) server(index int) (s supervisor.Spec, err error) {
	listen, err := h.listens(index)
	if err != nil {
		return s, err
	}
	if err := checkFree(listen); err != nil {
		return s, err
	}
	args := []string{"--listen", listen}
	if h.Advertise != "" {
		sent, err := offsetAddress("--advertise", h.Advertise, index)
		if err != nil {
			return s, err
		}
		args = append(args, "--advertise", sent)
	}
	if h.Zone != "" {
		args = append(args, "--zone", h.Zone)
	}
	if h.Notice.For > 0 {
		args = append(args, "--notice", h.Notice.For.String())
	}
	return h.builtinSpec(wire.RoleServer, index, index, args...)
}

// worker returns the specification of a worker: perdure's, or the user's program with the job's address in its
// environment.
func (h *Host) worker(index int) (s supervisor.Spec, err error) {
	at := h.Servers + index
	if len(h.Command) == 0 {
		return h.builtinSpec(wire.RoleWorker, index, at, "--waits")
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

// builtinSpec returns the specification of one of perdure's own processes, which is the host's at-th process.
func (h *Host) builtinSpec(role wire.Role, index, at int, more ...string) (s supervisor.Spec, err error) {
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

// listens returns the listen address of a server.
func (h *Host) listens(index int) (string, error) {
	if h.Listen != "" {
		return offsetAddress("--listen", h.Listen, index)
	}
	for _, addr := range transport.ParseAddresses(h.Join) {
		if host := transport.SourceAddress(addr); host != "" {
			return net.JoinHostPort(host, "0"), nil
		}
	}
	return "", perdure.Usagef("cannot determine which address of this machine reaches %s; set the servers' listen "+
		"address with --listen HOST:PORT", strings.Join(transport.ParseAddresses(h.Join), ","))
}

// checkFree returns an error if another process uses an address.
func checkFree(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w; choose another address for --listen", addr, humanize.Cause(err))
	}
	return l.Close()
}

// offsetAddress returns the by-th of several consecutive addresses. An address without a port or with port 0 is
// returned for all of them.
func offsetAddress(flag, addr string, by int) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		host, port = addr, "0"
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if n > 0 {
		n += uint64(by)
	}
	if err != nil || host == "" || n > maxPort {
		return "", perdure.Usagef("invalid %s %s: write HOST:PORT; servers use consecutive ports, starting with that "+
			"one", flag, addr)
	}
	return net.JoinHostPort(host, strconv.FormatUint(n, 10)), nil
}

const maxPort = 1<<16 - 1

// metricsAt returns the metrics address of the host's at-th process, or "" without metrics. The host itself
// uses the port before those of its processes.
func (h *Host) metricsAt(at int) (string, error) {
	if h.Watch.Metrics == "" {
		return "", nil
	}
	addr, err := httpdebug.Loopback(h.Watch.Metrics)
	if err != nil {
		return "", perdure.Usagef("%w", err)
	}
	host, port, _ := net.SplitHostPort(addr) // Loopback has checked it
	n, err := strconv.ParseUint(port, 10, 16)
	if n += uint64(at) + 1; err != nil || port == "0" || n > maxPort {
		return "", perdure.Usagef("--metrics %s: choose a port from 1 to %d: the host's processes use the ports "+
			"after it", h.Watch.Metrics, maxPort-h.Servers-h.Workers)
	}
	return net.JoinHostPort(host, strconv.FormatUint(n, 10)), nil
}

// targets returns the metrics addresses of the host and its processes. They stay the same for the life of the host, so
// a process's ID consists of the host's name and the process's name. It does not use the process's index in the job.
func (h *Host) targets(job string) (all []metrics.Target, err error) {
	own, err := httpdebug.Loopback(h.Watch.Metrics)
	if err != nil {
		return nil, perdure.Usagef("%w", err)
	}
	all = append(all, metrics.NewTarget(job, hostRole, h.Called, transport.ReachableAddress(own, h.Advertise)))
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
			transport.ReachableAddress(addr, h.Advertise)))
	}
	return all, nil
}

// showTargets lists the host and its processes for Prometheus.
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

// hideTargets removes them from the list.
func (h *Host) hideTargets() {
	if !h.listed {
		return
	}
	if err := metrics.WriteTargets(h.Dir, []metrics.Target{}); err != nil {
		h.Log.Warn("cannot remove this host from the Prometheus target list", "err", err)
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/secrets"
	"github.com/perdure/perdure/internal/run/settings"
)

// errExported ends a run whose model is safe.
var errExported = errors.New("the model is exported")

// localJob is one run of a job on this machine, as its parent sees it.
type localJob struct {
	s       settings.Run
	dir     *rundir.Dir
	job     *supervisor.Job
	addr    string // the coordinator's
	web     string // the control API's
	view    view
	secrets *secrets.Set
	held    []io.Closer // addresses that outlive the processes that listen there
	tally

	safe     bool          // its model is: nothing needs its log any more
	complete chan struct{} // closed when nothing is left to do but to export
	once     sync.Once
}

// startJob makes the run's folder and starts all processes. workers says
// whether worker processes are among them.
func startJob(ctx context.Context, s settings.Run, out string, workers bool, v view) (j *localJob, err error) {
	frames, err := listen(s.Listen)
	if err != nil {
		return nil, err
	}
	if !loopback(frames.addr) {
		fmt.Fprintf(os.Stderr, "perdure: others can reach %s: they are asked for the run's secret, but nothing is encrypted; use a network that you trust\n", frames.addr)
	}
	web, err := listen(localAny)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(findRoom(&s, workers, v), sizeLog(&s, out)); err != nil {
		return nil, err
	}
	dir, err := rundir.Create(out)
	if err != nil {
		return nil, err
	}
	secrets, err := secrets.Draw(out)
	if err != nil {
		return nil, err
	}
	if s.Resumed != "" {
		if err := copyCheckpoint(filepath.Join(s.Resumed, "checkpoint"), dir.Checkpoint()); err != nil {
			return nil, err
		}
	}
	logPort, err := placeLog(ctx, &s, out, secrets.Job)
	if err != nil { // the folder has nothing yet, and may be asked for again
		return nil, errors.Join(err, dir.Close(), os.RemoveAll(out))
	}
	if err := dir.WriteRun(s); err != nil {
		return nil, err
	}
	faults, err := s.ParseFaults()
	if err != nil {
		return nil, err
	}
	network, err := s.Network(wire.RoleSupervisor, 0)
	if err != nil {
		return nil, err
	}
	j = &localJob{s: s, dir: dir, addr: frames.addr, web: web.addr, view: v, complete: make(chan struct{}), secrets: secrets, held: []io.Closer{frames.file, web.file, logPort, secrets}}
	j.tally.init()
	if err := os.WriteFile(filepath.Join(out, "control"), []byte(j.web+"\n"), 0o666); err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	var worker func(slot int) supervisor.Spec
	if workers {
		worker = func(slot int) supervisor.Spec {
			return j.spec(exe, out, wire.RoleWorker, slot, nil, "--slot", fmt.Sprint(slot), "--coordinator", j.addr)
		}
	}
	j.job, err = supervisor.NewJob(context.WithoutCancel(ctx), supervisor.JobConfig{
		Network: network, Coordinator: j.addr, Secret: secrets.Servers, Control: j.web, Faults: faults, Seed: s.Job.Seed, NoReplace: s.Job.NoReplace, Log: slog.New(slog.DiscardHandler),
		Worker: worker, LogAddr: logAddr(&s), LastCheckpoint: lastCheckpoint(&s),
		Watch: supervisor.Watcher{Event: j.onEvent, Report: j.onReport, Progress: j.onProgress},
	})
	if err != nil {
		return nil, err
	}
	return j, j.spawn(exe, out, frames, web, worker)
}

// socket is a listening socket that outlives the process that serves it.
type socket struct {
	addr string
	file *os.File
}

// localAny is a free port of this machine, for itself only.
const localAny = "127.0.0.1:0"

func listen(addr string) (s socket, err error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return s, fmt.Errorf("%w: --listen %s: write HOST:PORT, for example 127.0.0.1:7000", perdure.ErrUsage, addr)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return s, fmt.Errorf("%w: --listen %s: name the one address under which workers reach this machine", perdure.ErrUsage, addr)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return s, fmt.Errorf("cannot listen on %s: %w; choose another --listen", addr, plain.Cause(err))
	}
	defer l.Close()
	s.addr = l.Addr().String()
	s.file, err = l.(*net.TCPListener).File()
	return s, err
}

// loopback reports whether an address is one that only this machine reaches.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}

// spawn starts the processes; worker says what workers are, nil: there are none.
func (j *localJob) spawn(exe, out string, frames, web socket, worker func(slot int) supervisor.Spec) error {
	start := func(role wire.Role, index int, files []*os.File, args ...string) error {
		return j.job.Group().Start(j.spec(exe, out, role, index, files, args...))
	}
	if err := start(wire.RoleCoordinator, 0, []*os.File{frames.file, web.file}); err != nil {
		return err
	}
	if j.s.HasOwnLog() {
		spec := supervisor.Spec{
			Role: supervisor.RoleLog, Command: logCommand(&j.s, exe, out), LogPath: j.dir.LogFile(string(supervisor.RoleLog)),
			Files: j.secrets.Inherits(wire.RoleWorker), Grace: logGrace,
		}
		if err := j.job.Group().Start(spec); err != nil {
			return err
		}
	}
	host, _, err := net.SplitHostPort(j.addr)
	if err != nil {
		return err
	}
	for i := range j.s.Job.Servers {
		args := []string{"--index", fmt.Sprint(i), "--coordinator", j.addr, "--listen", net.JoinHostPort(host, "0")}
		if zone := j.s.ZoneOf(i); zone != "" {
			args = append(args, "--zone", zone)
		}
		if err := start(wire.RoleServer, i, nil, args...); err != nil {
			return err
		}
	}
	for i := range j.s.Job.Slots {
		if worker == nil {
			break
		}
		if i < len(j.s.Slots) && !j.s.Slots[i].Has(j.s.Cut) {
			continue // it had left before the checkpoint that the run goes on from
		}
		if err := j.job.Group().Start(worker(i)); err != nil {
			return err
		}
	}
	return nil
}

// spec says what runs at a place.
func (j *localJob) spec(exe, out string, role wire.Role, index int, files []*os.File, args ...string) supervisor.Spec {
	name := string(role)
	if role != wire.RoleCoordinator {
		name = fmt.Sprintf("%s-%d", role, index)
	}
	return supervisor.Spec{
		Role: role, Index: index, Command: append([]string{exe, string(role), "--run", out}, args...),
		LogPath: j.dir.LogFile(name), Files: slices.Concat(files, j.secrets.Inherits(role)),
	}
}

// runJob runs a training job to its end and returns its summary. When ctx ends it ends
// the job in order, and makes a last checkpoint; told twice, it does not wait for that.
func runJob(ctx context.Context, s settings.Run, out string, v view) (sum rundir.Summary, err error) {
	s.Job.AwaitExport, s.Job.FixedEnd = true, s.Until.Metric == ""
	hard, cancel := untilToldTwice(ctx)
	defer cancel()
	j, err := startJob(ctx, s, out, true, v)
	if j == nil || j.job == nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, j.close()) }()
	if err != nil {
		return sum, err
	}
	v.begin(j)
	ended := make(chan error, 1)
	go func() { ended <- j.job.Run() }()
	defer j.heed(ctx, hard)()
	defer j.byTime(ctx)()

	exportCtx, cancel := context.WithCancel(hard)
	defer cancel()
	type exported struct {
		m   model
		err error
	}
	done := make(chan exported, 1)
	go func() {
		select {
		case <-j.complete:
			m, err := j.export(exportCtx)
			done <- exported{m, err}
		case <-exportCtx.Done():
		}
	}()
	select {
	case err := <-ended:
		return sum, j.stopped(err)
	case e := <-done:
		if e.err != nil {
			j.job.End(e.err)
			return sum, j.stopped(<-ended)
		}
		j.job.Over()
		sum = j.summary(&e.m)
		j.job.End(errExported)
		<-ended
		if err := j.insist(hard, "summary.json", func() error { return j.dir.WriteSummary(sum) }); err != nil {
			return sum, err
		}
		j.safe = true
		v.end(j, sum)
		return sum, nil
	}
}

// close ends the processes, and lets go of their addresses and of the folder's files.
func (j *localJob) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	j.job.End(errExported) // does nothing if it has ended
	err := j.job.Group().Stop(ctx)
	j.leaveLog()
	for _, h := range j.held {
		err = errors.Join(err, h.Close())
	}
	j.view.close()
	return errors.Join(err, j.dir.Close())
}

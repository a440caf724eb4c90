// Package localrun runs a job on this machine, with its coordinator, servers and workers as child processes. The user's
// own programs may take the place of the workers. The package creates the run's directory, starts all processes,
// injects faults, replaces processes that die, keeps the record and shows it. At the end it exports the model and
// writes the summary.
//
//	r, err := localrun.Start(ctx, localrun.Options{Settings: s, Folder: "runs/first", Workers: true, View: v})
//	sum, err := r.Wait(ctx, atOnce)
//	err = r.Close()
//
// The processes of a job run the current executable, which must implement the roles: COMMAND coordinator, server,
// worker and log, with the flags that spawn passes (cmd/perdure, or a test). Start reports invalid settings before it
// starts anything, and leaves nothing running when it fails.
//
// Between Start and Close a Run is safe for concurrent use. One goroutine calls Wait, and calls Close after Wait
// returns. Instead of Wait, a caller may use Job().Run() and do the rest itself, as benchmarks do.
package localrun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/dashboard"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/terminal"
)

// ErrExported ends a run that is finished: its model is exported.
var ErrExported = errors.New("the model is exported")

// Options are the arguments of Start.
type Options struct {
	// Settings must have been checked, because Start does not check them again: Asked made them, or Check completed
	// them. If the workers are the user's own programs, Shape.Job made their job.
	Settings settings.Run
	Folder   string // directory of the run, empty or new
	Workers  bool   // the run starts workers that train its workload; otherwise they are the user's own programs
	Exec     string // shell command line that starts the user's program in each slot; "": the user starts it
	// View shows the run; nil: the run is not shown. The run owns the view and closes it: in Start if that fails,
	// otherwise in Close.
	View    terminal.View
	Watched Observability
	Warn    func(string) // shows warnings even if the user asked for no output; nil: they are dropped
	Live    LiveView
}

// Run is one run of a job on this machine, in the parent process.
type Run struct {
	s               settings.Run
	workers         bool
	ownPrograms     bool // the run starts programs of the user
	dir             *rundir.Dir
	store           runStore
	job             *supervisor.Job
	coordinatorAddr string // the coordinator's
	controlAddr     string // the control API's
	watched         Observability
	targets         *targets // nil: the processes have no metrics addresses
	view            terminal.View
	secrets         *locate.Secrets
	ring            *keys.Ring  // of an operator; nil: the job has no keys
	closers         []io.Closer // addresses that outlive the processes that listen there
	stats           *jobStats
	live            atomic.Pointer[dashboard.Dashboard] // nil: the run has no live view
	distributed     bool                                // the processes run on several hosts

	mu          sync.Mutex // guards recordWaits
	recordWaits bool       // the record waits for space on the disk of the run's directory

	safe     bool          // the model is safe, and the log is not needed any more
	complete chan struct{} // closed when only the export is left
	once     sync.Once
}

// Start creates the run's directory and starts all processes. If it fails, no process is left running and the view is
// closed.
func Start(ctx context.Context, o Options) (*Run, error) {
	o.Settings.Job.AwaitExport = true
	if o.Workers {
		o.Settings.Job.FixedEnd = o.Settings.Until.Metric == ""
	}
	r := &Run{
		s: o.Settings, workers: o.Workers, view: o.View, watched: o.Watched, complete: make(chan struct{}),
	}
	if r.view == nil {
		r.view = terminal.NopView{}
	}
	if left := leftoverLogLine(&r.s); o.Warn != nil && left != "" {
		o.Warn(left)
	}
	if err := findProgram(o.Exec); err != nil {
		return nil, errors.Join(err, r.closeAll())
	}
	frames, web, err := r.listen(o.Warn)
	var live *dashboard.Listener
	if err == nil {
		if live, err = ListenDashboard(o.Live.Listen, r.s.Reach.Keys); live != nil {
			r.closers = append(r.closers, live)
		}
	}
	if err == nil {
		r.ring, err = openKeys(ctx, r.s.Reach.Keys)
	}
	if err == nil {
		if r.targets, err = newTargets(&o.Watched, &r.s, o.Warn); r.targets != nil {
			r.closers = append(r.closers, r.targets)
		}
	}
	if err == nil {
		err = r.prepare(ctx, o.Folder)
	}
	if err != nil {
		return nil, errors.Join(err, r.closeAll())
	}
	showNotes(&r.s, o.Warn)
	exe, err := os.Executable()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot find the perdure executable: %w", err), r.closeAll())
	}
	var worker func(slot int) supervisor.Spec
	if r.workers {
		worker = func(slot int) supervisor.Spec {
			return r.spec(exe, o.Folder, wire.RoleWorker, slot, nil, "--slot", fmt.Sprint(slot), "--coordinator",
				r.coordinatorAddr)
		}
	}
	if r.ownPrograms = o.Exec != ""; r.ownPrograms {
		worker = func(slot int) supervisor.Spec { return r.ownProgram(o.Exec, slot) }
	}
	if err := r.supervise(context.WithoutCancel(ctx), r.controlAddr, worker, o.Exec != ""); err != nil {
		return nil, errors.Join(err, r.closeAll())
	}
	if err = (liveJob{r}).serveStarted(live, o.Live); err == nil {
		err = r.spawn(exe, o.Folder, frames, web, worker)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if d := r.live.Load(); d != nil {
		o.Live.ShowLink(d.URL())
	}
	r.view.Start(&r.s, r.dir.Path())
	r.targets.update(nil, r.showLine)
	return r, nil
}

// showNotes shows remarks about the checkpoints that a run starts with.
func showNotes(s *settings.Run, warn func(string)) {
	notes := []string{s.Checkpoints.SkippedNote, s.Checkpoints.LostNote}
	if s.Saved != nil {
		notes = append(notes, s.Saved.Note)
	}
	for _, note := range notes {
		if warn != nil && note != "" {
			warn(note)
		}
	}
}

// listen opens the coordinator's sockets.
func (r *Run) listen(warn func(string)) (frames, web socket, err error) {
	if frames, err = listen(r.s.Reach.Listen); err != nil {
		return frames, web, err
	}
	r.closers = append(r.closers, frames.file)
	text, err := ExposureWarning(frames.addr, &r.s.Reach)
	if err != nil {
		return frames, web, err
	}
	services := settings.Services{Store: r.s.Checkpoints.Store, Log: r.s.Log}
	plain, err := services.ExposureWarning(&r.s.Reach)
	if err != nil {
		return frames, web, err
	}
	for _, line := range []string{text, plain} {
		if warn != nil && line != "" {
			warn(line)
		}
	}
	if web, err = listen(AnyPort); err == nil {
		r.closers = append(r.closers, web.file)
	}
	r.coordinatorAddr, r.controlAddr = frames.addr, web.addr
	return frames, web, err
}

// openKeys opens the credentials of this process, and checks that the job's processes have theirs.
func openKeys(ctx context.Context, dir string) (*keys.Ring, error) {
	if dir == "" {
		return nil, nil
	}
	for _, role := range []wire.Role{wire.RoleCoordinator, wire.RoleServer, wire.RoleWorker} {
		if _, err := locate.OpenRing(dir, role); err != nil {
			return nil, err
		}
	}
	return locate.OpenWatchedRing(ctx, dir, wire.Role(keys.Operator), slog.New(slog.DiscardHandler))
}

// ExposureWarning returns a warning if other machines can reach an address, or "". It returns an error if they must
// not.
func ExposureWarning(addr string, of *settings.Reach) (text string, err error) {
	switch {
	case transport.IsLoopback(addr) || of.Keys != "":
		return "", nil
	case !of.Insecure:
		return "", perdure.Usagef("other machines can reach %s, and nothing is encrypted: create keys with perdure "+
			"keys new DIR and use --keys DIR, or use --insecure if you trust everyone on that network", addr)
	}
	return fmt.Sprintf("INSECURE: other machines can reach %s: they need the run's secret, but nothing is encrypted, "+
		"and anyone who can listen on the network learns the secret", addr), nil
}

// secretsOf returns a new run's secrets: those stored with its keys if there are any, or new ones.
func secretsOf(of *settings.Reach) (wire.Keys, error) {
	if of.Keys == "" {
		return locate.NewKeys(), nil
	}
	beside := filepath.Join(keys.RoleDir(of.Keys, keys.Coordinator), locate.SecretFile)
	if _, err := os.Stat(beside); err != nil {
		return locate.NewKeys(), nil
	}
	return locate.ReadSecrets(beside, "", wire.RoleServer)
}

// prepare creates the run's directory with all files that the processes need.
func (r *Run) prepare(ctx context.Context, folder string) (err error) {
	if err := errors.Join(checkAndShowMemory(&r.s, r.workers, r.view), checkLogSpace(&r.s, folder)); err != nil {
		return err
	}
	if r.dir, err = rundir.Create(folder); err != nil {
		return err
	}
	known, err := secretsOf(&r.s.Reach)
	if err != nil {
		return err
	}
	if r.secrets, err = locate.WriteSecrets(folder, known); err != nil {
		return err
	}
	r.closers = append(r.closers, r.secrets)
	var logPort io.Closer
	if r.store, err = openRunStore(ctx, &r.s, folder, false); err == nil {
		if logPort, err = chooseLogAddr(ctx, &r.s, folder, r.secrets.Job); err != nil {
			err = errors.Join(err, r.store.release())
		}
	}
	if err != nil { // the directory is still empty, and the next run may use it
		err = errors.Join(err, r.dir.Close(), os.RemoveAll(folder))
		r.dir = nil
		return err
	}
	r.closers = append(r.closers, logPort)
	if err := r.dir.WriteRun(r.s); err != nil {
		return err
	}
	r.targets.setDir(folder)
	r.stats = newStats(&r.s, time.Now())
	if err := os.WriteFile(filepath.Join(folder, "control"), []byte(r.controlAddr+"\n"), 0o666); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	return nil
}

// supervise creates the job, whose processes are children of this one. worker returns the command of a worker; nil
// means that there are none. If control is set, the coordinator's control API is polled.
func (r *Run) supervise(
	ctx context.Context, control string, worker func(slot int) supervisor.Spec, own bool,
) error {
	faults, err := r.s.ParseFaults()
	if err != nil {
		return err
	}
	network, err := r.s.Network(wire.RoleSupervisor, 0, r.ring)
	if err != nil {
		return err
	}
	r.job, err = supervisor.NewJob(ctx, supervisor.JobConfig{
		Network: network, Coordinator: r.coordinatorAddr, Secret: r.secrets.Servers, Control: control, Ring: r.ring,
		Faults: faults,
		Seed:   r.s.Job.Seed, NoReplace: r.s.Job.NoReplace, Log: slog.New(slog.DiscardHandler),
		Worker: worker, OwnWorkers: own, LogAddr: logAddr(&r.s), LastCheckpoint: lastCheckpoint(&r.s),
		ProgramGrace: r.s.Checkpoints.Grace, SlotCuts: recovery.TraitsOf(&r.s.Job).CutsBySlot,
		Watch: supervisor.Watcher{Event: r.onEvent, Report: r.onReport, Progress: r.onProgress},
	})
	return err
}

// Wait runs the job to its end and returns its summary. When ctx ends, Wait ends the job gracefully with a final
// checkpoint, and returns an error that says how to continue. When atOnce ends, it does not wait for that. If the
// workers are the user's own programs, the model consists of the job's tables and is not evaluated.
func (r *Run) Wait(ctx, atOnce context.Context) (sum rundir.Summary, err error) {
	ended := make(chan error, 1)
	go func() { ended <- r.job.Run() }()
	defer r.endOnSignal(ctx, atOnce)()
	if r.workers {
		defer r.startTimers(ctx)()
	}
	exportCtx, cancel := context.WithCancel(atOnce)
	defer cancel()
	done := startExport(exportCtx, r)
	select {
	case err := <-ended:
		return sum, recordStop(r.job, r.stopped(err))
	case e := <-done:
		if e.err != nil {
			r.job.End(e.err)
			return sum, recordStop(r.job, r.stopped(<-ended))
		}
		r.job.MarkDone()
		var failed error
		if !r.workers {
			failed = awaitPrograms(atOnce, r.job.Group(), programGrace, exitNoticeAfter, func() {
				r.showLine(fmt.Sprintf("all clocks are finished; waiting for the programs to exit, for at most %v",
					programGrace))
			})
		}
		sum = r.Summary(e.model)
		r.job.End(ErrExported)
		<-ended
		if err := r.retryWrite(atOnce, "summary.json", func() error { return r.dir.WriteSummary(sum) }); err != nil {
			return sum, err
		}
		r.safe = true
		if r.workers {
			r.view.End(&sum, r.dir.Path(), r.job.Pending())
		}
		return sum, failed
	}
}

// exportResult is the result of an export.
type exportResult struct {
	model *finalModel
	err   error
}

// startExport exports the model once the job is complete.
func startExport(ctx context.Context, r *Run) <-chan exportResult {
	done := make(chan exportResult, 1)
	go func() {
		select {
		case <-r.complete:
			m, err := r.export(ctx)
			done <- exportResult{m, err}
		case <-ctx.Done():
		}
	}()
	return done
}

// Close ends the processes and releases their addresses and the run's files.
func (r *Run) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r.job.End(ErrExported) // has no effect if the job has ended
	err := r.job.Group().Stop(ctx)
	r.removeLogStreams()
	return errors.Join(err, r.closeAll())
}

// closeAll closes everything that the run has opened so far, and its view.
func (r *Run) closeAll() (err error) {
	r.view.Close()
	for _, h := range r.closers {
		err = errors.Join(err, h.Close())
	}
	if r.dir != nil {
		err = errors.Join(err, r.dir.Close())
	}
	return err
}

// Job returns the supervisor's job: its processes and the pending faults.
func (r *Run) Job() *supervisor.Job { return r.job }

// Settings returns the run's settings as Start completed them.
func (r *Run) Settings() *settings.Run { return &r.s }

// Dir returns the run's directory.
func (r *Run) Dir() *rundir.Dir { return r.dir }

// Secrets returns the run's secrets, and the file in which workers find theirs.
func (r *Run) Secrets() *locate.Secrets { return r.secrets }

// Coordinator returns the coordinator's address.
func (r *Run) Coordinator() string { return r.coordinatorAddr }

// Control returns a client of the run's control API.
func (r *Run) Control() *control.Client {
	return control.NewClient(r.controlAddr, r.secrets.Job, r.ring)
}

// Clock returns the job's clock as last reported by the coordinator.
func (r *Run) Clock() perdure.Clock { return r.stats.Progress().Clock }

// Progress returns the coordinator's last progress report.
func (r *Run) Progress() wire.Progress { return r.stats.Progress() }

// LastEvent returns the text of the latest event.
func (r *Run) LastEvent() string { return r.stats.LastEvent() }

// Complete returns a channel that is closed when all clocks are done and only the export is left.
func (r *Run) Complete() <-chan struct{} { return r.complete }

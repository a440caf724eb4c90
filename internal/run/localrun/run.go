// Package localrun runs a job on this machine: its coordinator, its servers and, unless they are the user's own
// programs, its workers, as child processes. It makes the run's folder, starts everything, carries faults out,
// starts anew what dies, keeps the record and shows it; and in the end it exports the model and writes how it all
// went.
//
//	r, err := localrun.Start(ctx, localrun.Options{Settings: s, Folder: "runs/first", Workers: true, View: v})
//	sum, err := r.Wait(ctx, atOnce)
//	err = r.Close()
//
// What runs as a process of the job is a program that knows the roles: COMMAND coordinator,
// server, worker and log, with the flags that spawn writes (cmd/perdure, or a test). Start
// refuses what cannot be before anything is started, and leaves nothing running when it fails.
//
// Between Start and Close a Run is safe for concurrent use. One goroutine calls Wait, and
// Close once it has returned; in place of Wait, one may call Job().Run() and see to the rest
// oneself, as benchmarks do.
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
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/run/reach"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/screen"
	"github.com/perdure/perdure/internal/run/settings"
)

// ErrOver ends a run from which nothing more is wanted: its model is exported, say.
var ErrOver = errors.New("the model is exported")

// Options are what Start is told.
type Options struct {
	// Settings are what somebody has checked: Asked has made them, or Check has completed them; or,
	// where workers are others' programs, Shape.Job has made their job. Start does not check again.
	Settings settings.Run
	Folder   string // of the run, empty or new
	Workers  bool   // workers are processes of the run, and train its workload; else they are others' programs
	Exec     string // a command line of the shell, that runs others' program in each slot; "": others start it
	// View shows the run; nil: nobody looks. From Start on it is the run's, which closes it: Start
	// itself where it fails, else Close.
	View    screen.View
	Watched Watched
	Warn    func(string) // tells people what they must know even if they want to see nothing; nil: nobody is told
}

// Run is one run of a job on this machine, as its parent sees it.
type Run struct {
	s       settings.Run
	workers bool
	dir     *rundir.Dir
	kept    kept
	job     *supervisor.Job
	addr    string // the coordinator's
	web     string // the control API's
	watched Watched
	targets *targets // nil: nobody can watch the processes
	view    screen.View
	secrets *reach.Secrets
	ring    *keys.Ring  // an operator's; nil: the job has no keys
	held    []io.Closer // addresses that outlive the processes that listen there
	tally   *jobTally

	mu          sync.Mutex // guards recordWaits
	recordWaits bool       // the run's folder has no room for it

	safe     bool          // its model is: nothing needs its log any more
	complete chan struct{} // closed when nothing is left to do but to export
	once     sync.Once
}

// Start makes the run's folder and starts all processes. Where it fails, nothing runs, and its
// view is closed.
func Start(ctx context.Context, o Options) (*Run, error) {
	o.Settings.Job.AwaitExport = true
	if o.Workers {
		o.Settings.Job.FixedEnd = o.Settings.Until.Metric == ""
	}
	r := &Run{
		s: o.Settings, workers: o.Workers, view: o.View, watched: o.Watched, complete: make(chan struct{}),
	}
	if r.view == nil {
		r.view = screen.Silent{}
	}
	if left := leftLog(&r.s); o.Warn != nil && left != "" {
		o.Warn(left)
	}
	if err := findProgram(o.Exec); err != nil {
		return nil, errors.Join(err, r.letGo())
	}
	frames, web, err := r.listen(o.Warn)
	if err == nil {
		r.ring, err = openKeys(ctx, r.s.Reach.Keys)
	}
	if err == nil {
		if r.targets, err = newTargets(&o.Watched, &r.s, o.Warn); r.targets != nil {
			r.held = append(r.held, r.targets)
		}
	}
	if err == nil {
		err = r.prepare(ctx, o.Folder)
	}
	if err != nil {
		return nil, errors.Join(err, r.letGo())
	}
	notes := []string{r.s.Checkpoints.Passed, r.s.Checkpoints.Lost}
	if s := r.s.Saved; s != nil {
		notes = append(notes, s.Note)
	}
	for _, note := range notes {
		if o.Warn != nil && note != "" {
			o.Warn(note)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("find this program: %w", err), r.letGo())
	}
	var worker func(slot int) supervisor.Spec
	if r.workers {
		worker = func(slot int) supervisor.Spec {
			return r.spec(exe, o.Folder, wire.RoleWorker, slot, nil, "--slot", fmt.Sprint(slot), "--coordinator",
				r.addr)
		}
	}
	if o.Exec != "" {
		worker = func(slot int) supervisor.Spec { return r.ownProgram(o.Exec, slot) }
	}
	if err := r.supervise(context.WithoutCancel(ctx), r.web, worker, o.Exec != ""); err != nil {
		return nil, errors.Join(err, r.letGo())
	}
	if err := r.spawn(exe, o.Folder, frames, web, worker); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	r.view.Begin(&r.s, r.dir.Path())
	r.targets.show(nil, r.tell)
	return r, nil
}

// listen opens the coordinator's sockets.
func (r *Run) listen(warn func(string)) (frames, web socket, err error) {
	if frames, err = listen(r.s.Reach.Listen); err != nil {
		return frames, web, err
	}
	r.held = append(r.held, frames.file)
	text, err := Exposed(frames.addr, &r.s.Reach)
	if err != nil {
		return frames, web, err
	}
	services := settings.Services{Store: r.s.Checkpoints.Store, Log: r.s.Log}
	plain, err := services.Exposed(&r.s.Reach)
	if err != nil {
		return frames, web, err
	}
	for _, line := range []string{text, plain} {
		if warn != nil && line != "" {
			warn(line)
		}
	}
	if web, err = listen(AnyPort); err == nil {
		r.held = append(r.held, web.file)
	}
	r.addr, r.web = frames.addr, web.addr
	return frames, web, err
}

// openKeys opens what this process shows to others, and checks that its processes have theirs.
func openKeys(ctx context.Context, dir string) (*keys.Ring, error) {
	if dir == "" {
		return nil, nil
	}
	for _, role := range []wire.Role{wire.RoleCoordinator, wire.RoleServer, wire.RoleWorker} {
		if _, err := reach.OpenRing(dir, role); err != nil {
			return nil, err
		}
	}
	return reach.Ring(ctx, dir, wire.Role(keys.Operator), slog.New(slog.DiscardHandler))
}

// Exposed says what to know of an address that others than this machine reach, and refuses one that they must not; "":
// nothing.
func Exposed(addr string, of *settings.Reach) (text string, err error) {
	switch {
	case transport.IsLoopback(addr) || of.Keys != "":
		return "", nil
	case !of.Insecure:
		return "", fmt.Errorf("%w: others can reach %s, and nothing is encrypted: make keys with perdure keys new DIR "+
			"and write --keys DIR, or --insecure if you trust everybody on that network", perdure.ErrUsage, addr)
	}
	return fmt.Sprintf("INSECURE: others can reach %s: they are asked for the run's secret, but nothing is encrypted, "+
		"and whoever can listen there has the secret, too", addr), nil
}

// secretsOf are a new run's secrets: those beside its keys, where there are some, or new ones.
func secretsOf(of *settings.Reach) (wire.Keys, error) {
	if of.Keys == "" {
		return reach.NewKeys(), nil
	}
	beside := filepath.Join(keys.Folder(of.Keys, keys.Coordinator), reach.SecretFile)
	if _, err := os.Stat(beside); err != nil {
		return reach.NewKeys(), nil
	}
	return reach.ReadSecrets(beside, "", wire.RoleServer)
}

// prepare makes the run's folder, with all that the processes find there.
func (r *Run) prepare(ctx context.Context, folder string) (err error) {
	if err := errors.Join(findRoom(&r.s, r.workers, r.view), sizeLog(&r.s, folder)); err != nil {
		return err
	}
	if r.dir, err = rundir.Create(folder); err != nil {
		return err
	}
	known, err := secretsOf(&r.s.Reach)
	if err != nil {
		return err
	}
	if r.secrets, err = reach.PutSecrets(folder, known); err != nil {
		return err
	}
	r.held = append(r.held, r.secrets)
	var logPort io.Closer
	if r.kept, err = keep(ctx, &r.s, folder, false); err == nil {
		if logPort, err = placeLog(ctx, &r.s, folder, r.secrets.Job); err != nil {
			err = errors.Join(err, r.kept.leave())
		}
	}
	if err != nil { // the folder has nothing yet, and may be asked for again
		err = errors.Join(err, r.dir.Close(), os.RemoveAll(folder))
		r.dir = nil
		return err
	}
	r.held = append(r.held, logPort)
	if err := r.dir.WriteRun(r.s); err != nil {
		return err
	}
	r.targets.in(folder)
	r.tally = newTally(&r.s, time.Now())
	if err := os.WriteFile(filepath.Join(folder, "control"), []byte(r.web+"\n"), 0o666); err != nil {
		return fmt.Errorf("run folder: %w", err)
	}
	return nil
}

// supervise makes the job, whose processes this one is the parent of; worker says what
// workers are, nil: there are none. Where the control API is given the coordinator is watched.
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
		Network: network, Coordinator: r.addr, Secret: r.secrets.Servers, Control: control, Ring: r.ring,
		Faults: faults,
		Seed:   r.s.Job.Seed, NoReplace: r.s.Job.NoReplace, Log: slog.New(slog.DiscardHandler),
		Worker: worker, OwnWorkers: own, LogAddr: logAddr(&r.s), LastCheckpoint: lastCheckpoint(&r.s),
		Watch: supervisor.Watcher{Event: r.onEvent, Report: r.onReport, Progress: r.onProgress},
	})
	return err
}

// Wait runs the job to its end, and returns how it went. When ctx ends it ends the job in
// order, with a last checkpoint, and says how to go on; when atOnce ends it does not wait for
// that. Of a job whose workers are others' programs the model is what is in its tables, and nobody judges it.
func (r *Run) Wait(ctx, atOnce context.Context) (sum rundir.Summary, err error) {
	ended := make(chan error, 1)
	go func() { ended <- r.job.Run() }()
	defer r.heed(ctx, atOnce)()
	if r.workers {
		defer r.byTime(ctx)()
	}
	exportCtx, cancel := context.WithCancel(atOnce)
	defer cancel()
	done := exporting(exportCtx, r)
	select {
	case err := <-ended:
		return sum, r.stopped(err)
	case e := <-done:
		if e.err != nil {
			r.job.End(e.err)
			return sum, r.stopped(<-ended)
		}
		r.job.Over()
		if !r.workers {
			awaitPrograms(atOnce, r.job.Group())
		}
		sum = r.Summary(e.model)
		r.job.End(ErrOver)
		<-ended
		if err := r.insist(atOnce, "summary.json", func() error { return r.dir.WriteSummary(sum) }); err != nil {
			return sum, err
		}
		r.safe = true
		if r.workers {
			r.view.End(&sum, r.dir.Path(), r.job.Pending())
		}
		return sum, nil
	}
}

// exported is what has come of an export.
type exported struct {
	model *finalModel
	err   error
}

// exporting exports the model once the job is complete.
func exporting(ctx context.Context, r *Run) <-chan exported {
	done := make(chan exported, 1)
	go func() {
		select {
		case <-r.complete:
			m, err := r.export(ctx)
			done <- exported{m, err}
		case <-ctx.Done():
		}
	}()
	return done
}

// Close ends the processes, and lets go of their addresses and of the folder's files.
func (r *Run) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r.job.End(ErrOver) // does nothing if it has ended
	err := r.job.Group().Stop(ctx)
	r.leaveLog()
	return errors.Join(err, r.letGo())
}

// letGo closes what the run has opened so far, and its view.
func (r *Run) letGo() (err error) {
	r.view.Close()
	for _, h := range r.held {
		err = errors.Join(err, h.Close())
	}
	if r.dir != nil {
		err = errors.Join(err, r.dir.Close())
	}
	return err
}

// Job is the job as its supervisor has it: its processes, and the faults to come.
func (r *Run) Job() *supervisor.Job { return r.job }

// Settings are what the run was asked to be, with what Start has completed.
func (r *Run) Settings() *settings.Run { return &r.s }

// Dir is the run's folder.
func (r *Run) Dir() *rundir.Dir { return r.dir }

// Secrets are the run's, and the file that workers find theirs in.
func (r *Run) Secrets() *reach.Secrets { return r.secrets }

// Coordinator is the coordinator's address.
func (r *Run) Coordinator() string { return r.addr }

// Control calls the run's control API.
func (r *Run) Control() *control.Client { return control.NewClient(r.web, r.secrets.Job, r.ring) }

// Clock is the job's clock, as was told last.
func (r *Run) Clock() perdure.Clock { return r.tally.Told().Clock }

// Told is what the coordinator told last.
func (r *Run) Told() wire.Progress { return r.tally.Told() }

// LastEvent is what happened last.
func (r *Run) LastEvent() string { return r.tally.LastEvent() }

// Complete is closed when all clocks are done, and nothing is left but to export.
func (r *Run) Complete() <-chan struct{} { return r.complete }

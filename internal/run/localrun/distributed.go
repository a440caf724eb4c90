package localrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/terminal"
)

// This file runs a job on several hosts. The coordinator is in this process, and the hosts start the servers and
// workers. This file does the rest of a parent process's work: it keeps the record, exports the model, writes the
// summary and ends the job on request.

// DistributedOptions holds the arguments of CreateDistributed and StartDistributed.
type DistributedOptions struct {
	Settings settings.Run
	Folder   string
	// Coordinator and Control are the addresses of the coordinator and of its control API for this process.
	Coordinator, Control string
	Ring                 *keys.Ring    // credentials of this process; nil: the job has no keys
	View                 terminal.View // nil: the run is not shown
	Dashboard            string        // address of the live view, HOST:PORT; "": not served
}

// CheckDistributed returns an error for settings that a job on several hosts cannot have.
func CheckDistributed(s *settings.Run) error {
	if len(s.Faults) > 0 {
		return perdure.Usagef("fault: faults cannot be injected into processes on several hosts; remove fault, and " +
			"stop processes on the hosts instead")
	}
	if s.HasOwnLog() {
		return perdure.Usagef("recovery %s needs an update log that all hosts can reach; set log: "+
			"perdure://HOST:4222 (perdure log --keys serves one), or nats://", s.Job.Recovery)
	}
	return nil
}

// CreateDistributed creates the directory of a job on several hosts. It writes run.json last, so that an incomplete
// directory does not count. It completes the settings that are chosen before a run starts. shared means that other
// coordinators have the same job.
func CreateDistributed(ctx context.Context, s *settings.Run, folder string, shared bool) (err error) {
	s.Job.AwaitExport, s.Job.FixedEnd = true, s.Job.Workload != settings.OwnWorkload && s.Until.Metric == ""
	if err := checkLogSpace(s, folder); err != nil {
		return err
	}
	if err := CheckDistributed(s); err != nil {
		return err
	}
	dir, err := rundir.Create(folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	known, err := secretsOf(&s.Reach)
	if err != nil {
		return err
	}
	drawn, err := locate.WriteSecrets(folder, known)
	if err != nil {
		return err
	}
	if err := drawn.Close(); err != nil {
		return err
	}
	in, err := openRunStore(ctx, s, folder, shared)
	if err != nil {
		return err
	}
	if _, err := chooseLogAddr(ctx, s, folder, drawn.Job); err != nil {
		return errors.Join(err, in.release())
	}
	return dir.WriteRun(*s)
}

// DistributedRun runs a job on several hosts.
type DistributedRun struct{ *Run }

// StartDistributed starts to run the job in a directory that CreateDistributed created, possibly long ago. The settings
// are those of its run.json. The caller then calls AwaitEnd.
func StartDistributed(ctx context.Context, o DistributedOptions) (_ *DistributedRun, err error) {
	r := &Run{
		s: o.Settings, ring: o.Ring, workers: o.Settings.Job.Workload != settings.OwnWorkload, view: o.View,
		coordinatorAddr: o.Coordinator, controlAddr: o.Control, complete: make(chan struct{}),
		stats: newStats(&o.Settings, time.Now()), distributed: true,
	}
	if r.view == nil {
		r.view = terminal.NopView{}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.closeAll())
		}
	}()
	if r.dir, err = rundir.Reopen(o.Folder); err != nil {
		return nil, err
	}
	if r.secrets, err = locate.ReadRunSecrets(o.Folder); err != nil {
		return nil, err
	}
	r.closers = append(r.closers, r.secrets)
	r.store = runStore{s: &r.s}
	if r.store.Store, err = r.s.OpenStore(context.WithoutCancel(ctx), o.Folder); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(o.Folder, "control"), []byte(r.controlAddr+"\n"), 0o666); err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	if err := r.supervise(ctx, "", nil, false); err != nil {
		return nil, err
	}
	if o.Dashboard != "" {
		if err := (liveJob{r}).serveOnHosts(o.Dashboard, o.Ring); err != nil {
			return nil, err
		}
	}
	// the job no longer counts as stopped or detached
	r.job.Emit("attached", "", time.Now(), "the coordinator started")
	return &DistributedRun{r}, nil
}

// AwaitEnd runs the job to its end and returns its summary. When ctx ends, AwaitEnd leaves the job as it is, so that
// another process can continue it.
func (r *DistributedRun) AwaitEnd(ctx context.Context) (sum rundir.Summary, err error) {
	defer func() {
		if err != nil && ctx.Err() != nil {
			r.job.Emit("detached", "", time.Now(), "the coordinator ended, and the job continues without it")
		}
	}()
	ended := make(chan error, 1)
	go func() { ended <- r.job.Run() }()
	if sum, err = rundir.ReadSummary(r.dir.Path()); err == nil { // everything is done except reporting the end
		r.announceDone(ctx, ended)
		return sum, nil
	}
	if r.workers {
		defer r.startTimers(ctx)()
	}
	exports, cancel := context.WithCancel(ctx)
	defer cancel()
	done := startExport(exports, r.Run)
	select {
	case <-ctx.Done():
		return sum, ctx.Err()
	case err := <-ended:
		return sum, recordStop(r.job, r.endedEarly(err))
	case e := <-done:
		if e.err != nil && ctx.Err() != nil {
			return sum, ctx.Err()
		}
		if e.err != nil {
			r.job.End(e.err)
			return sum, recordStop(r.job, r.endedEarly(<-ended))
		}
		sum = r.Summary(e.model)
		if err := r.retryWrite(ctx, "summary.json", func() error { return r.dir.WriteSummary(sum) }); err != nil {
			return sum, err
		}
		r.safe = true
		r.announceDone(ctx, ended)
		return sum, nil
	}
}

// announceDone notifies all processes that the job is done. Programs that Perdure did not start may read its tables
// until they end.
func (r *DistributedRun) announceDone(ctx context.Context, ended <-chan error) {
	r.job.MarkDone()
	r.await(ctx, func(p *wire.Progress) bool { return p.Done }) // until the coordinator has recorded it
	if !r.workers {
		r.await(ctx, func(p *wire.Progress) bool {
			return !slices.ContainsFunc(p.Members, func(p wire.MemberProgress) bool {
				return p.Role == wire.RoleWorker && p.State == "alive"
			})
		})
	}
	r.job.End(ErrExported)
	select {
	case <-ended:
	case <-ctx.Done():
	}
	r.removeLogStreams()
}

// await waits until the coordinator's progress satisfies so, for at most programGrace.
func (r *DistributedRun) await(ctx context.Context, so func(p *wire.Progress) bool) {
	ctx, cancel := context.WithTimeout(ctx, programGrace)
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		if p := r.stats.Progress(); so(&p) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// endedEarly returns an error that says how to continue the job if its end was requested. Otherwise it returns why the
// job ended.
func (r *DistributedRun) endedEarly(why error) error {
	if !errors.Is(why, supervisor.ErrStopAsked) {
		return why
	}
	p, keeps := r.stats.Progress(), recovery.Of(r.s.Job.Recovery)
	has := fmt.Sprintf("with a checkpoint of clock %d", p.Durable)
	switch lost := keeps.CheckResume(); {
	case lost != nil:
		return fmt.Errorf("%w at clock %d, and there is nothing to resume from: %w", ErrStopped, p.Clock, lost)
	case keeps.Traits().UsesLog():
		has = "and all updates are in its log"
	}
	return fmt.Errorf("%w at clock %d, %s; it continues when its coordinator is started again in %s", ErrStopped,
		p.Clock, has, r.dir.Path())
}

// Detach releases this process's resources and leaves the job unchanged.
func (r *DistributedRun) Detach() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return errors.Join(r.job.Group().Stop(ctx), r.closeAll())
}

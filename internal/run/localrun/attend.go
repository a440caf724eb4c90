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
	"github.com/perdure/perdure/internal/run/reach"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/screen"
	"github.com/perdure/perdure/internal/run/settings"
)

// This file has a job of many hosts: its coordinator is in this process, and others start its servers and
// workers. What a run's parent does beside that is done here: it keeps the record, exports the model,
// writes how it all went, and ends the job as somebody asks.

// Attended is what Lay and Attend are told.
type Attended struct {
	Settings settings.Run
	Folder   string
	// Coordinator and Control are where this process reaches the coordinator, and its control API.
	Coordinator, Control string
	Ring                 *keys.Ring  // what this process shows there; nil: the job has no keys
	View                 screen.View // nil: nobody looks
}

// Spread refuses settings of a job that many hosts cannot have.
func Spread(s *settings.Run) error {
	if len(s.Faults) > 0 {
		return fmt.Errorf("%w: fault: no fault reaches the processes of many hosts; leave it out, and make them fail "+
			"there", perdure.ErrUsage)
	}
	if s.HasOwnLog() {
		return fmt.Errorf("%w: recovery %s needs an update log that all hosts reach; name it with log: "+
			"perdure://HOST:4222 (perdure log --keys serves one), or nats://", perdure.ErrUsage, s.Job.Recovery)
	}
	return nil
}

// Lay makes the folder of a job of many hosts, all of it or none that counts: run.json comes last. What is
// not settled before a run begins is completed in the settings. shared: other coordinators have the same job.
func Lay(ctx context.Context, s *settings.Run, folder string, shared bool) (err error) {
	s.Job.AwaitExport, s.Job.FixedEnd = true, s.Job.Workload != settings.OwnWorkload && s.Until.Metric == ""
	if err := sizeLog(s, folder); err != nil {
		return err
	}
	if err := Spread(s); err != nil {
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
	drawn, err := reach.PutSecrets(folder, known)
	if err != nil {
		return err
	}
	if err := drawn.Close(); err != nil {
		return err
	}
	in, err := keep(ctx, s, folder, shared)
	if err != nil {
		return err
	}
	if _, err := placeLog(ctx, s, folder, drawn.Job); err != nil {
		return errors.Join(err, in.leave())
	}
	return dir.WriteRun(*s)
}

// Attendant looks after a job of many hosts.
type Attendant struct{ *Run }

// Attend looks after the job of many hosts that is in a folder: Lay has made it, now or long ago. Settings are
// those of its run.json. See sees it to its end.
func Attend(ctx context.Context, o Attended) (_ *Attendant, err error) {
	r := &Run{
		s: o.Settings, ring: o.Ring, workers: o.Settings.Job.Workload != settings.OwnWorkload, view: o.View,
		addr: o.Coordinator, web: o.Control, complete: make(chan struct{}), tally: newTally(&o.Settings, time.Now()),
	}
	if r.view == nil {
		r.view = screen.Silent{}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.letGo())
		}
	}()
	if r.dir, err = rundir.Reopen(o.Folder); err != nil {
		return nil, err
	}
	if r.secrets, err = reach.KeptSecrets(o.Folder); err != nil {
		return nil, err
	}
	r.held = append(r.held, r.secrets)
	r.kept = kept{s: &r.s}
	if r.kept.Store, err = r.s.OpenStore(context.WithoutCancel(ctx), o.Folder); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(o.Folder, "control"), []byte(r.web+"\n"), 0o666); err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	if err := r.supervise(ctx, "", nil, false); err != nil {
		return nil, err
	}
	return &Attendant{r}, nil
}

// See sees a job of many hosts to its end, and returns how it went. When ctx ends it leaves the job as it
// is: another process may go on with it.
func (r *Attendant) See(ctx context.Context) (sum rundir.Summary, err error) {
	ended := make(chan error, 1)
	go func() { ended <- r.job.Run() }()
	if sum, err = rundir.ReadSummary(r.dir.Path()); err == nil { // only its end is not told yet
		return sum, r.sayOver(ctx, ended)
	}
	if r.workers {
		defer r.byTime(ctx)()
	}
	exports, cancel := context.WithCancel(ctx)
	defer cancel()
	done := exporting(exports, r.Run)
	select {
	case <-ctx.Done():
		return sum, ctx.Err()
	case err := <-ended:
		return sum, r.endedEarly(err)
	case e := <-done:
		if e.err != nil && ctx.Err() != nil {
			return sum, ctx.Err()
		}
		if e.err != nil {
			r.job.End(e.err)
			return sum, r.endedEarly(<-ended)
		}
		sum = r.Summary(e.model)
		if err := r.insist(ctx, "summary.json", func() error { return r.dir.WriteSummary(sum) }); err != nil {
			return sum, err
		}
		r.safe = true
		return sum, r.sayOver(ctx, ended)
	}
}

// sayOver tells everybody that the job is done. Programs of others' may read its tables until they end.
func (r *Attendant) sayOver(ctx context.Context, ended <-chan error) error {
	r.job.Over()
	r.await(ctx, func(p *wire.Progress) bool { return p.Done }) // the coordinator has it
	if !r.workers {
		r.await(ctx, func(p *wire.Progress) bool {
			return !slices.ContainsFunc(p.Places, func(p wire.PlaceProgress) bool {
				return p.Role == wire.RoleWorker && p.State == "alive"
			})
		})
	}
	r.job.End(ErrOver)
	select {
	case <-ended:
	case <-ctx.Done():
	}
	r.leaveLog()
	return nil
}

// await waits until the coordinator tells that something is so, for as long as programs may go on at most.
func (r *Attendant) await(ctx context.Context, so func(p *wire.Progress) bool) {
	ctx, cancel := context.WithTimeout(ctx, programGrace)
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		if p := r.tally.Told(); so(&p) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// endedEarly says how to go on where somebody has asked for the job's end; else it returns why it has ended.
func (r *Attendant) endedEarly(why error) error {
	if !errors.Is(why, supervisor.ErrStopAsked) {
		return why
	}
	p, keeps := r.tally.Told(), recovery.Of(r.s.Job.Recovery)
	has := fmt.Sprintf("with a checkpoint of clock %d", p.Durable)
	switch lost := keeps.MayResume(); {
	case lost != nil:
		return fmt.Errorf("%w at clock %d, and nothing is left to go on from: %w", ErrStopped, p.Clock, lost)
	case keeps.Traits().Logged():
		has = "and all updates are in its log"
	}
	return fmt.Errorf("%w at clock %d, %s; it goes on when its coordinator is started again in %s", ErrStopped,
		p.Clock, has, r.dir.Path())
}

// Leave lets go of a job of many hosts, and does nothing to it.
func (r *Attendant) Leave() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return errors.Join(r.job.Group().Stop(ctx), r.letGo())
}

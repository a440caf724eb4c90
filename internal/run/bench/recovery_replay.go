package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/proc/shardstore"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/workload"
	"github.com/perdure/perdure/worker"
)

// This file measures how fast the update log is read back. A server is killed once before any push, and once when all
// pushes are in the log and applied. Its shards have no snapshot, so the whole log must be read.
const (
	replayMB           = 500 // default of --mb
	logSizeFactor      = 6   // log size as a multiple of the pushes: a snapshot is written after reading a fifth of it
	replayPollInterval = time.Millisecond
	replayPerMB        = 100 * time.Millisecond // limit for the time to read it
)

// replaySample is the result of one round.
type replaySample struct {
	empty   time.Duration // from the kill until all shards of the server serve again, without updates to read
	serving time.Duration // the same, with bytes to read
	bytes   int64
	bare    time.Duration // the time a reader needs that discards the bytes
}

// sample returns the figures of the round. The speed of reading comes from the additional time compared with an empty
// log; without any, there is no speed.
func (p *replaySample) sample() sample {
	mb := float64(p.bytes) / 1e6
	bare := mb / p.bare.Seconds()
	s := sample{
		"replay_serving_ms": milliseconds(p.serving), "replay_empty_ms": milliseconds(p.empty), "replay_mb": mb,
		"replay_bare_mb_per_s": bare,
	}
	if p.serving > p.empty {
		speed := mb / (p.serving - p.empty).Seconds()
		s["replay_mb_per_s"], s["replay_of_bare"] = speed, speed/bare
	}
	return s
}

// replaySize returns the minimum number of MB to push.
func (b *RecoveryOptions) replaySize() int {
	if b.MB == 0 {
		return replayMB
	}
	return b.MB
}

// replayPushes returns the number of blocks to push.
func (b *RecoveryOptions) replayPushes() int {
	block := pushedBlock().Bytes
	return int((int64(b.replaySize())*1e6 + block - 1) / block)
}

// replaySettings returns the settings of a job whose log can hold all pushes.
func (b *RecoveryOptions) replaySettings() (s settings.Run, err error) {
	shape := b.shape(string(perdure.RecoverStateless))
	shape.Workers, shape.Consistency = 1, string(perdure.ASP)
	if !b.ServersGiven {
		shape.Servers = 1
	}
	job, err := shape.Job(settings.OwnWorkload)
	if err != nil {
		return s, err
	}
	mb := max(settings.MinLogMB*job.Shards, logSizeFactor*b.replayPushes()*int(pushedBlock().Bytes>>20))
	s = settings.Run{
		Version: b.Version, Job: job, Reach: settings.Reach{Listen: localrun.AnyPort},
		Params: workload.Params{Seed: job.Seed, Slots: job.Slots},
	}
	s.Log, err = settings.NewLog(settings.LogFlags{Log: settings.Log{MB: mb, SnapshotMB: mb}}, &job)
	return s, err
}

// checkReplay returns an error if the directory has too little space for the log.
func (b *RecoveryOptions) checkReplay(dir string) error {
	s, err := b.replaySettings()
	if err != nil {
		return err
	}
	if bytes, known := disk.FreeBytes(dir); known && int64(s.Log.MB) > bytes>>20 {
		return perdure.Usagef("--measure replay of %d MB and %d shards needs an update log of up to %d MiB, but only "+
			"%d are free in %s; choose a smaller --mb or --shards, or another TMPDIR", b.replaySize(), b.Shards,
			s.Log.MB, bytes>>20, dir)
	}
	return nil
}

// allReplays measures how fast a server rebuilds its shards from the update log.
func (r *recoveryRun) allReplays(ctx context.Context) error {
	s, err := r.replaySettings()
	if err != nil {
		return err
	}
	fmt.Fprintf(r.out, "\n%d MB of pushes of %s in the update log, and no snapshot; --servers %d --workers 1 "+
		"--shards %d --consistency asp, %d rounds: ms from the SIGKILL of a server until all its shards serve again, "+
		"and the same before any push; MB read back; MB/s, computed from the difference of the two times, and its "+
		"ratio to a reader that discards the updates; median (min to max)\n",
		r.replaySize(), pushBlock, s.Job.Servers, s.Job.Shards, r.Rounds)
	res := r.line(string(perdure.RecoverStateless), s.Job.Servers, 1, r.replaySize())
	return r.repeat(res, "reading the update log again", (*RecoveryResult).replayLine,
		func(i int) (sample, error) {
			one, err := r.replayRound(ctx, i%2 > 0)
			return one.sample(), err
		})
}

// replayRound runs one job through both kills. bareFirst decides whether the bare reader reads before the server,
// because the order affects the caches of the machine.
func (r *recoveryRun) replayRound(ctx context.Context, bareFirst bool) (m replaySample, err error) {
	s, err := r.replaySettings()
	if err != nil {
		return m, err
	}
	err = r.inJob(ctx, s, func(ctx context.Context, j *recoveryJob) error {
		p, err := j.joinReplay(ctx)
		if err != nil {
			return err
		}
		defer p.close()
		p.patience = patience + time.Duration(r.replaySize())*replayPerMB
		m, err = p.measure(ctx, r.replayPushes(), bareFirst)
		return err
	})
	return m, err
}

// replayer is this process as the worker of a job whose log is read back, and as an observer, which knows only what
// servers report.
type replayer struct {
	*recoveryJob
	worker, observer *worker.Client
	pushed, seen     *movedTable
	patience         time.Duration // limit for the time until shards serve again
}

// joinReplay joins a job as its only worker, and as an observer.
func (j *recoveryJob) joinReplay(ctx context.Context) (p *replayer, err error) {
	p = &replayer{recoveryJob: j}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	bed := pushTestbed(j.Settings().Job.Shards)
	if p.worker, err = joinAlone(ctx, j.Run, &bed); err != nil {
		return p, err
	}
	if p.pushed, err = makeTable(ctx, p.worker, &bed); err != nil {
		return p, err
	}
	p.observer, err = locate.Observe(ctx, worker.Config{Coordinator: j.Coordinator(), Secret: j.Secrets().Job})
	if err != nil {
		return p, err
	}
	p.seen, err = openMoved(ctx, p.observer, p.pushed.Spec())
	return p, err
}

func (p *replayer) close() {
	for _, c := range []*worker.Client{p.worker, p.observer} {
		if c != nil {
			_ = c.Close() // never fails
		}
	}
}

// measure kills, pushes, and kills again.
func (p *replayer) measure(ctx context.Context, pushes int, bareFirst bool) (m replaySample, err error) {
	target, shards, err := p.victim(ctx)
	if err == nil {
		m.empty, err = p.killServer(ctx, target, shards)
	}
	if err == nil {
		err = p.fill(ctx, pushes)
	}
	if err == nil {
		target, shards, err = p.victim(ctx)
	}
	if err == nil && bareFirst {
		err = p.readBare(ctx, shards, &m)
	}
	if err == nil {
		m.serving, err = p.killServer(ctx, target, shards)
	}
	if err == nil && !bareFirst {
		err = p.readBare(ctx, shards, &m)
	}
	if err != nil {
		return m, err
	}
	p.seen.Pushes = p.pushed.Pushes
	return m, errors.Join(p.undisturbed(shards), p.seen.Verify(ctx))
}

// fill pushes blocks one after the other, and waits until each is applied.
func (p *replayer) fill(ctx context.Context, pushes int) error {
	m := pushTestbed(p.Settings().Job.Shards).Lines[0]
	o := p.pushed.Operation(ctx, &m)
	o.Cores()
	for range pushes {
		o.Prepare()
		if err := o.Do(); err != nil {
			return err
		}
	}
	return nil
}

// victim waits until the job is sound. It returns the server that has the first shard, and all shards of that server.
func (p *replayer) victim(ctx context.Context) (t supervisor.Target, shards []perdure.ShardID, err error) {
	view, _, err := p.await(ctx, "reading the log", isRecovered)
	if err != nil {
		return t, nil, err
	}
	kill := failure{kind: supervisor.FaultKill}
	t, shards = kill.victim(&view, p.Settings().Job.Servers, func(int) int { return view.Shards[0].Server })
	return t, shards, nil
}

// killServer kills a server. It returns the time until all its shards have answered a read that started after its
// death.
func (p *replayer) killServer(
	ctx context.Context, target supervisor.Target, shards []perdure.ShardID,
) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	defer func() {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("bench: the shards of the killed %s are still unavailable after %v; last event: %s",
				target, p.patience, p.LastEvent())
		}
	}()
	from := time.Now()
	p.Job().AddFault(supervisor.Fault{Kind: supervisor.FaultKill, Target: target}) // takes effect now
	struck, err := p.awaitDeath(ctx, from, target)
	if err != nil {
		return 0, err
	}
	spec := p.seen.Spec()
	row := make([]float32, spec.Dim)
	for _, s := range shards {
		first, n := placement.Range(&spec, p.Settings().Job.Shards, s)
		if n == 0 {
			continue
		}
		p.seen.Forget()
		if err := p.seen.Get(ctx, first, row); err != nil {
			return 0, err
		}
	}
	return time.Since(struck), nil
}

// awaitDeath waits until a process is reported dead, and returns when it was killed.
func (p *replayer) awaitDeath(
	ctx context.Context,
	from time.Time,
	target supervisor.Target,
) (struck time.Time, err error) {
	tick := time.NewTicker(replayPollInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return struck, context.Cause(ctx)
		case <-tick.C:
		}
		for _, e := range p.watch.since(from) {
			switch {
			case e.Target != target.String():
			case e.Kind == "fault":
				struck = time.Unix(0, e.UnixNs)
			case e.Kind == "detected" && !struck.IsZero():
				return struck, nil
			}
		}
	}
}

// readBare reads the shards' streams from beginning to end, concurrently like a server, and discards the updates.
func (p *replayer) readBare(ctx context.Context, shards []perdure.ShardID, m *replaySample) error {
	allCores()
	job := &p.Settings().Job
	updates, err := p.Settings().OpenLog(nil, true)(ctx, // read-only access; a benchmark has no keys
		updatelog.WithToken(p.Settings().Job.Log, p.Secrets().LogToken(&p.Settings().Job)),
		updatelog.Options{Job: job.ID, Shards: job.Shards})
	if err != nil {
		return err
	}
	defer updates.Close()
	var bytes atomic.Int64
	errs := make([]error, len(shards))
	var readers sync.WaitGroup
	start := time.Now()
	for i, s := range shards {
		readers.Go(func() {
			ctx, enough := context.WithCancel(ctx)
			defer enough()
			over := false
			errs[i] = updates.Read(ctx, int(s), updatelog.Oldest, func(e updatelog.Entry) error {
				bytes.Add(int64(len(e.Payload)))
				return nil
			}, func(updatelog.Position) { over = true; enough() })
			if over {
				errs[i] = nil
			}
		})
	}
	readers.Wait()
	m.bare, m.bytes = time.Since(start), bytes.Load()
	return errors.Join(errs...)
}

// undisturbed returns an error if another process was replaced, or if part of the log was not read back. Either makes
// the results invalid.
func (p *replayer) undisturbed(shards []perdure.ShardID) error {
	for _, f := range p.Job().Timeline() {
		if f.Kind != string(supervisor.FaultKill) {
			return fmt.Errorf("bench: %s was replaced during the measurement (%s); repeat it when the machine "+
				"is less busy", f.Target, f.Kind)
		}
	}
	in, err := p.Settings().OpenSnapshots(context.Background(), p.Dir().Path())
	if err != nil {
		return err
	}
	return checkNoSnapshots(in, shards)
}

// checkNoSnapshots returns an error if a shard has a snapshot, because then its log was not read completely.
func checkNoSnapshots(in store.Store, shards []perdure.ShardID) error {
	for _, s := range shards {
		files, err := shardstore.ListSnapshots(in, s)
		if err == nil && len(files) > 0 {
			err = fmt.Errorf("bench: shard %d has a snapshot, so its log was not read completely", s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

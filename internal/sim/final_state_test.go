package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/run/settings"
)

// FinalState is the state that a run leaves after all its processes have ended.
type FinalState struct {
	Job       perdure.JobSpec
	JobRecord membership.JobRecord // last recorded job record
	Disk      *disk.Memory
	Log       *updatelog.Memory
	firstView protocol.View
	// manifests are the running checkpoints with a manifest, newest first. The newest spoilt ones of them have been
	// damaged since.
	manifests []checkpoint.Running
	damaged   int
}

// FinalStateOf returns the state that a finished run of a cluster has left.
func FinalStateOf(c *Cluster) (*FinalState, error) {
	record, err := c.JobRecord()
	if err != nil {
		return nil, err
	}
	l := &FinalState{
		Job: c.o.Job, JobRecord: record, Disk: c.hosts.Disk, Log: c.hosts.Logs(),
		firstView: c.o.initialRecord().View,
	}
	names, err := l.Disk.List("checkpoint")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, name := range names {
		if kept, ok := checkpoint.ReadInfo(l.checkpoints(), name); ok && kept.Err == nil && kept.Number > 0 {
			l.manifests = append(l.manifests, kept.Running)
		}
	}
	slices.SortFunc(l.manifests, func(a, b checkpoint.Running) int { return cmp.Compare(b.Number, a.Number) })
	return l, nil
}

// Newest returns the newest manifest, or nil.
func (l *FinalState) Newest() *checkpoint.Running {
	if l.damaged >= len(l.manifests) {
		return nil
	}
	return &l.manifests[l.damaged]
}

// MarkDamaged records that the newest manifest, or a file that only it names, was damaged.
func (l *FinalState) MarkDamaged() { l.damaged++ }

// Resume returns the state from which the next run resumes, as --resume does, with new numbers of servers and workers
// (0: unchanged). The error wraps ErrNothingToResume if there is nothing to resume or nothing left to do.
func (l *FinalState) Resume(ctx context.Context, servers, workers int) (*ResumeState, error) {
	s, n := &settings.Run{Job: l.Job}, &ResumeState{Disk: disk.NewMemory()}
	if servers > 0 {
		s.Job.Servers = servers
	}
	m, err := l.prepare(ctx, s)
	if errors.Is(err, checkpoint.ErrNoCheckpoint) || errors.Is(err, settings.ErrNothingToResume) {
		return nil, fmt.Errorf("%w: %w", ErrNothingToResume, err)
	}
	if err != nil {
		return nil, err
	}
	if workers > 0 {
		err = settings.ChangeWorkers(s, workers, &m)
	}
	if err == nil {
		err = settings.StartFrom(s, "the run before", &m)
	}
	if errors.Is(err, perdure.ErrUsage) {
		return nil, fmt.Errorf("%w: %w", ErrNothingToResume, err)
	}
	if err == nil {
		err = l.copyFiles(ctx, s, n)
	}
	if err == nil {
		n.JobRecord, err = s.InitialState()
	}
	return n, err
}

// ErrNothingToResume is wrapped by errors of runs that left nothing to resume.
var ErrNothingToResume = errors.New("sim: nothing to resume")

func (l *FinalState) checkpoints() store.Store { return store.NewDir(l.Disk, "checkpoint") }

// prepare prepares the next run from the state left.
func (l *FinalState) prepare(ctx context.Context, s *settings.Run) (m checkpoint.Manifest, err error) {
	if !recovery.Of(l.Job.Recovery).Traits().UsesLog() {
		return settings.ReadRunningCheckpoint(l.checkpoints(), s)
	}
	st, err := settings.ReadEnded(ctx, &settings.EndedRun{
		Job: l.Job, View: l.firstView, Checkpoints: l.checkpoints(), Snapshots: store.NewDir(l.Disk, "snapshots"),
		Log: logInspector{l},
	})
	if err != nil {
		return m, err
	}
	s.Job.ID += "-on" // the earlier job owns its streams
	return settings.ResumeFromLog(st, s), nil
}

// logInspector is read-only access to a run's update log, as an Inspector has.
type logInspector struct{ *FinalState }

func (l logInspector) URL() string { return "memory" }

// open opens the log to read one shard's stream.
func (l logInspector) open() (updatelog.Log, error) {
	return l.Log.Open(updatelog.Options{Job: l.Job.ID, Shards: l.Job.Shards})
}

func (l logInspector) Streams(ctx context.Context) (streams []updatelog.Stream, err error) {
	log, err := l.open()
	if err != nil {
		return nil, err
	}
	defer log.Close()
	for shard := range l.Job.Shards {
		s := updatelog.Stream{Job: l.Job.ID, Shard: shard}
		if s.First, s.Next, err = log.Extent(ctx, shard); err != nil {
			return nil, err
		}
		streams = append(streams, s)
	}
	return streams, nil
}

func (l logInspector) Records(ctx context.Context, s updatelog.Stream, show func(updatelog.Record) error) error {
	log, err := l.open()
	if err != nil {
		return err
	}
	defer log.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	over := false
	err = log.Read(ctx, s.Shard, s.First, func(e updatelog.Entry) error {
		return show(updatelog.Record{Position: e.Position, Entries: []updatelog.Entry{e}})
	}, func(updatelog.Position) { over = true; cancel() })
	if over && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// copyFiles copies what the next run needs to its disk.
func (l *FinalState) copyFiles(ctx context.Context, s *settings.Run, n *ResumeState) error {
	to := store.NewDir(n.Disk, "checkpoint")
	if err := to.Prepare(); err != nil {
		return err
	}
	for _, name := range s.Checkpoints.From {
		b, err := store.Read(l.checkpoints(), name)
		if err == nil {
			err = to.Put(name, func(w io.Writer) error {
				_, err := w.Write(b)
				return err
			})
		}
		if err != nil {
			return err
		}
	}
	st := s.Checkpoints.Ended
	if st == nil {
		return nil
	}
	for _, f := range st.States() {
		if err := store.CopyState(l.checkpoints(), to, f); err != nil {
			return err
		}
	}
	for shard := range perdure.ShardID(l.Job.Shards) {
		n.applied = append(n.applied, st.Applied(shard))
	}
	return st.Write(ctx, store.NewDir(n.Disk, "snapshots"), &s.Job)
}

// CheckResume checks the state that a run resumes from and returns its checker, or nil if there is nothing to resume.
func (h *History) CheckResume(l *FinalState, n *ResumeState, err error) (*History, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if errors.Is(err, ErrNothingToResume) {
		return nil, h.checkNothingLeft(l, err)
	}
	if err != nil {
		return nil, err
	}
	v := &n.JobRecord.View
	for slot := range v.Slots {
		for _, c := range h.clocks(slot, v.Cut) {
			if _, begun := h.started[slot][c]; !begun {
				return nil, violated("the next run begins at clock %d, but slot %d has not begun its clock %d", v.Cut,
					slot, c)
			}
		}
	}
	if err := h.checkResumeState(l, n); err != nil {
		return nil, err
	}
	return h.newResumed(l, n), nil
}

// checkNothingLeft checks an ErrNothingToResume: nothing was published or acknowledged, or the job is done.
func (h *History) checkNothingLeft(l *FinalState, why error) error {
	for slot := range h.started {
		if _, last := h.started[slot][h.job.Clocks-1]; last {
			return nil
		}
	}
	if m := l.Newest(); m != nil {
		return violated("manifest %d was published, but the error is: %v", m.Number, why)
	}
	if !recovery.Of(h.job.Recovery).Traits().UsesLog() {
		return nil
	}
	for slot := range h.job.Slots {
		updates, ticked := true, false // on all shards, and on any
		for shard := range h.logged {
			at := &h.logged[shard][slot]
			updates, ticked = updates && at.updates > 0, ticked || at.ticks > 0
		}
		if ticks := h.ticks(); ticks && !ticked || !ticks && !updates {
			return nil
		}
	}
	return violated("the log has acknowledged all slots' first clock, but the error is: %v", why)
}

// isCurrent reports whether the process with that incarnation spoke for a slot until the end.
func (l *FinalState) isCurrent(slot int, by perdure.Incarnation) bool {
	slots := l.JobRecord.View.Slots
	return slot < len(slots) && slots[slot].Incarnation == by && slots[slot].Until == 0
}

// checkResumeState checks that the next run starts with everything that was published and everything that a log
// acknowledged.
func (h *History) checkResumeState(l *FinalState, n *ResumeState) error {
	if m := l.Newest(); m != nil {
		next := &n.JobRecord.Running
		if next.Number != m.Number || n.JobRecord.View.Cut != m.Clock {
			return violated("manifest %d of clock %d was published, but the next run begins with number %d at clock %d",
				m.Number, m.Clock, next.Number, n.JobRecord.View.Cut)
		}
		for i := range m.Shards {
			same := slices.EqualFunc(m.Shards[i].Files, next.Files[i],
				func(a checkpoint.FileRef, b protocol.SavedFile) bool { return protocol.SavedFile(a) == b })
			if !same {
				return violated("shard %d is saved in %v, but the next run begins with %v", i, m.Shards[i].Files,
					next.Files[i])
			}
		}
	}
	all := h.tickedByAll(l, n)
	for shard, applied := range n.applied {
		for slot, has := range applied {
			at := &h.logged[shard][slot]
			must := at.updates
			switch h.job.ClockMode(nil) {
			case perdure.ClockTwoStep:
				must = min(at.ticks, all)
			case perdure.ClockAtomic:
				must = at.ticks
			}
			if l.isCurrent(slot, at.incarnation) && has < must {
				return violated("the log has acknowledged slot %d's clocks below %d of shard %d, but the next run "+
					"begins with those below %d", slot, must, shard, has)
			}
			if v := &n.JobRecord.View; has < v.StartClock(perdure.Slot(slot)) {
				return violated("slot %d begins the next run at clock %d, but shard %d has its clocks below %d",
					slot, v.StartClock(perdure.Slot(slot)), shard, has)
			}
		}
	}
	return nil
}

// tickedByAll returns how many clocks all slots have ticked. With two-step clocks, a clock is applied once they have.
func (h *History) tickedByAll(l *FinalState, n *ResumeState) perdure.Clock {
	all := h.job.Clocks
	for slot := range l.JobRecord.View.Slots {
		ticked := perdure.Clock(0)
		for shard, applied := range n.applied {
			if at := &h.logged[shard][slot]; l.isCurrent(slot, at.incarnation) {
				ticked = max(ticked, at.ticks)
			} else if slot < len(applied) { // unknown; a slot that has left does not delay the others
				ticked = max(ticked, applied[slot])
			}
		}
		if until := l.JobRecord.View.Slots[slot].Until; until == 0 || ticked < until {
			all = min(all, ticked)
		}
	}
	return all
}

// newResumed returns the checker of a run that resumes this one.
func (h *History) newResumed(l *FinalState, n *ResumeState) *History {
	v, next := &n.JobRecord.View, NewHistory(n.JobRecord.Job, h.lossy, h.slots, nil)
	next.spec, next.ids, next.aux.reference, next.Pace = h.spec, h.ids, h.aux.reference, h.Pace
	next.Goal, next.Misses, next.maxMinClock = h.Goal, h.Misses, max(h.maxMinClock, h.minClockBound())
	if h.aux.evicting != nil {
		e := *h.aux.evicting
		e.h, next.aux.evicting = next, &e
	}
	for slot := range h.slots {
		maps.Copy(next.started[slot], h.started[slot])
		// With ticks a slot's clock in one shard's file counts on all shards, and may be lost there.
		next.succeeded[slot] = h.ticks() || h.succeeded[slot] || h.processes[slot] > 1 ||
			slot < len(l.JobRecord.View.Slots) && l.JobRecord.View.Slots[slot].Incarnation > 1
		next.terms[slot] = nil
	}
	for slot := range v.Slots {
		now := v.Slots[slot].Interval
		next.terms[slot] = slices.DeleteFunc(slices.Clone(h.terms[slot]), func(t protocol.Interval) bool {
			return t.Until == 0 || t.Until > now.From // the current interval, as it was known then
		})
		next.terms[slot] = append(next.terms[slot], now)
	}
	if h.aux.lineage != nil {
		next.aux.lineage = h.aux.lineage.forResumed(next)
	}
	for shard, applied := range n.applied {
		next.generations = append(next.generations, make([]map[perdure.Clock]perdure.Generation, h.slots))
		for slot := range h.slots {
			had := map[perdure.Clock]perdure.Generation{}
			next.generations[shard][slot] = had
			for c := range h.started[slot] {
				if slot < len(applied) && c < applied[slot] {
					had[c] = h.generation(perdure.ShardID(shard), slot, c)
				}
			}
		}
	}
	return next
}

// forResumed returns the RowLineage of a run that resumes this one.
func (l *RowLineage) forResumed(h *History) *RowLineage {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := newLineage(h)
	for i := range l.shards {
		maps.Copy(next.shards[i].lives, l.shards[i].lives)
	}
	return next
}

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
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/run/settings"
)

// Left is the state that a run leaves after all its processes have ended.
type Left struct {
	Job   perdure.JobSpec
	Facts membership.JobRecord // last recorded job record
	Disk  *disk.Memory
	Log   *updatelog.Memory
	began words.View
	// kept are the running checkpoints with a manifest, newest first. The newest spoilt ones of them have been damaged
	// since.
	kept   []checkpoint.Running
	spoilt int
}

// LeftBy returns the state that a finished run of a cluster has left.
func LeftBy(c *Cluster) (*Left, error) {
	facts, err := c.Facts()
	if err != nil {
		return nil, err
	}
	l := &Left{Job: c.o.Job, Facts: facts, Disk: c.hosts.Disk, Log: c.hosts.Logs(), began: c.o.begin().View}
	names, err := l.Disk.List("checkpoint")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, name := range names {
		if kept, ok := checkpoint.KeptOf(l.checkpoints(), name); ok && kept.Err == nil && kept.Number > 0 {
			l.kept = append(l.kept, kept.Running)
		}
	}
	slices.SortFunc(l.kept, func(a, b checkpoint.Running) int { return cmp.Compare(b.Number, a.Number) })
	return l, nil
}

// Newest returns the newest manifest, or nil.
func (l *Left) Newest() *checkpoint.Running {
	if l.spoilt >= len(l.kept) {
		return nil
	}
	return &l.kept[l.spoilt]
}

// Spoil records that the newest manifest, or a file that only it names, was damaged.
func (l *Left) Spoil() { l.spoilt++ }

// GoOn returns the state from which the next run resumes, as --resume does, with new numbers of servers and workers (0:
// unchanged). The error wraps ErrNothing if there is nothing to resume or nothing left to do.
func (l *Left) GoOn(ctx context.Context, servers, workers int) (*Next, error) {
	s, n := &settings.Run{Job: l.Job}, &Next{Disk: disk.NewMemory()}
	if servers > 0 {
		s.Job.Servers = servers
	}
	m, err := l.read(ctx, s)
	if errors.Is(err, checkpoint.ErrNoCheckpoint) || errors.Is(err, settings.ErrNothingLeft) {
		return nil, fmt.Errorf("%w: %w", ErrNothing, err)
	}
	if err != nil {
		return nil, err
	}
	if workers > 0 {
		err = settings.ChangeWorkers(s, workers, &m)
	}
	if err == nil {
		err = settings.GoOn(s, "the run before", &m)
	}
	if errors.Is(err, perdure.ErrUsage) {
		return nil, fmt.Errorf("%w: %w", ErrNothing, err)
	}
	if err == nil {
		err = l.bring(ctx, s, n)
	}
	if err == nil {
		n.Begin, err = s.Begin()
	}
	return n, err
}

// ErrNothing is wrapped by errors of runs that left nothing to resume.
var ErrNothing = errors.New("sim: nothing to resume")

func (l *Left) checkpoints() store.Store { return store.Folder(l.Disk, "checkpoint") }

// read prepares the next run from the state left.
func (l *Left) read(ctx context.Context, s *settings.Run) (m checkpoint.Manifest, err error) {
	if !recovery.Of(l.Job.Recovery).Traits().UsesLog() {
		return settings.ReadSaved(l.checkpoints(), s)
	}
	st, err := settings.ReadEnded(ctx, &settings.EndedRun{
		Job: l.Job, View: l.began, Checkpoints: l.checkpoints(), Snapshots: store.Folder(l.Disk, "snapshots"),
		Log: looked{l},
	})
	if err != nil {
		return m, err
	}
	s.Job.ID += "-on" // the earlier job owns its streams
	return settings.TakeEnded(st, s), nil
}

// looked is read-only access to a run's update log, as an Inspector has.
type looked struct{ *Left }

func (l looked) URL() string { return "memory" }

// open opens the log to read one shard's stream.
func (l looked) open() (updatelog.Log, error) {
	return l.Log.Open(updatelog.Options{Job: l.Job.ID, Shards: l.Job.Shards})
}

func (l looked) Streams(ctx context.Context) (streams []updatelog.Stream, err error) {
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

func (l looked) Records(ctx context.Context, s updatelog.Stream, show func(updatelog.Record) error) error {
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

// bring copies what the next run needs to its disk.
func (l *Left) bring(ctx context.Context, s *settings.Run, n *Next) error {
	to := store.Folder(n.Disk, "checkpoint")
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
	return st.Write(ctx, store.Folder(n.Disk, "snapshots"), &s.Job)
}

// GoesOn checks the state that a run resumes from and returns its checker, or nil if there is nothing to resume.
func (h *History) GoesOn(l *Left, n *Next, err error) (*History, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if errors.Is(err, ErrNothing) {
		return nil, h.nothing(l, err)
	}
	if err != nil {
		return nil, err
	}
	v := &n.Begin.View
	for slot := range v.Slots {
		for _, c := range h.clocks(slot, v.Cut) {
			if _, begun := h.started[slot][c]; !begun {
				return nil, violated("the next run begins at clock %d, but slot %d has not begun its clock %d", v.Cut,
					slot, c)
			}
		}
	}
	if err := h.judgeLeft(l, n); err != nil {
		return nil, err
	}
	return h.next(l, n), nil
}

// nothing checks an ErrNothing: nothing was published or acknowledged, or the job is done.
func (h *History) nothing(l *Left, why error) error {
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
		if twoStep := h.job.TwoStep(nil); twoStep && !ticked || !twoStep && !updates {
			return nil
		}
	}
	return violated("the log has acknowledged all slots' first clock, but the error is: %v", why)
}

// speaks reports whether the process with that incarnation spoke for a slot until the end.
func (l *Left) speaks(slot int, by perdure.Incarnation) bool {
	slots := l.Facts.View.Slots
	return slot < len(slots) && slots[slot].Incarnation == by && slots[slot].Until == 0
}

// judgeLeft checks that the next run starts with everything that was published and everything that a log acknowledged.
func (h *History) judgeLeft(l *Left, n *Next) error {
	if m := l.Newest(); m != nil {
		next := &n.Begin.Running
		if next.Number != m.Number || n.Begin.View.Cut != m.Clock {
			return violated("manifest %d of clock %d was published, but the next run begins with number %d at clock %d",
				m.Number, m.Clock, next.Number, n.Begin.View.Cut)
		}
		for i := range m.Shards {
			same := slices.EqualFunc(m.Shards[i].Files, next.Files[i],
				func(a checkpoint.FileRef, b words.SavedFile) bool { return words.SavedFile(a) == b })
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
			if h.job.TwoStep(nil) {
				must = min(at.ticks, all)
			}
			if l.speaks(slot, at.by) && has < must {
				return violated("the log has acknowledged slot %d's clocks below %d of shard %d, but the next run "+
					"begins with those below %d", slot, must, shard, has)
			}
			if v := &n.Begin.View; has < v.Slots[slot].Clamp(v.Cut) {
				return violated("the next run begins at clock %d, but shard %d has slot %d's clocks below %d", v.Cut,
					shard, slot, has)
			}
		}
	}
	return nil
}

// tickedByAll returns how many clocks all slots have ticked. With two-step clocks, a clock is applied once they have.
func (h *History) tickedByAll(l *Left, n *Next) perdure.Clock {
	all := h.job.Clocks
	for slot := range l.Facts.View.Slots {
		ticked := perdure.Clock(0)
		for shard, applied := range n.applied {
			if at := &h.logged[shard][slot]; l.speaks(slot, at.by) {
				ticked = max(ticked, at.ticks)
			} else if slot < len(applied) { // unknown; a slot that has left does not delay the others
				ticked = max(ticked, applied[slot])
			}
		}
		if until := l.Facts.View.Slots[slot].Until; until == 0 || ticked < until {
			all = min(all, ticked)
		}
	}
	return all
}

// next returns the checker of a run that resumes this one.
func (h *History) next(l *Left, n *Next) *History {
	v, next := &n.Begin.View, NewHistory(n.Begin.Job, h.loses, h.slots, nil)
	next.spec, next.ids, next.by.twin, next.Pace = h.spec, h.ids, h.by.twin, h.Pace
	next.Goal, next.Misses, next.came = h.Goal, h.Misses, max(h.came, h.come())
	if h.by.ebb != nil {
		e := *h.by.ebb
		e.h, next.by.ebb = next, &e
	}
	for slot := range h.slots {
		maps.Copy(next.started[slot], h.started[slot])
		// With two-step clocks a slot's clock in one shard's file counts on all shards, and may be lost there.
		next.succeeded[slot] = h.job.TwoStep(nil) || h.succeeded[slot] || h.lives[slot] > 1 ||
			slot < len(l.Facts.View.Slots) && l.Facts.View.Slots[slot].Incarnation > 1
		next.terms[slot] = nil
	}
	for slot := range v.Slots {
		now := v.Slots[slot].Interval
		next.terms[slot] = slices.DeleteFunc(slices.Clone(h.terms[slot]), func(t words.Interval) bool {
			return t.Until == 0 || t.Until > now.From // the current interval, as it was known then
		})
		next.terms[slot] = append(next.terms[slot], now)
	}
	if h.by.lines != nil {
		next.by.lines = h.by.lines.goesOn(next)
	}
	for shard, applied := range n.applied {
		next.before = append(next.before, make([]map[perdure.Clock]perdure.Generation, h.slots))
		for slot := range h.slots {
			had := map[perdure.Clock]perdure.Generation{}
			next.before[shard][slot] = had
			for c := range h.started[slot] {
				if slot < len(applied) && c < applied[slot] {
					had[c] = h.generation(perdure.ShardID(shard), slot, c)
				}
			}
		}
	}
	return next
}

// goesOn returns the Lineage of a run that resumes this one.
func (l *Lineage) goesOn(h *History) *Lineage {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := newLineage(h)
	for i := range l.shards {
		maps.Copy(next.shards[i].of, l.shards[i].of)
	}
	return next
}

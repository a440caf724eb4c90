package settings

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/shardstore"
)

// A run that has ended leaves, for each shard, a snapshot and later records in its update log. Together they define the
// state that a server would have after taking over the shard. Clocks that workers had started are decided as if all
// workers had died at the same time. Another run can start with these states: each is written as the first snapshot of
// a new stream.
//
// An EndedState is not safe for concurrent use.

// EndedRun is a run that has ended and whose updates are in a log.
type EndedRun struct {
	Job perdure.JobSpec
	// View is the view that the run started with: its generation and, if the run was itself resumed from a checkpoint,
	// the cut, tables and slots of that checkpoint.
	View protocol.View

	Checkpoints, Snapshots store.Store
	Log                    EndedLog
}

// EndedLog is a read-only update log: an [updatelog.Inspector], or its replacement in tests.
type EndedLog interface {
	URL() string
	Streams(ctx context.Context) ([]updatelog.Stream, error)
	Records(ctx context.Context, s updatelog.Stream, show func(updatelog.Record) error) error
}

// EndedState is the state that a run left in its update log.
type EndedState struct {
	Job        perdure.JobSpec
	Generation perdure.Generation
	Cut        perdure.Clock // all shards have all updates of clocks below it
	Furthest   perdure.Clock // the largest number of clocks that any shard has of any slot
	Tables     []perdure.TableSpec
	Slots      []protocol.Interval // nil: all slots take part throughout
	PastClocks int64               // clocks that slots did in earlier membership intervals

	shards []*endedShard
}

// ErrNothingToResume reports that a run ended before there was anything to resume from.
var ErrNothingToResume = errors.New("nothing to resume from")

// ReadEnded reads everything that a run left in its log. It keeps all rows in memory.
func ReadEnded(ctx context.Context, r *EndedRun) (*EndedState, error) {
	streams, err := r.Log.Streams(ctx)
	if err != nil {
		return nil, err
	}
	st := &EndedState{Job: r.Job, Generation: r.View.Generation}
	for id := range perdure.ShardID(r.Job.Shards) {
		at := slices.IndexFunc(streams,
			func(s updatelog.Stream) bool { return s.Job == r.Job.ID && s.Shard == int(id) })
		if at < 0 {
			return nil, fmt.Errorf("stream %s is not in the log at %s: it was removed when the run finished, or the "+
				"run ended before creating it, or this is a different log", updatelog.StreamName(r.Job.ID, int(id)),
				r.Log.URL())
		}
		sh := newEndedShard(r, id)
		if err := sh.read(ctx, r, streams[at]); err != nil {
			return nil, fmt.Errorf("shard %d: %w", id, err)
		}
		st.shards = append(st.shards, sh)
	}
	return st, st.settle()
}

// Manifest returns the manifest that a checkpoint of the state would have.
func (st *EndedState) Manifest() checkpoint.Manifest {
	return checkpoint.Manifest{
		Job: st.Job, Generation: st.Generation, Cut: st.Cut, Tables: st.Tables, Slots: st.Slots,
		PastClocks: st.PastClocks,
	}
}

// settle brings all shards to the same membership and tables, and decides the clocks that workers had started.
func (st *EndedState) settle() error {
	membershipVersion, intervals := st.shards[0].rep.Membership()
	for _, sh := range st.shards {
		if n, s := sh.rep.Membership(); n > membershipVersion {
			membershipVersion, intervals = n, s
		}
	}
	for _, sh := range st.shards {
		if n, _ := sh.rep.Membership(); n < membershipVersion {
			sh.appendHeadEntry(wire.KindMembership, perdure.NoSlot, perdure.Clock(membershipVersion),
				wire.JSON(intervals))
		}
	}
	if membershipVersion > 0 {
		st.Slots = slices.Clone(intervals)
	}
	if err := st.agree(); err != nil {
		return err
	}
	for slot := range perdure.Slot(len(intervals)) {
		if err := st.decide(slot); err != nil {
			return err
		}
	}
	for _, sh := range st.shards {
		if err := sh.settle(); err != nil {
			return fmt.Errorf("shard %d: %w", sh.id, err)
		}
	}
	st.Cut = perdure.MaxClock
	for _, sh := range st.shards {
		st.Cut = min(st.Cut, sh.rep.State.MinClock())
		st.Furthest = max(st.Furthest, slices.Max(sh.rep.State.Applied()))
	}
	st.PastClocks = st.past()
	if st.Cut == 0 {
		return fmt.Errorf("%w: the run ended before every worker had finished its first clock", ErrNothingToResume)
	}
	return nil
}

// past returns how many clocks slots did in earlier membership intervals. A log loses nothing, so these are the clocks
// that the rows contain in addition to those of the current intervals. A shard may have more clocks of an abandoned
// slot than its interval covers.
func (st *EndedState) past() int64 {
	least := int64(math.MaxInt64)
	for _, sh := range st.shards {
		n := int64(sh.rep.State.Seq())
		for slot, applied := range sh.rep.State.Applied() {
			var interval protocol.Interval
			if slot < len(st.Slots) {
				interval = st.Slots[slot]
			}
			n -= int64(interval.Clocks(applied))
		}
		least = min(least, n)
	}
	return max(least, 0)
}

// agree uses the tables of the first shard for all shards. A worker that finished a clock has created its tables on
// every shard.
func (st *EndedState) agree() error {
	for _, p := range st.shards[0].rep.State.Parts() {
		st.Tables = append(st.Tables, p.Spec)
	}
	for _, sh := range st.shards {
		if len(sh.rep.State.Parts()) != len(st.Tables) {
			return fmt.Errorf("%w: the run ended while its tables were being created", ErrNothingToResume)
		}
	}
	return nil
}

// decide decides the clocks that a slot had started: see [membership.DecideStart].
func (st *EndedState) decide(slot perdure.Slot) error {
	fences := make([]protocol.Fence, len(st.shards))
	for i, sh := range st.shards {
		fences[i] = protocol.Fence{Slot: slot, Counts: sh.rep.State.Counts(slot)}
	}
	start, torn := membership.DecideStart(fences, st.Job.ClockMode(st.Tables).Ticks(), 0, nil)
	if torn {
		return fmt.Errorf("%w: some shards have clock %d of slot %d, but others have lost their part of it; restore a "+
			"copy of the log", updatelog.ErrDamaged, start-1, slot)
	}
	for _, sh := range st.shards {
		sh.appendHeadEntry(wire.KindFence, slot, 0, nil)
		sh.appendHeadEntry(wire.KindDecide, slot, start, nil)
	}
	return nil
}

// Write writes the state as the first snapshots of another job's streams.
func (st *EndedState) Write(ctx context.Context, to store.Store, job *perdure.JobSpec) error {
	if err := to.Prepare(); err != nil {
		return err
	}
	v := protocol.View{
		Generation: st.Generation + 1, Cut: st.Cut, Tables: st.Tables, Shards: make([]protocol.ShardView, job.Shards),
		Slots: make([]protocol.SlotView, len(st.shards[0].rep.State.Applied())),
	}
	for _, sh := range st.shards {
		if err := sh.write(ctx, to, job, &v); err != nil {
			return err
		}
	}
	return nil
}

// Applied returns how many clocks of each slot a shard has.
func (st *EndedState) Applied(shard perdure.ShardID) []perdure.Clock {
	return slices.Clone(st.shards[shard].rep.State.Applied())
}

// States returns the saved slot states in the earlier run's store. The shards only refer to them.
func (st *EndedState) States() (files []protocol.SavedFile) {
	for _, sh := range st.shards {
		files = append(files, slotstate.Files(sh.rep.State.States())...)
	}
	return files
}

// Remove deletes the snapshots that Write has written.
func (st *EndedState) Remove(from store.Store) (err error) {
	for _, sh := range st.shards {
		err = errors.Join(err, shardstore.PruneSnapshots(from, sh.id, uint64(firstPosition)+1))
	}
	return err
}

// lastIncarnation is the highest incarnation: no process can replace one with it.
const lastIncarnation = math.MaxUint32

// firstPosition is the position of the first record of a new stream.
const firstPosition updatelog.Position = 1

// endedShard is the state of one shard.
type endedShard struct {
	id     perdure.ShardID
	mu     sync.Mutex // required by the stream; there is no concurrency
	rep    *replica.Replica
	link   chain.Link
	stream *shardstore.Stream
}

func newEndedShard(r *EndedRun, id perdure.ShardID) *endedShard {
	sh := &endedShard{id: id, rep: replica.New(replica.Settings{Shard: id, Job: r.Job})}
	sh.link = chain.NewLink(chain.LinkOptions{
		Fence: chain.Fence{Shard: id, Generation: r.View.Generation}, Job: &r.Job, Solo: true,
	})
	return sh
}

// read loads the shard's newest snapshot, or its content before the first record if there is none. Then it applies the
// records of its stream.
func (sh *endedShard) read(ctx context.Context, r *EndedRun, s updatelog.Stream) error {
	sh.stream = shardstore.NewStream(ctx, shardstore.StreamSettings{
		Shard: sh.id, Lock: &sh.mu, Store: r.Snapshots, Limits: shardstore.SnapshotLimits{Job: r.Job.ID},
	})
	// the log may compensate for a damaged snapshot
	in, from, err := sh.stream.Load(&r.Job, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	sh.rep.SetView(&r.View, replica.Role{}, false)
	if in != nil {
		sh.rep.InstallSnapshot(in)
	} else {
		c, err := shardstore.NewSaver(ctx, shardstore.SaverSettings{
			Job: &r.Job, Shard: sh.id, Lock: &sh.mu, Store: r.Checkpoints,
		}).Load(&r.View)
		if err != nil {
			return err
		}
		sh.rep.SetContent(c, &r.View)
	}
	if s.Damage == nil {
		if err := sh.stream.CheckRange(from, s.First, s.Next); err != nil {
			return err
		}
		s.First = from
	}
	return r.Log.Records(ctx, s, func(rec updatelog.Record) error {
		for i := range rec.Entries {
			if err := sh.applyStreamEntry(&rec.Entries[i]); err != nil {
				return fmt.Errorf("record %d: %w", rec.Position, err)
			}
		}
		return nil
	})
}

// applyStreamEntry processes an entry of the stream.
func (sh *endedShard) applyStreamEntry(e *updatelog.Entry) error {
	entry, ok, err := sh.stream.EntryLocked(e.Payload, &sh.link, &sh.rep.State, len(sh.rep.State.Parts()), false)
	if err != nil || !ok {
		return err
	}
	return sh.step(&entry)
}

func (sh *endedShard) step(e *replica.Entry) error {
	sh.rep.Step(e, e.Frame.Body)
	return sh.settle()
}

// settle applies everything that can be applied. There are no readers, so no other effects follow.
func (sh *endedShard) settle() error {
	sh.rep.Settle()
	fx := sh.rep.Effects()
	defer fx.Clear()
	if len(fx.Torn) > 0 {
		return errors.New(fx.Torn[0].Reason)
	}
	return fx.Fail
}

// appendHeadEntry makes the shard process an entry that a head would have appended after all workers had died.
func (sh *endedShard) appendHeadEntry(kind wire.Kind, slot perdure.Slot, clock perdure.Clock, body []byte) {
	e := replica.Entry{Frame: wire.Frame{
		Header:  wire.Header{Kind: kind, Shard: sh.id, Slot: slot, Incarnation: lastIncarnation, Clock: clock},
		Payload: body,
	}}
	sh.rep.Step(&e, nil)
}

// write writes the shard as a snapshot of another job, which starts with the view v.
func (sh *endedShard) write(ctx context.Context, to store.Store, job *perdure.JobSpec, v *protocol.View) error {
	was := &sh.rep.State
	rep := replica.New(replica.Settings{Shard: sh.id, Job: *job})
	rep.SetView(v, replica.Role{}, false)
	rep.SetContent(replica.Content{
		Parts: was.Parts(), States: was.States(), Applied: slices.Clone(was.Applied()), Seq: was.Seq(),
	}, v)
	snap := rep.State.Snapshot(replica.LogProgress{})
	st := shardstore.NewStream(
		ctx,
		shardstore.StreamSettings{
			Shard: sh.id, Lock: &sh.mu, Store: to,
			Limits: shardstore.SnapshotLimits{Job: job.ID},
		},
	)
	_, err := st.Write(&shardstore.SnapshotHeader{
		Job: job.ID, Shard: sh.id, Generation: v.Generation, Seq: was.Seq(), Position: uint64(firstPosition),
		Head: int64(len(snap.Header)), Rows: snap.Bytes,
	}, snap)
	return err
}

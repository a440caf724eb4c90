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
	"github.com/perdure/perdure/internal/core/link"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/core/states"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/shardstore"
)

// An ended run leaves in its update log, for each shard, the state that the newest snapshot and the records
// after it make: what a server would have that took the shard over. Clocks that workers had begun are decided
// as when all workers die at once. Another run can start with these states: each is written as the first
// snapshot of a new stream.
//
// An EndedState is not safe for concurrent use.

// EndedRun is a run that has ended, whose updates are in a log.
type EndedRun struct {
	Job perdure.JobSpec
	// View is the one that it began with: its generation, and, where it had gone on from a checkpoint
	// itself, that one's cut, tables and slots.
	View words.View

	Checkpoints, Snapshots store.Store
	Log                    EndedLog
}

// EndedLog is an update log that is only looked at: an [updatelog.Inspector], or what stands for one in tests.
type EndedLog interface {
	URL() string
	Streams(ctx context.Context) ([]updatelog.Stream, error)
	Records(ctx context.Context, s updatelog.Stream, show func(updatelog.Record) error) error
}

// EndedState is what a run has left.
type EndedState struct {
	Job        perdure.JobSpec
	Generation perdure.Generation
	Cut        perdure.Clock // all shards have all updates of the clocks below it
	Furthest   perdure.Clock // the most clocks that any shard has of any slot
	Tables     []perdure.TableSpec
	Slots      []words.Span // nil: all take part throughout
	PastClocks int64        // that slots did in spans before these

	shards []*endedShard
}

// ErrNothingLeft is wrapped when a run has ended before there was anything to go on from.
var ErrNothingLeft = errors.New("nothing to go on from")

// ReadEnded reads all that a run has left. It has all rows in memory then.
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
			return nil, fmt.Errorf("stream %s is not in the log at %s: it was removed, as when a run is done, or the "+
				"run ended before it was made, or this is another log", updatelog.StreamName(r.Job.ID, int(id)),
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

// Manifest is what a checkpoint of the state would say of the job.
func (st *EndedState) Manifest() checkpoint.Manifest {
	return checkpoint.Manifest{
		Job: st.Job, Generation: st.Generation, Cut: st.Cut, Tables: st.Tables, Slots: st.Slots,
		PastClocks: st.PastClocks,
	}
}

// settle brings all shards to the same roster and the same tables, and decides what becomes of the clocks that
// workers had begun.
func (st *EndedState) settle() error {
	roster, spans := st.shards[0].rep.Roster()
	for _, sh := range st.shards {
		if n, s := sh.rep.Roster(); n > roster {
			roster, spans = n, s
		}
	}
	for _, sh := range st.shards {
		if n, _ := sh.rep.Roster(); n < roster {
			sh.fact(wire.KindRoster, perdure.NoSlot, perdure.Clock(roster), wire.JSON(spans))
		}
	}
	if roster > 0 {
		st.Slots = slices.Clone(spans)
	}
	if err := st.agree(); err != nil {
		return err
	}
	for slot := range perdure.Slot(len(spans)) {
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
		return fmt.Errorf("%w: the run ended before every worker had ended its first clock", ErrNothingLeft)
	}
	return nil
}

// past returns how many clocks slots did in spans before the present ones: a log loses nothing, so they are what the
// rows contain beyond those of these. A shard may have more of a slot that was given up than its span says.
func (st *EndedState) past() int64 {
	least := int64(math.MaxInt64)
	for _, sh := range st.shards {
		n := int64(sh.rep.State.Seq())
		for slot, applied := range sh.rep.State.Applied() {
			var span words.Span
			if slot < len(st.Slots) {
				span = st.Slots[slot]
			}
			n -= int64(span.Clocks(applied))
		}
		least = min(least, n)
	}
	return max(least, 0)
}

// agree takes the tables of a shard for those of all: who has ended a clock has made them everywhere.
func (st *EndedState) agree() error {
	for _, p := range st.shards[0].rep.State.Parts() {
		st.Tables = append(st.Tables, p.Spec)
	}
	for _, sh := range st.shards {
		if len(sh.rep.State.Parts()) != len(st.Tables) {
			return fmt.Errorf("%w: the run ended while its tables were made", ErrNothingLeft)
		}
	}
	return nil
}

// decide carries out what becomes of the clocks that a slot had begun: see [membership.Start].
func (st *EndedState) decide(slot perdure.Slot) error {
	fences := make([]words.Fence, len(st.shards))
	for i, sh := range st.shards {
		fences[i] = words.Fence{Slot: slot, Counts: sh.rep.State.Counts(slot)}
	}
	start, torn := membership.Start(fences, st.Job.TwoStep(st.Tables), 0, nil)
	if torn {
		return fmt.Errorf("%w: some shards have clock %d of slot %d, others have lost their part of it; bring a copy "+
			"of the log back", updatelog.ErrDamaged, start-1, slot)
	}
	for _, sh := range st.shards {
		sh.fact(wire.KindFence, slot, 0, nil)
		sh.fact(wire.KindDecide, slot, start, nil)
	}
	return nil
}

// Write writes the state as the first snapshots of another job's streams.
func (st *EndedState) Write(ctx context.Context, to store.Store, job *perdure.JobSpec) error {
	if err := to.Prepare(); err != nil {
		return err
	}
	v := words.View{
		Generation: st.Generation + 1, Cut: st.Cut, Tables: st.Tables, Shards: make([]words.ShardView, job.Shards),
		Slots: make([]words.SlotView, len(st.shards[0].rep.State.Applied())),
	}
	for _, sh := range st.shards {
		if err := sh.write(ctx, to, job, &v); err != nil {
			return err
		}
	}
	return nil
}

// Applied returns how many of each slot's clocks a shard has.
func (st *EndedState) Applied(shard perdure.ShardID) []perdure.Clock {
	return slices.Clone(st.shards[shard].rep.State.Applied())
}

// States are what slots have saved in the earlier run's store, which the shards only refer to.
func (st *EndedState) States() (files []words.SavedFile) {
	for _, sh := range st.shards {
		files = append(files, states.Files(sh.rep.State.States())...)
	}
	return files
}

// Remove takes back what Write has written.
func (st *EndedState) Remove(from store.Store) (err error) {
	for _, sh := range st.shards {
		err = errors.Join(err, shardstore.PruneSnapshots(from, sh.id, uint64(firstPosition)+1))
	}
	return err
}

// nobody is the incarnation of whom none comes after.
const nobody = math.MaxUint32

// firstPosition is where a new stream begins.
const firstPosition updatelog.Position = 1

// endedShard is one shard's state.
type endedShard struct {
	id     perdure.ShardID
	mu     sync.Mutex // of the stream, though nobody else is there
	rep    *replica.Replica
	link   link.Link
	stream *shardstore.Stream
}

func newEndedShard(r *EndedRun, id perdure.ShardID) *endedShard {
	sh := &endedShard{id: id, rep: replica.New(replica.Settings{Shard: id, Job: r.Job})}
	sh.link = link.New(link.Settings{
		Name: link.Name{Shard: id, Generation: r.View.Generation}, Job: &r.Job, Solo: true,
	})
	return sh
}

// read makes it what its newest snapshot says, or what it was before its first record, and then what its stream
// makes of that.
func (sh *endedShard) read(ctx context.Context, r *EndedRun, s updatelog.Stream) error {
	sh.stream = shardstore.NewStream(ctx, shardstore.StreamSettings{
		Shard: sh.id, Lock: &sh.mu, Store: r.Snapshots, Limits: shardstore.SnapshotLimits{Job: r.Job.ID},
	})
	in, from, err := sh.stream.Load(&r.Job, slog.New(slog.DiscardHandler)) // the log may make up for a damaged one
	if err != nil {
		return err
	}
	sh.rep.Follow(&r.View, replica.Place{}, false)
	if in != nil {
		sh.rep.Adopt(in)
	} else {
		c, err := shardstore.NewSaver(ctx, shardstore.SaverSettings{
			Job: &r.Job, Shard: sh.id, Lock: &sh.mu, Store: r.Checkpoints,
		}).Load(&r.View)
		if err != nil {
			return err
		}
		sh.rep.Fill(c, &r.View)
	}
	if s.Damage == nil {
		if err := sh.stream.Within(from, s.First, s.Next); err != nil {
			return err
		}
		s.First = from
	}
	return r.Log.Records(ctx, s, func(rec updatelog.Record) error {
		for i := range rec.Entries {
			if err := sh.take(&rec.Entries[i]); err != nil {
				return fmt.Errorf("record %d: %w", rec.Position, err)
			}
		}
		return nil
	})
}

// take takes an entry of the stream.
func (sh *endedShard) take(e *updatelog.Entry) error {
	entry, ok, err := sh.stream.Entry(e.Payload, &sh.link, &sh.rep.State, len(sh.rep.State.Parts()), false)
	if err != nil || !ok {
		return err
	}
	return sh.step(&entry)
}

func (sh *endedShard) step(e *replica.Entry) error {
	sh.rep.Step(e, e.Frame.Body)
	return sh.settle()
}

// settle applies what may be applied. Nobody reads, so that nothing else follows.
func (sh *endedShard) settle() error {
	sh.rep.Settle()
	fx := sh.rep.Effects()
	defer fx.Clear()
	if len(fx.Torn) > 0 {
		return errors.New(fx.Torn[0].Why)
	}
	return fx.Fail
}

// fact has the shard take what a head would have appended when all workers had died.
func (sh *endedShard) fact(kind wire.Kind, slot perdure.Slot, clock perdure.Clock, body []byte) {
	e := replica.Entry{Frame: wire.Frame{
		Header: wire.Header{Kind: kind, Shard: sh.id, Slot: slot, Incarnation: nobody, Clock: clock}, Payload: body,
	}}
	sh.rep.Step(&e, nil)
}

// write writes it as a snapshot of another job's, with which a view says that it begins.
func (sh *endedShard) write(ctx context.Context, to store.Store, job *perdure.JobSpec, v *words.View) error {
	was := &sh.rep.State
	rep := replica.New(replica.Settings{Shard: sh.id, Job: *job})
	rep.Follow(v, replica.Place{}, false)
	rep.Fill(replica.Content{
		Parts: was.Parts(), States: was.States(), Applied: slices.Clone(was.Applied()), Seq: was.Seq(),
	}, v)
	snap := rep.State.Snapshot(replica.Life{})
	st := shardstore.NewStream(
		ctx,
		shardstore.StreamSettings{
			Shard: sh.id, Lock: &sh.mu, Store: to,
			Limits: shardstore.SnapshotLimits{Job: job.ID},
		},
	)
	_, err := st.Write(&shardstore.SnapshotAbout{
		Job: job.ID, Shard: sh.id, Generation: v.Generation, Seq: was.Seq(), Position: uint64(firstPosition),
		Head: int64(len(snap.Words)), Rows: snap.Bytes,
	}, snap)
	return err
}

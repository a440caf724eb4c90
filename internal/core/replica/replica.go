// Package replica implements one replica of a shard: its rows, the order in which updates are applied, the reads that
// wait, and the cuts that are saved. It performs no I/O. It takes log entries and requests, and returns the actions
// that the shell must carry out. The shell, package server, owns the connections, the clock, the goroutines and the
// disks.
//
// [Replica.Step] takes in one log entry. [Replica.Settle] applies what may be applied and decides what follows. Both
// collect [Effects], which the shell carries out in the order of the struct's fields. The shell may step many entries
// before it settles once; readers are then notified once for all of them.
//
// Invariants:
//   - Rows, saved states, counts and cuts are a function of the log entries and their order, so replicas with the same
//     entries are equal. Nothing that a replica does on its own, such as answering reads, saving or lagging, may change
//     what it applies next.
//   - An update is applied completely or not at all; [consistency.Intake] ensures the order.
//   - A reader never sees rows that lack an update which some reader has already seen.
//   - A Replica never calls back: no method blocks or runs code of its caller, except for the Progress and Elapsed
//     hooks.
//
// A Replica is not safe for concurrent use; the server's lock of the shard guards it. The same lock guards snapshots
// and images of its rows.
package replica

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/states"
	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
)

// Settings configure a replica. They never change.
type Settings struct {
	Shard perdure.ShardID
	Job   perdure.JobSpec
	// For tests: background saves contain only changed rows, however little that spares.
	Sparing bool
	// Elapsed returns the seconds since an arbitrary fixed moment. It only measures how long training paused; no
	// decision depends on it. If it is nil, pauses are not measured.
	Elapsed func() float64
	// Progress is called for each block of rows that an update changes, so that an observer can tell a slow update from
	// one that hangs. It may be nil.
	Progress func()
	Unstored int        // for tests: replaces MostUnstored
	Weak     weaken.Set // for negative controls
}

// MostUnstored limits a slot's subscription to one table: it may contain at most this many rows more than are stored
// here. A slot at the limit costs about 800 MB of memory. A worker caches the rows of its subscription, usually in 256
// MiB. It drops rows that it does not read and changes most of those that it reads, and changed rows are stored. A
// worker that cached this many unchanged rows of one shard would need 700 MB for them alone.
const MostUnstored = 16 << 20

// Place is the part that the view assigns to this replica among the replicas of its shard.
type Place struct {
	Head     bool
	Reads    bool // vap tables are read here; only this replica knows which updates slots have seen
	Periodic bool // the other replicas are brought up to date periodically
}

// Entry is an entry of the shard's log: a frame that a worker sent, or one that the head derived from the view. Its
// epoch and request number are filled in when it is forwarded.
type Entry struct {
	Frame wire.Frame
	From  *Reader // at the head: the reader to notify if an earlier entry is missing
}

// Replica is one replica of a shard. Its two parts, State and Audience, answer queries that concern them alone; queries
// that concern both are methods of Replica.
type Replica struct {
	State    State
	Audience Audience

	shard     perdure.ShardID
	job       *perdure.JobSpec
	traits    recovery.Traits
	weak      weaken.Set
	view      *words.View
	place     Place
	ready     bool // serves in this epoch
	renewed   bool // has been in another epoch
	proposals proposals
	resend    resending
	queued    promises      // reported when a process opens the shard or learns that it is back
	stirred   bool          // something changed since the last Settle
	synced    perdure.Clock // periods after which the other replicas were brought up to date
}

// New returns a replica that has no rows yet.
func New(s Settings) *Replica {
	job := &s.Job
	if s.Progress == nil {
		s.Progress = func() {}
	}
	traits := recovery.Of(job.Recovery).Traits()
	r := &Replica{
		State: newState(&s, job, traits), shard: s.Shard, job: job, traits: traits, weak: s.Weak,
		stirred: true,
	}
	r.Audience.unstored = cmp.Or(s.Unstored, MostUnstored)
	r.Audience.readers.grow(job.Slots)
	r.Audience.pushes.restart(job.Slots)
	return r
}

// Effects returns the effects collected since they were last cleared.
func (r *Replica) Effects() *Effects { return &r.Audience.fx }

// Ready reports whether the replica serves in this epoch.
func (r *Replica) Ready() bool { return r.ready }

// Fill sets the content that the replica starts with, according to the view.
func (r *Replica) Fill(c Content, v *words.View) {
	r.view, r.Audience.view = v, v
	r.State.fill(c, v.RestoredAt(r.shard))
	r.Audience.grow(&r.State)
	r.Audience.addSubs(&r.State, r.fromBefore(), r.place.Reads)
}

// Adopt replaces the state by a finished snapshot. Open readers keep reading.
func (r *Replica) Adopt(in *Incoming) {
	r.State.adopt(in)
	r.State.rounds.forget() // this replica does not know which rows others have saved
	r.Audience.grow(&r.State)
	r.Audience.pushes.restart(len(r.Audience.seats))
	r.renewed = true
	r.Audience.addSubs(&r.State, true, r.place.Reads)
	r.Finish() // updates whose application the snapshot's sender had left to another goroutine
}

// Finish applies what may be applied.
func (r *Replica) Finish() { r.State.applyAll(&r.Audience) }

// Follow applies the view to the replica. If renew is set, a new epoch starts for a replica that keeps its rows, and
// its readers must open the shard again.
func (r *Replica) Follow(v *words.View, at Place, renew bool) {
	r.view, r.Audience.view, r.place, r.State.cuts.head = v, v, at, at.Head
	if renew {
		r.ready, r.renewed, r.proposals = false, true, proposals{}
		r.resend, r.queued = resending{}, nil
		r.Audience.renew()
		if r.State.Has() {
			r.Audience.addSubs(&r.State, true, at.Reads)
		}
	}
	r.resend.restored = v.Shards[r.shard].Restored
}

// Heed applies the view's slots and checkpoints. The replica must have a log.
func (r *Replica) Heed() {
	r.Audience.follow(r.queued)
	r.State.cuts.durable(r.view.Durable)
}

// fromBefore reports whether slots may have cached rows of an earlier life of the shard in this generation. A replica
// that is rebuilt from its log cannot rule that out.
func (r *Replica) fromBefore() bool {
	mine := &r.view.Shards[r.shard]
	return r.renewed || mine.Lost || mine.Restored || r.traits.Logged()
}

// Propose makes the head append entries that the view requires, and starts serving once nothing prevents it. It reports
// whether there are entries to append. The log must be serving: everything that it contained when the epoch began must
// be applied.
func (r *Replica) Propose() (news bool) {
	fx, p := r.Effects(), &r.proposals
	before := len(fx.Facts)
	if !p.beforeServing(r.view, r.place.Head, &r.State, fx) {
		if !r.ready && p.mayServe(&r.view.Shards[r.shard], r.place.Head, fx) {
			r.begin()
		}
		if r.ready && r.place.Head {
			p.serving(r.view, fx)
		}
	}
	return len(fx.Facts) > before
}

// begin starts serving the readers that open the shard.
func (r *Replica) begin() {
	r.ready, r.stirred = true, true
	r.Audience.follow(r.queued)
	r.proposals.begin(&r.State)
	r.Effects().Tell = true
}

// Step takes in the log's next entry. The replica keeps the body of an update, so the caller must not use it
// afterwards. Step reports whether the entry completes a large update, which may be worth a goroutine that settles.
func (r *Replica) Step(e *Entry, body []byte) (large bool) {
	f, fx := &e.Frame, r.Effects()
	if n := len(r.State.Applied()); int(f.Slot) >= n {
		r.fail(fmt.Errorf("%w: an entry of kind %d has slot %d, but the job has %d slots",
			wire.ErrPayload, f.Kind, f.Slot, n))
		return false
	}
	r.stirred = true
	switch f.Kind {
	case wire.KindUpdate:
		verdict := r.State.offer(f, body, &r.Audience)
		if s := &r.Audience.seats[f.Slot]; f.Flags&wire.FlagPrompt != 0 {
			s.prompt = max(s.prompt, f.Until())
		}
		return r.took(e, verdict) && heavyNext(r.State.intake, f.Slot)
	case wire.KindTick:
		r.took(e, r.State.intake.Tick(f.Slot, f.Incarnation, f.Clock))
		return false
	}
	r.Finish() // every replica must have applied the same updates when it takes the fact
	if err := r.takeFact(f); err != nil {
		r.fail(err)
	}
	r.Finish()
	fx.Tell = true // a process waits for it
	return false
}

// fail stops the server, which cannot apply an entry of its log.
func (r *Replica) fail(err error) { r.Effects().fail("shard %d: %w", r.shard, err) }

// took acts on the intake's verdict about an entry, and reports whether the entry changed anything.
func (r *Replica) took(e *Entry, verdict consistency.Verdict) bool {
	f, fx := &e.Frame, r.Effects()
	switch verdict {
	case consistency.Gap:
		if e.From != nil {
			fx.Moved = append(fx.Moved, e.From) // it opens the shard again and resends from the count it receives
		}
		return false
	case consistency.Fenced:
		return false // its connection is being closed
	case consistency.Torn:
		fx.Torn = append(fx.Torn, Torn{
			From: e.From,
			Why: fmt.Sprintf("the update of slot %d covers clocks %d to %d, "+
				"but shard %d can apply only some of them (it has applied those below %d): the update is rejected",
				f.Slot, f.Clock, f.Until()-1, r.shard, r.State.Applied()[f.Slot]),
		})
		return false
	}
	if f.Kind == wire.KindUpdate {
		s := &r.Audience.seats[f.Slot]
		r.Audience.changed(f.Slot)
		if last := f.Parts > 0 && f.Part == f.Parts-1; last && r.State.intake.TwoStep() {
			s.staged = true
		}
	}
	return true
}

// takeFact applies an entry that the head derived from the view.
func (r *Replica) takeFact(f *wire.Frame) error {
	st, to := &r.State, &r.Audience
	before := slices.Clone(st.Applied())
	switch f.Kind {
	case wire.KindAddTable:
		added, err := st.addTable(f)
		if err != nil || !added {
			return err
		}
		to.addSubs(st, r.fromBefore(), r.place.Reads)
		to.follow(r.queued) // so that no push waits for a slot without a process
	case wire.KindBase:
		if err := st.raise(f); err != nil {
			return err
		}
		to.pushes.raised(before, st.Applied(), st.Seq())
		r.proposals.based = r.proposals.base
	case wire.KindRoster:
		if err := st.setRoster(f); err != nil {
			return err
		}
		to.pushes.raised(before, st.Applied(), st.Seq())
		to.grow(st)
		to.follow(r.queued)
	default:
		return st.take(f)
	}
	return nil
}

// Stirred reports whether something changed since the last Settle.
func (r *Replica) Stirred() bool { return r.stirred }

// Stir makes the next Settle check everything again, even if nothing has changed.
func (r *Replica) Stir() { r.stirred = true }

// Rest marks the replica as settled, because another goroutine will call Settle. That goroutine calls Stir first.
func (r *Replica) Rest() { r.stirred = false }

// Settle applies whatever may be applied and decides what follows: which rows are pushed, which cut is saved, which
// reads are answered, and which slots are sent their counts.
func (r *Replica) Settle() {
	st, to, fx := &r.State, &r.Audience, r.Effects()
	r.stirred = false
	if st.cuts.stands {
		to.acknowledge(st) // for updates staged while the cut is written
		return
	}
	st.applyAll(to)
	r.checkResent()
	if !r.holds() {
		to.push(st)
	}
	if r.ready && st.cuts.due(st.intake) {
		st.cuts.stands = true
		fx.Saves = append(fx.Saves, Save{Cut: st.MinClock()})
	}
	to.answerWaiting(st, r.holds())
	to.acknowledge(st)
	// Sync the other replicas whenever MinClock passes another multiple of the period.
	if r.place.Periodic && r.place.Head && r.ready {
		if n := st.MinClock() / r.traits.Period; n > r.synced {
			r.synced, fx.Sync = n, true
		}
	}
}

// checkResent checks whether a restored shard has been sent everything again. Ticked updates that wait for other slots
// were not visible before the loss either, so they need not be applied. The former life had passed any cut at which the
// shard is paused, so the check waits until the shard leaves the cut.
func (r *Replica) checkResent() {
	in := r.State.intake
	if r.resend.lacks() && r.ready && !in.AtCut() && r.resend.complete(r.view, in) {
		r.resend.whole = true
		r.Effects().Tell = true
	}
}

// Mends reports whether the shard serves but still waits for updates that its lost replicas had. Any change of the
// membership may complete it.
func (r *Replica) Mends() bool { return r.ready && r.resend.lacks() }

// holds reports whether the shard still withholds its rows from all readers.
func (r *Replica) holds() bool { return r.resend.lacks() && !r.weak.Holding }

// Lacks reports whether some process has ended clocks that the shard has not applied.
func (r *Replica) Lacks() bool { return r.queued.beyond(r.view, r.State.Applied()) }

// Read takes a request. If now is true, the caller answers it immediately with the current rows; otherwise the request
// must wait. After an error the caller closes the connection.
func (r *Replica) Read(rd *Read) (now bool, err error) {
	st, holds := &r.State, r.holds()
	if st.allows(rd) && !holds {
		return true, r.Audience.answer(rd, st)
	}
	r.Audience.waits(allowance{st.MinClock(), len(st.rows.parts), holds})
	if int(rd.Rows.Table) < len(st.rows.parts) {
		err = st.rows.checkRead(rd, len(st.Applied()))
	}
	return false, err
}

// Open takes a reader that starts to use the shard.
func (r *Replica) Open(o Open) {
	if !r.resend.whole {
		r.resend.reported.record(o.Reader, o.Ended)
	}
	r.queued.record(o.Reader, o.Ended)
	r.Audience.opening = append(r.Audience.opening, o)
}

// AnswerOpens answers the Opens that may be answered once the log is applied up to pos.
func (r *Replica) AnswerOpens(pos uint64) {
	if r.ready && r.Audience.Opening() {
		r.Audience.answerOpens(pos, &r.State)
	}
}

// Roster returns the newest membership in the log: its number, and the membership interval of each slot. The caller
// must not modify the slice.
func (r *Replica) Roster() (number uint64, spans []words.Span) {
	return r.State.intake.Roster(), r.State.intake.Spans()
}

// TellSeen notifies slots whose updates have become visible to all because another slot has left.
func (r *Replica) TellSeen() {
	if r.ready && r.Audience.pushes.seen != nil {
		r.Audience.acknowledge(&r.State)
	}
}

// Prompt records that a slot waits until its clocks below ended are applied.
func (r *Replica) Prompt(c *Reader, ended perdure.Clock) {
	r.queued.record(c, ended)
	r.Audience.prompt(c, ended, &r.State)
}

// Saw records the state that a slot's cached rows have reached.
func (r *Replica) Saw(c *Reader, seq uint64) error { return r.Audience.saw(c, seq, &r.State) }

// Unsubscribe ends subscriptions to rows that the reader no longer uses.
func (r *Replica) Unsubscribe(c *Reader, rows *wire.Rows) error {
	return r.Audience.unsubscribe(c, rows, &r.State)
}

// Counts returns how far the updates of a connection's slot have come.
func (r *Replica) Counts(c *Reader) words.Counts { return r.Audience.counts(c, &r.State) }

// GiveUpSaving records that the cut which the shard has left is no longer being written. The shard stops at its next
// cut until a cut is saved.
func (r *Replica) GiveUpSaving() {
	r.State.cuts.writes = false
	r.stirred = true // it may already be at the next cut
}

// Status adds this replica's part to a status for the coordinator. If the shard's rows were lost and no replica serves
// them yet, the head reports its counts.
func (r *Replica) Status(v *words.View, st *words.ShardStatus) {
	in, sv := r.State.intake, &r.State.cuts
	st.Ready, st.Segments = r.ready, slices.Clone(sv.segments)
	if !r.ready {
		if in != nil && r.place.Head && v.Shards[r.shard].Lost {
			st.Applied, st.Seq, st.Kept = slices.Clone(in.Applied()), r.State.Seq(), r.State.rounds.kept
		}
		return
	}
	if r.State.rounds.Any() && r.place.Head {
		ro := &r.State.rounds
		st.Segments, st.SaveBytes, st.SaveSeconds = ro.segments(sv.schedule.Named), ro.bytes, ro.paused
	}
	st.States, st.Held = states.Names(r.State.rows.states), held(&r.State)
	st.MinClock, st.Seq, st.Roster = in.MinClock(), r.State.Seq(), in.Roster()
	st.Named, st.Whole, st.Missed = sv.schedule.Named, r.resend.whole, sv.missed()
	if r.place.Head && r.State.rounds.missed(st.Named, st.MinClock) {
		st.Missed = true
	}
	for i, sl := range v.Slots {
		slot := perdure.Slot(i)
		if i >= len(in.Applied()) {
			break // the entry with the new membership has not arrived yet
		}
		if !sl.Settled {
			st.Fences = append(st.Fences, words.Fence{
				Slot: slot, Incarnation: in.Incarnation(slot), Counts: in.Counts(slot),
				Carried: sl.Decided && in.Carried(slot, sl.Incarnation),
			})
		}
	}
}

// Package replica implements one replica of a shard: its rows, the order in which updates are applied, the reads
// that wait, and the cuts that are saved. It is pure: it takes entries of the shard's log, and requests, and
// returns what is to be done. The shell, package server, owns connections, time, goroutines and disks.
//
// An entry's way is [Replica.Step], which takes it in, and then [Replica.Settle], which applies
// what may be applied and decides what follows from that. Both gather [Effects], which the
// shell carries out in the order of their fields. Thus many entries may be stepped at once, and
// settled together: their readers are then told once.
//
// Invariants:
//   - rows, saved states, counts and cuts are a function of the entries, in their order: every
//     replica that was given the same ones has the same. So nothing that a replica does of its
//     own, like reading, saving or being slow, may change what it applies next;
//   - an update is applied in one piece, or not at all ([consistency.Intake] sees to the order);
//   - nobody reads rows that lack what somebody has been shown before;
//   - nothing here calls back: no method of a Replica waits, or runs code of its caller.
//
// Nothing here is safe for concurrent use; the server's lock of the shard guards it. That is so
// for snapshots and images of its rows, too.
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

// Settings are what a replica is of. They never change.
type Settings struct {
	Shard perdure.ShardID
	Job   perdure.JobSpec
	// For tests: what is saved in the background has only what has changed, however little that spares.
	Sparing bool
	// Elapsed is the time since some moment, in seconds. It says how long training paused; nothing
	// is decided by it. nil: that is not measured.
	Elapsed func() float64
	// Progress is called for each block of rows that an update changes, so that an observer can tell an update that
	// takes long from one that hangs. nil: nobody observes.
	Progress func()
	Unstored int        // for tests: instead of MostUnstored
	Weak     weaken.Set // for negative controls
}

// MostUnstored is how many more rows of a table than are stored here a slot may be subscribed to: some 800 MB of memory
// for each slot that has as many. A worker keeps what it is subscribed to in its cache, 256 MiB usually, gives up what
// it does not read, and changes most of what it reads, which is stored then; one that kept as many rows that nobody
// changes, of one shard, would have 700 MB of these alone.
const MostUnstored = 16 << 20

// Place is a replica's part among the shard's replicas, as a view says.
type Place struct {
	Head     bool
	Reads    bool // rows of vap tables are read here: of no other replica is it known what slots can see
	Periodic bool // the others are brought up to the head periodically
}

// Entry is an entry of the shard's log: a frame as a worker sent it, or as the head made it of
// the view. Its epoch and request are put in when it is sent on.
type Entry struct {
	Frame wire.Frame
	From  *Reader // at the head: who is told if something before it is missing
}

// Replica is one replica. See the package comment. What the state and the audience can say of
// themselves, they are asked directly; what concerns both is asked of the replica.
type Replica struct {
	State    State
	Audience Audience

	shard     perdure.ShardID
	job       *perdure.JobSpec
	traits    recovery.Traits
	weak      weaken.Set
	view      *words.View
	place     Place
	ready     bool // it serves, in this epoch
	renewed   bool // it has been in another epoch
	proposals proposals
	mending   mending
	arrears   promises      // as processes open the shard, or hear that it is back
	stirred   bool          // something came since Settle was called
	synced    perdure.Clock // periods after which the others were brought up to date
}

// New makes a replica that has no rows yet.
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

// Effects are those that have gathered since they were cleared.
func (r *Replica) Effects() *Effects { return &r.Audience.fx }

// Ready reports whether the shard serves, in this epoch.
func (r *Replica) Ready() bool { return r.ready }

// Fill gives the replica the content that a view says it begins with.
func (r *Replica) Fill(c Content, v *words.View) {
	r.view, r.Audience.view = v, v
	r.State.fill(c, v.RestoredAt(r.shard))
	r.Audience.grow(&r.State)
	r.Audience.addSubs(&r.State, r.fromBefore(), r.place.Reads)
}

// Adopt makes the replica what a finished snapshot says. Who reads goes on reading.
func (r *Replica) Adopt(in *Incoming) {
	r.State.adopt(in)
	r.State.rounds.forget() // what others have saved is not known here
	r.Audience.grow(&r.State)
	r.Audience.pushes.restart(len(r.Audience.seats))
	r.renewed = true
	r.Audience.addSubs(&r.State, true, r.place.Reads)
	r.Finish() // what its sender had left to another goroutine
}

// Finish applies what may be applied.
func (r *Replica) Finish() { r.State.applyAll(&r.Audience) }

// Follow brings the replica to what the view says of it. renew: that is another epoch of a
// replica that goes on, and those who read open it anew.
func (r *Replica) Follow(v *words.View, at Place, renew bool) {
	r.view, r.Audience.view, r.place, r.State.cuts.head = v, v, at, at.Head
	if renew {
		r.ready, r.renewed, r.proposals = false, true, proposals{}
		r.mending, r.arrears = mending{}, nil
		r.Audience.renew()
		if r.State.Has() {
			r.Audience.addSubs(&r.State, true, at.Reads)
		}
	}
	r.mending.restored = v.Shards[r.shard].Restored
}

// Heed takes over, once the replica has a log, what the view says of slots and checkpoints.
func (r *Replica) Heed() {
	r.Audience.follow(r.arrears)
	r.State.cuts.durable(r.view.Durable)
}

// fromBefore reports whether slots may have rows cached of a former life of the shard in this
// generation. One that is made of its log never knows that they have not.
func (r *Replica) fromBefore() bool {
	mine := &r.view.Shards[r.shard]
	return r.renewed || mine.Lost || mine.Restored || r.traits.Logged()
}

// Propose has the head append what the view says, and begins to serve once nothing stands
// against it. It reports whether there is something to append. The log must serve: all that
// it had when the epoch began is applied.
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

// begin serves those who open the shard, from now on.
func (r *Replica) begin() {
	r.ready, r.stirred = true, true
	r.Audience.follow(r.arrears)
	r.proposals.begin(&r.State)
	r.Effects().Tell = true
}

// Step takes the log's next entry in. The body of an update belongs to the replica from then
// on. It reports whether the entry completes a large update, which may be worth a goroutine
// that settles.
func (r *Replica) Step(e *Entry, body []byte) (large bool) {
	f, fx := &e.Frame, r.Effects()
	if n := len(r.State.Applied()); int(f.Slot) >= n {
		r.fail(fmt.Errorf("%w: an entry of kind %d is of slot %d of %d", wire.ErrPayload, f.Kind, f.Slot, n))
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
	r.Finish() // so that every replica has applied the same when it hears of the fact
	if err := r.takeFact(f); err != nil {
		r.fail(err)
	}
	r.Finish()
	fx.Tell = true // somebody waits for it
	return false
}

// fail ends a server that cannot take what is in the log.
func (r *Replica) fail(err error) { r.Effects().fail("shard %d: %w", r.shard, err) }

// took follows up on what the intake made of an entry, and reports whether it
// changed anything.
func (r *Replica) took(e *Entry, verdict consistency.Verdict) bool {
	f, fx := &e.Frame, r.Effects()
	switch verdict {
	case consistency.Gap:
		if e.From != nil {
			fx.Moved = append(fx.Moved, e.From) // it opens the shard anew and resends from what it is told
		}
		return false
	case consistency.Fenced:
		return false // its connection is being closed
	case consistency.Torn:
		fx.Torn = append(fx.Torn, Torn{
			From: e.From,
			Why: fmt.Sprintf("an update of slot %d is of the clocks %d to %d, "+
				"of which shard %d may take some and not the others (it has applied those before %d): it takes none",
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

// takeFact takes an entry that the head made of the view.
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
		to.follow(r.arrears) // nobody waits for slots that nobody speaks for
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
		to.follow(r.arrears)
	default:
		return st.take(f)
	}
	return nil
}

// Stirred reports whether something came since Settle was called.
func (r *Replica) Stirred() bool { return r.stirred }

// Stir has Settle look again, though nothing may have come.
func (r *Replica) Stir() { r.stirred = true }

// Rest says that Settle need not look before something else comes: another goroutine is to call
// it, and stirs the replica first.
func (r *Replica) Rest() { r.stirred = false }

// Settle applies whatever may be applied, and decides what follows: what is pushed, which cut
// is saved, who is answered and who is told how far it has come.
func (r *Replica) Settle() {
	st, to, fx := &r.State, &r.Audience, r.Effects()
	r.stirred = false
	if st.cuts.stands {
		to.acknowledge(st) // what is staged meanwhile
		return
	}
	st.applyAll(to)
	r.mend()
	if !r.holds() {
		to.push(st)
	}
	if r.ready && st.cuts.due(st.intake) {
		st.cuts.stands = true
		fx.Saves = append(fx.Saves, Save{Cut: st.MinClock()})
	}
	to.answerWaiting(st, r.holds())
	to.acknowledge(st)
	if r.place.Periodic && r.place.Head && r.ready { // whenever MinClock has come past another multiple of the period
		if n := st.MinClock() / r.traits.Period; n > r.synced {
			r.synced, fx.Sync = n, true
		}
	}
}

// mend looks whether a restored shard has been sent all again. What waits for others at
// a cut was not shown before either; a cut at which the shard stands was passed.
func (r *Replica) mend() {
	in := r.State.intake
	if r.mending.lacks() && r.ready && !in.AtCut() && r.mending.complete(r.view, in) {
		r.mending.whole = true
		r.Effects().Tell = true
	}
}

// Mends reports whether the shard serves and is still being sent what its former life had:
// whatever changes who takes part may be what it waits for.
func (r *Replica) Mends() bool { return r.ready && r.mending.lacks() }

// holds reports whether the shard shows nobody its rows yet.
func (r *Replica) holds() bool { return r.mending.lacks() && !r.weak.Holding }

// Lacks reports whether the shard is known to lack updates that have been made.
func (r *Replica) Lacks() bool { return r.arrears.beyond(r.view, r.State.Applied()) }

// Read takes a request. It may be answered now, with rows as they are, or has to wait. An
// error ends its connection.
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

// Open takes a reader that begins.
func (r *Replica) Open(o Open) {
	if !r.mending.whole {
		r.mending.told.tell(o.Reader, o.Ended)
	}
	r.arrears.tell(o.Reader, o.Ended)
	r.Audience.opening = append(r.Audience.opening, o)
}

// AnswerOpens answers the Opens that may be answered when the log is applied up to pos.
func (r *Replica) AnswerOpens(pos uint64) {
	if r.ready && r.Audience.Opening() {
		r.Audience.answerOpens(pos, &r.State)
	}
}

// Roster is the newest roster that the log has, its number and when each slot takes part. It is the replica's
// own: do not change it.
func (r *Replica) Roster() (number uint64, spans []words.Span) {
	return r.State.intake.Roster(), r.State.intake.Spans()
}

// TellSeen has slots told of which of their clocks more are seen by all, since somebody has
// left.
func (r *Replica) TellSeen() {
	if r.ready && r.Audience.pushes.seen != nil {
		r.Audience.acknowledge(&r.State)
	}
}

// Prompt takes a slot's word that it waits until its clocks below ended are applied.
func (r *Replica) Prompt(c *Reader, ended perdure.Clock) {
	r.arrears.tell(c, ended)
	r.Audience.prompt(c, ended, &r.State)
}

// Saw takes a slot's word for which state its cached rows have.
func (r *Replica) Saw(c *Reader, seq uint64) error { return r.Audience.saw(c, seq, &r.State) }

// Unsubscribe ends subscriptions: the reader has no use for the rows any more.
func (r *Replica) Unsubscribe(c *Reader, rows *wire.Rows) error {
	return r.Audience.unsubscribe(c, rows, &r.State)
}

// Counts tells a connection's slot how far it has come.
func (r *Replica) Counts(c *Reader) words.Counts { return r.Audience.counts(c, &r.State) }

// GiveUpSaving says that the cut which the shard has left is not being written any more: it
// stands at the next one until it is.
func (r *Replica) GiveUpSaving() {
	r.State.cuts.writes = false
	r.stirred = true // it may stand there already
}

// Status adds to a status what the coordinator is to hear of this replica. Where the shard's
// rows were lost and nobody serves them yet, the head says what it has.
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
	st.Named, st.Whole, st.Missed = sv.schedule.Named, r.mending.whole, sv.missed()
	if r.place.Head && r.State.rounds.missed(st.Named, st.MinClock) {
		st.Missed = true
	}
	for i, sl := range v.Slots {
		slot := perdure.Slot(i)
		if i >= len(in.Applied()) {
			break // its roster is on its way
		}
		if !sl.Settled {
			st.Fences = append(st.Fences, words.Fence{
				Slot: slot, Incarnation: in.Incarnation(slot), Counts: in.Counts(slot),
				Carried: sl.Decided && in.Carried(slot, sl.Incarnation),
			})
		}
	}
}

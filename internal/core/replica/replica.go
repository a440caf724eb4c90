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
//   - An update is applied completely or not at all; [consistency.Sequencer] ensures the order.
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
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/wire"
)

// Settings configure a replica. They never change.
type Settings struct {
	Shard perdure.ShardID
	Job   perdure.JobSpec
	// For tests: background saves contain only changed rows, however little that spares.
	SaveChangedOnly bool
	// Elapsed returns the seconds since an arbitrary fixed moment. It only measures how long training paused; no
	// decision depends on it. If it is nil, pauses are not measured.
	Elapsed func() float64
	// Progress is called for each block of rows that an update changes, so that an observer can tell a slow update from
	// one that hangs. It may be nil.
	Progress    func()
	MaxUnstored int          // for tests: replaces MaxUnstored
	Mutations   mutation.Set // for negative controls
}

// MaxUnstored limits a slot's subscription to one table: it may contain at most this many rows more than are stored
// here. A slot at the limit costs about 800 MB of memory. A worker caches the rows of its subscription, usually in 256
// MiB. It drops rows that it does not read and changes most of those that it reads, and changed rows are stored. A
// worker that cached this many unchanged rows of one shard would need 700 MB for them alone.
const MaxUnstored = 16 << 20

// Role is the part that the view assigns to this replica among the replicas of its shard.
type Role struct {
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

// Replica is one replica of a shard. Its two parts, State and Readers, answer queries that concern them alone; queries
// that concern both are methods of Replica.
type Replica struct {
	State   State
	Readers ReaderSet

	shard     perdure.ShardID
	job       *perdure.JobSpec
	traits    recovery.Traits
	mutations mutation.Set
	view      *protocol.View
	role      Role
	ready     bool // serves in this epoch
	renewed   bool // has been in another epoch
	proposals proposals
	resend    resendProgress
	queued    endedReports  // reported when a process opens the shard or learns that it is back
	dirty     bool          // something changed since the last Settle
	synced    perdure.Clock // periods after which the other replicas were brought up to date
}

// New returns a replica that has no rows yet.
func New(s Settings) *Replica {
	job := &s.Job
	if s.Progress == nil {
		s.Progress = func() {}
	}
	traits := recovery.TraitsOf(job)
	r := &Replica{
		State: newState(&s, job, traits), shard: s.Shard, job: job, traits: traits, mutations: s.Mutations,
		dirty: true,
	}
	r.Readers.unstored = cmp.Or(s.MaxUnstored, MaxUnstored)
	r.Readers.readers.grow(job.Slots)
	r.Readers.pushes.restart(job.Slots)
	return r
}

// Effects returns the effects collected since they were last cleared.
func (r *Replica) Effects() *Effects { return &r.Readers.fx }

// Ready reports whether the replica serves in this epoch.
func (r *Replica) Ready() bool { return r.ready }

// SetContent sets the content that the replica starts with, according to the view.
func (r *Replica) SetContent(c Content, v *protocol.View) {
	r.view, r.Readers.view = v, v
	r.State.fill(c, v.RestoredAt(r.shard))
	r.Readers.grow(&r.State)
	r.Readers.addSubs(&r.State, r.fromBefore(), r.role.Reads)
}

// InstallSnapshot replaces the state by a finished snapshot. Open readers keep reading.
func (r *Replica) InstallSnapshot(in *IncomingSnapshot) {
	r.State.installSnapshot(in)
	r.State.rounds.forget() // this replica does not know which rows others have saved
	r.Readers.grow(&r.State)
	r.Readers.pushes.restart(len(r.Readers.slots))
	r.renewed = true
	r.Readers.addSubs(&r.State, true, r.role.Reads)
	r.ApplyAll() // updates whose application the snapshot's sender had left to another goroutine
}

// ApplyAll applies what may be applied.
func (r *Replica) ApplyAll() { r.State.applyAll(&r.Readers) }

// SetView applies the view to the replica. If renew is set, a new epoch starts for a replica that keeps its rows, and
// its readers must open the shard again.
func (r *Replica) SetView(v *protocol.View, at Role, renew bool) {
	r.view, r.Readers.view, r.role, r.State.cuts.head = v, v, at, at.Head
	if renew {
		r.ready, r.renewed, r.proposals = false, true, proposals{}
		r.resend, r.queued = resendProgress{}, nil
		r.Readers.renew()
		if r.State.HasRows() {
			r.Readers.addSubs(&r.State, true, at.Reads)
		}
	}
	r.resend.restored = v.Shards[r.shard].Restored
}

// ApplyView applies the view's slots and checkpoints. The replica must have a log.
func (r *Replica) ApplyView() {
	r.Readers.updateProcesses(r.queued)
	r.State.cuts.durable(r.view.Durable)
}

// fromBefore reports whether slots may have cached rows of an earlier life of the shard in this generation. A replica
// that is rebuilt from its log cannot rule that out.
func (r *Replica) fromBefore() bool {
	mine := &r.view.Shards[r.shard]
	return r.renewed || mine.Lost || mine.Restored || r.traits.UsesLog()
}

// Propose makes the head append entries that the view requires, and starts serving once nothing prevents it. It reports
// whether there are entries to append. The log must be serving: everything that it contained when the epoch began must
// be applied.
func (r *Replica) Propose() (news bool) {
	fx, p := r.Effects(), &r.proposals
	before := len(fx.ControlEntries)
	if !p.beforeServing(r.view, r.role.Head, &r.State, fx) {
		if !r.ready && p.mayServe(&r.view.Shards[r.shard], r.role.Head, fx) {
			r.startServing()
		}
		if r.ready && r.role.Head {
			p.serving(r.view, fx)
		}
	}
	return len(fx.ControlEntries) > before
}

// Tick advances the time by one heartbeat.
func (r *Replica) Tick() {
	if r.ready {
		r.proposals.tick(r.State.intake.Hold().Number())
	}
}

// startServing starts serving the readers that open the shard.
func (r *Replica) startServing() {
	r.ready, r.dirty = true, true
	r.Readers.updateProcesses(r.queued)
	r.proposals.begin(&r.State)
	r.Effects().ReportStatus = true
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
	r.dirty = true
	switch f.Kind {
	case wire.KindUpdate:
		decision := r.State.offer(f, body, &r.Readers)
		if s := &r.Readers.slots[f.Slot]; f.Flags&wire.FlagAckNow != 0 {
			s.prompt = max(s.prompt, f.Until())
		}
		return r.handleOutcome(e, decision) && isNextLarge(r.State.intake, f.Slot)
	case wire.KindTick:
		r.State.keepOrder(f.Slot, f.Clock, &r.Readers)
		r.handleOutcome(e, r.State.intake.Tick(f.Slot, f.Incarnation, f.Clock))
		return false
	}
	r.ApplyAll() // every replica must have applied the same updates when it takes the fact
	if err := r.applyControlEntry(f); err != nil {
		r.fail(err)
	}
	r.ApplyAll()
	fx.ReportStatus = true // a process waits for it
	return false
}

// fail stops the server, which cannot apply an entry of its log.
func (r *Replica) fail(err error) { r.Effects().fail("shard %d: %w", r.shard, err) }

// handleOutcome acts on the intake's verdict about an entry, and reports whether the entry changed anything.
func (r *Replica) handleOutcome(e *Entry, decision consistency.Outcome) bool {
	f, fx := &e.Frame, r.Effects()
	switch decision {
	case consistency.Gap:
		if e.From != nil {
			fx.Reopen = append(fx.Reopen, e.From) // it opens the shard again and resends from the count it receives
		}
		return false
	case consistency.Fenced:
		return false // its connection is being closed
	case consistency.Torn:
		fx.Torn = append(fx.Torn, Torn{
			From: e.From,
			Reason: fmt.Sprintf("the update of slot %d covers clocks %d to %d, "+
				"but shard %d can apply only some of them (it has applied those below %d): the update is rejected",
				f.Slot, f.Clock, f.Until()-1, r.shard, r.State.Applied()[f.Slot]),
		})
		return false
	}
	if f.Kind == wire.KindUpdate {
		s := &r.Readers.slots[f.Slot]
		r.Readers.changed(f.Slot)
		if last := f.Parts > 0 && f.Part == f.Parts-1; last && r.State.intake.Mode().Ticks() {
			s.staged = true
		}
	}
	return true
}

// applyControlEntry applies an entry that the head derived from the view.
func (r *Replica) applyControlEntry(f *wire.Frame) error {
	st, to := &r.State, &r.Readers
	before := slices.Clone(st.Applied())
	switch f.Kind {
	case wire.KindAddTable:
		added, err := st.addTable(f)
		if err != nil || !added {
			return err
		}
		to.addSubs(st, r.fromBefore(), r.role.Reads)
		to.updateProcesses(r.queued) // so that no push waits for a slot without a process
	case wire.KindBase:
		if err := st.raise(f); err != nil {
			return err
		}
		to.pushes.raised(before, st.Applied(), st.Seq())
		r.proposals.based = r.proposals.base
	case wire.KindMembership:
		if err := st.setMembership(f); err != nil {
			return err
		}
		to.pushes.raised(before, st.Applied(), st.Seq())
		to.grow(st)
		to.updateProcesses(r.queued)
	default:
		return st.take(f, to)
	}
	return nil
}

// Dirty reports whether something changed since the last Settle.
func (r *Replica) Dirty() bool { return r.dirty }

// MarkDirty makes the next Settle check everything again, even if nothing has changed.
func (r *Replica) MarkDirty() { r.dirty = true }

// MarkClean marks the replica as settled, because another goroutine will call Settle. That goroutine calls MarkDirty
// first.
func (r *Replica) MarkClean() { r.dirty = false }

// Settle applies whatever may be applied and decides what follows: which rows are pushed, which cut is saved, which
// reads are answered, and which slots are sent their counts.
func (r *Replica) Settle() {
	st, to, fx := &r.State, &r.Readers, r.Effects()
	r.dirty = false
	if st.cuts.paused {
		to.acknowledge(st) // for updates staged while the cut is written
		return
	}
	st.applyAll(to)
	r.checkResent()
	if !r.withholdsRows() {
		to.push(st)
	}
	if r.ready && st.cuts.due(st.intake) {
		st.cuts.paused = true
		fx.Saves = append(fx.Saves, Save{Cut: st.MinClock()})
	}
	to.answerWaiting(st, r.withholdsRows())
	to.acknowledge(st)
	// Sync the other replicas whenever the clock passes another multiple of the period.
	if r.role.Periodic && r.role.Head && r.ready {
		if n := st.rows.progress(st.intake) / r.traits.Period; n > r.synced {
			r.synced, fx.Sync = n, true
		}
	}
}

// checkResent checks whether a restored shard has been sent everything again. Ticked updates that wait for other slots
// were not visible before the loss either, so they need not be applied. The former life had passed any cut at which the
// shard is paused, so the check waits until the shard leaves the cut.
func (r *Replica) checkResent() {
	in := r.State.intake
	if r.resend.isIncomplete() && r.ready && !in.AtCut() && r.resend.complete(r.view, in) {
		r.resend.done = true
		r.Effects().ReportStatus = true
	}
}

// AwaitsResend reports whether the shard serves but still waits for updates that its lost replicas had. Any change of
// the membership may complete it.
func (r *Replica) AwaitsResend() bool { return r.ready && r.resend.isIncomplete() }

// withholdsRows reports whether the shard still withholds its rows from all readers.
func (r *Replica) withholdsRows() bool { return r.resend.isIncomplete() && !r.mutations.RestoreBarrier }

// IsBehind reports whether some process has ended clocks that the shard has not applied.
func (r *Replica) IsBehind() bool { return r.queued.beyond(r.view, r.State.Applied()) }

// Read takes a request. If now is true, the caller answers it immediately with the current rows; otherwise the request
// must wait. After an error the caller closes the connection.
func (r *Replica) Read(rd *Read) (now bool, err error) {
	st, holds := &r.State, r.withholdsRows()
	if st.allows(rd) && !holds {
		return true, r.Readers.answer(rd, st)
	}
	r.Readers.noteWaiting(allowance{st.MinClock(), len(st.rows.parts), holds})
	if int(rd.Rows.Table) < len(st.rows.parts) {
		err = st.rows.checkRead(rd, len(st.Applied()))
	}
	return false, err
}

// Open registers a reader that is starting to use the shard.
func (r *Replica) Open(o Open) {
	if !r.resend.done {
		r.resend.reported.record(o.Reader, o.EndedClocks)
	}
	r.queued.record(o.Reader, o.EndedClocks)
	r.Readers.opening = append(r.Readers.opening, o)
}

// AnswerOpens answers the Opens that may be answered once the log is applied up to pos.
func (r *Replica) AnswerOpens(pos uint64) {
	if r.ready && r.Readers.HasPendingOpens() {
		r.Readers.answerOpens(pos, &r.State)
	}
}

// Membership returns the newest membership in the log: its number, and the membership interval of each slot. The caller
// must not modify the slice.
func (r *Replica) Membership() (number uint64, intervals []protocol.Interval) {
	return r.State.intake.MembershipVersion(), r.State.intake.Intervals()
}

// ReportSeen notifies slots whose updates have become visible to all because another slot has left.
func (r *Replica) ReportSeen() {
	if r.ready && r.Readers.pushes.seen != nil {
		r.Readers.acknowledge(&r.State)
	}
}

// Prompt records that a slot waits until its clocks below ended are applied.
func (r *Replica) Prompt(c *Reader, ended perdure.Clock) {
	r.queued.record(c, ended)
	r.Readers.prompt(c, ended, &r.State)
}

// RecordSeen records the state that a slot's cached rows have reached.
func (r *Replica) RecordSeen(c *Reader, seq uint64) error { return r.Readers.saw(c, seq, &r.State) }

// Unsubscribe ends subscriptions to rows that the reader no longer uses.
func (r *Replica) Unsubscribe(c *Reader, rows *wire.Rows) error {
	return r.Readers.unsubscribe(c, rows, &r.State)
}

// Counts returns how far the updates of a connection's slot have come.
func (r *Replica) Counts(c *Reader) protocol.Counts { return r.Readers.counts(c, &r.State) }

// AbandonSave records that the cut which the shard has left is no longer being written. The shard stops at its next
// cut until a cut is saved.
func (r *Replica) AbandonSave() {
	r.State.cuts.writes = false
	r.dirty = true // it may already be at the next cut
}

// Status adds this replica's part to a status for the coordinator. If the shard's rows were lost and no replica serves
// them yet, the head reports its counts.
func (r *Replica) Status(v *protocol.View, st *protocol.ShardStatus) {
	in, sv := r.State.intake, &r.State.cuts
	st.Ready, st.Segments = r.ready, slices.Clone(sv.segments)
	if !r.ready {
		if in != nil && r.role.Head && v.Shards[r.shard].Lost {
			st.Applied, st.Seq, st.SavedRows = slices.Clone(in.Applied()), r.State.Seq(), r.State.rounds.kept
		}
		return
	}
	if r.State.rounds.Any() && r.role.Head {
		ro := &r.State.rounds
		st.Segments, st.SaveBytes, st.SaveSeconds = ro.segments(sv.schedule.Named), ro.bytes, ro.paused
	}
	st.States, st.PendingStates = slotstate.Names(r.State.rows.states), held(&r.State)
	st.MinClock, st.Seq, st.Roster = in.MinClock(), r.State.Seq(), in.MembershipVersion()
	st.ResendComplete = r.resend.done
	st.Cuts = protocol.CutStatus{Named: sv.schedule.Named, Missed: sv.missed(), Hold: in.Hold().Number()}
	for i := range in.Applied() {
		if st.Cuts.Hold > 0 {
			st.Cuts.Ticked = append(st.Cuts.Ticked, in.Counts(perdure.Slot(i)).Ticked)
		}
	}
	if r.role.Head && r.State.rounds.missed(st.Cuts.Named, st.MinClock) {
		st.Cuts.Missed = true
	}
	for i, sl := range v.Slots {
		slot := perdure.Slot(i)
		if i >= len(in.Applied()) {
			break // the entry with the new membership has not arrived yet
		}
		if !sl.Settled {
			st.Fences = append(st.Fences, protocol.Fence{
				Slot: slot, Incarnation: in.Incarnation(slot), Counts: in.Counts(slot),
				Carried: sl.Decided && in.Decided(slot, sl.Incarnation),
			})
		}
	}
}

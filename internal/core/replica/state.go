package replica

import (
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

// State is what the log makes of a shard: rows, counts and cuts. These depend only on the entries and their order.
// State also tracks how far this replica has written its cuts, which no other replica needs to know; see cuts.
type State struct {
	mutations mutation.Set
	intake    *consistency.Sequencer // nil: there are no rows yet
	rows      rows
	cuts      cuts
	rounds    rounds
	taken     perdure.Slot  // the slot whose update was taken last
	sums      combining     // sums for the clock whose updates are being applied
	tail      bool          // clients read at the tail: see perdure.JobSpec.TailReads
	evicted   perdure.Clock // the MinClock of the last eviction

	progress func() // as in Settings; never nil
	// The stored states that the newest snapshots refer to. Only snapshots taken next to an update log are listed.
	snapshotStates [][]string

	UpdatesApplied int64 // updates applied here, without those in restored or copied rows; read-only
}

func newState(s *Settings, job *perdure.JobSpec, traits recovery.Traits) State {
	return State{
		mutations: s.Mutations, rows: rows{shard: s.Shard, job: job},
		cuts: cuts{
			background: traits.SavesInBackground(), saves: traits.SavesCuts(), sparing: s.SaveChangedOnly,
			rows:     traits.SaveMode == recovery.SaveRows,
			schedule: recovery.ScheduleOf(job), bySlot: traits.CutsBySlot,
		},
		rounds: newRounds(s),
		sums:   combining{mutations: s.Mutations.Combine},

		progress: s.Progress,
	}
}

// fill sets the initial content, restored from a cut.
func (st *State) fill(c Content, cut perdure.Clock) {
	st.rows.parts, st.rows.states, st.rows.seq = c.Parts, c.States, c.Seq
	st.intake = consistency.NewSequencer(perdure.ClockOneStep, c.Applied, st.mutations)
	st.updateTableSettings()
	st.cuts.left = cut
	st.intake.SetCut(st.cuts.schedule.After(cut))
	st.rounds.begin(&c, st.intake.MinClock())
}

// updateTableSettings updates the settings that depend on all tables together.
func (st *State) updateTableSettings() {
	specs := st.rows.specs()
	st.intake.SetMode(st.rows.job.ClockMode(specs))
	st.tail = st.rows.job.TailReads(specs)
	st.rows.scales = st.rows.job.Scales(specs)
	// Nothing else happens every few clocks, and counting costs time for each slot.
	counts := st.rounds.Any() || recovery.TraitsOf(st.rows.job).Period > 0
	st.rows.distant = counts && st.rows.job.Unbounded(specs)
	st.rows.worked = max(st.rows.worked, float64(st.intake.MinClock()))
	st.sums.of(st.rows.parts)
	if recovery.TraitsOf(st.rows.job).Partial {
		st.intake.CountMissingAsLost()
	}
}

// offer takes in a part of an update. The state keeps the body.
func (st *State) offer(f *wire.Frame, body []byte, to *ReaderSet) consistency.Outcome {
	st.keepOrder(f.Slot, f.Clock, to)
	decision := st.intake.Offer(consistency.UpdatePart{
		Slot: f.Slot, Clock: f.Clock, Clocks: int(f.Clocks), Incarnation: f.Incarnation,
		Index: int(f.Part), Of: int(f.Parts), Payload: body,
		Ticked: f.Flags&wire.FlagTicked != 0, Repeats: f.Flags&wire.FlagDuplicateRows != 0,
	})
	if decision != consistency.Kept {
		to.fx.FreeBodies = append(to.fx.FreeBodies, body)
	}
	return decision
}

// keepOrder applies what may be applied before a slot's next update or tick is taken. Except under two-step clocks,
// updates that become applicable together are applied in the order of slots. Replicas take entries in batches of
// different sizes, and only the order of the log is the same on all. The same holds for updates held back by a cut,
// because no log entry marks the point where the shard resumes.
func (st *State) keepOrder(slot perdure.Slot, clock perdure.Clock, to *ReaderSet) {
	held := st.cuts.background && st.intake.HeldByCut(clock)
	if (slot != st.taken || held) && st.intake.Mode() != perdure.ClockTwoStep {
		st.applyAll(to)
	}
	st.taken = slot
}

// largeUpdateBytes is the minimum size of an update that is worth another goroutine.
const largeUpdateBytes = 256 << 10

// isNextLarge reports whether the slot's next update is a large one.
func isNextLarge(in *consistency.Sequencer, slot perdure.Slot) bool {
	pending := in.Pending(slot)
	return len(pending) > 0 && (len(pending[0].Parts) > 1 || len(pending[0].Parts) == 1 &&
		len(pending[0].Parts[0]) >= largeUpdateBytes)
}

// applyAll applies what may be applied, and leaves the cuts at which the shard need not pause.
func (st *State) applyAll(to *ReaderSet) {
	for more := true; more; more = st.leaveCut(to) {
		st.applyToCut(to)
	}
}

// applyToCut applies what may be applied before the next cut.
func (st *State) applyToCut(to *ReaderSet) {
	least := st.intake.MinClock()
	if least > st.evicted { // it jumped without an update, so evict here
		st.evict(least, to)
	}
	for u := st.intake.Next(); u != nil; u = st.intake.Next() {
		st.rows.scale(u, least, st.intake)
		st.sums.begin(u, st.intake)
		st.apply(u, to)
		now := st.intake.MinClock()
		if st.sums.any && (now > least || st.sums.mutations.Once) {
			st.sums.end(now > least, func(b *wire.Block) { // as of the clock that has just ended
				st.progress()
				if err := st.change(b, least, perdure.NoSlot, to); err != nil {
					to.fx.fail(cannotCombine, st.rows.shard, least, err)
				}
			})
		}
		if now > least {
			least = now
			st.evict(now, to)
			st.saveRows(to)
		} else if st.rows.distant {
			st.saveRows(to)
		}
	}
}

// leaveCut leaves the cut at which the shard is paused, unless it must stay there, and reports whether it did. The head
// takes its image of the cut now, before anything later is applied.
func (st *State) leaveCut(to *ReaderSet) bool {
	if st.cuts.mustPause() || !st.intake.AtCut() || st.rounds.mustPause(st.cuts.schedule.Named) {
		return false
	}
	cut := st.intake.MinClock()
	if st.cuts.rows { // the last files of all shards are of the same clock, so that no update is lost between them
		st.saveRows(to)
		st.cuts.leave(cut, st.intake)
		return true
	}
	st.cuts.unsaved = cut
	st.cuts.leave(cut, st.intake)
	if st.mutations.Cuts {
		st.applyToCut(to)
	}
	if st.cuts.head {
		st.cuts.writes, st.cuts.held = true, slotstate.Names(st.rows.states)
		to.fx.Saves = append(to.fx.Saves, Save{Cut: cut, Image: st.Image(cut)})
	}
	return true
}

// apply changes the rows by an update. Its payloads were checked when the head received them, so the only possible
// failure is that a sparse table has become full since.
func (st *State) apply(u *consistency.Update, to *ReaderSet) {
	by, size := to.locallyAppliedBy(u), 0
	if st.rows.scaled.by != 1 {
		by = perdure.NoSlot
	}
	each := func(b *wire.Block) {
		st.progress()
		var err error
		if st.sums.combines(b.Table) {
			err = st.sums.add(b, st.rows.parts[b.Table])
		} else {
			err = st.change(b, u.Last(), by, to)
		}
		if err != nil {
			to.fx.fail(cannotApply, st.rows.shard, u.Slot, u.Clock, err)
		}
	}
	var rows *rowMerger
	if u.Repeats {
		rows = newRowMerger()
	}
	for i, payload := range u.Parts {
		size += len(payload)
		b := wire.ReadBlocks(payload)
		for b.Next() {
			whole := b.Unpack(&st.rows.unpacked)
			if rows == nil {
				each(whole)
			} else if err := st.rows.fits(whole); err != nil {
				to.fx.fail(cannotApply, st.rows.shard, u.Slot, u.Clock, err)
			} else {
				rows.add(whole, st.rows.parts[b.Table].Spec.Dim)
			}
		}
		if b.Err() != nil {
			to.fx.fail(cannotApply, st.rows.shard, u.Slot, u.Clock, b.Err())
		}
		if b.State != nil {
			st.rows.states[u.Slot] = slices.Clone(slotstate.ApplyUpdate(st.rows.states[u.Slot], b.State, u.Last()+1))
		}
		u.Parts[i] = nil
		to.fx.FreeBodies = append(to.fx.FreeBodies, payload)
	}
	if rows != nil {
		rows.each(each)
	}
	if !u.Lost {
		st.rows.count(u, st.intake)
		st.UpdatesApplied += int64(u.Clocks)
	} else {
		st.rows.states[u.Slot] = slotstate.MarkGap(st.rows.states[u.Slot], u.Last()+1)
	}
	to.pushes.applied(u.Slot, u.Last(), st.rows.seq)
	to.changed(u.Slot)
	to.large = to.large || size >= wire.AckNowBytes
	st.intake.Free(u)
}

// change runs a table's rule for the rows in a block. by is the slot that made the update, or NoSlot for all slots.
func (st *State) change(b *wire.Block, clock perdure.Clock, by perdure.Slot, to *ReaderSet) error {
	if err := st.rows.apply(b, clock); err != nil {
		return err
	}
	st.rounds.changed(b, st.rows.parts[b.Table])
	if st.mutations.Pushes {
		return nil
	}
	if !st.rows.parts[b.Table].Spec.Rule.Adds() {
		by = perdure.NoSlot
	}
	to.pushes.changed(&b.Rows, by)
	return nil
}

// These errors stop the server, which would otherwise continue without what other replicas have applied.
const (
	cannotApply   = "shard %d cannot apply the update of slot %d, clock %d: %w"
	cannotCombine = "shard %d cannot apply the combined updates of clock %d: %w"
)

// evict drops rows that have not been updated for long, for the tables that ask for it.
func (st *State) evict(least perdure.Clock, to *ReaderSet) {
	st.evicted = least
	for id, p := range st.rows.parts {
		if p.Spec.Evict == 0 {
			continue
		}
		if st.mutations.Eviction.Evicting {
			least += p.Spec.Evict
		}
		forgets := st.rounds.evicting(perdure.TableID(id), p)
		p.Evict(least, func(row perdure.RowID, at int) {
			forgets(at)
			if sub := to.pushes.subs[id]; sub != nil {
				sub.MarkChanged(perdure.NoSlot, row)
			}
		})
	}
}

// take applies an entry that the head derived from the view and that concerns only the state.
func (st *State) take(f *wire.Frame, to *ReaderSet) error {
	switch f.Kind {
	case wire.KindFence:
		st.intake.Fence(f.Slot, f.Incarnation)
	case wire.KindDecide:
		st.intake.Decide(f.Slot, f.Incarnation, f.Clock)
	case wire.KindEnd:
		st.cuts.setEnd(f.Clock, st.intake)
	case wire.KindHold:
		st.intake.Hold().Set(uint64(f.Clock))
	case wire.KindCut:
		if !st.cuts.bySlot {
			st.cuts.setNamed(f.Clock, st.intake)
			break
		}
		var clocks protocol.SlotClocks
		if err := wire.ParseControl(f, &clocks); err != nil {
			return err
		}
		st.cuts.cutAt(f.Clock, clocks, st, to)
	case wire.KindPassCut:
		var seg protocol.Segment
		if err := wire.ParseControl(f, &seg); err != nil {
			return err
		}
		st.cuts.recordSaved(seg, st.intake)
	}
	return nil
}

// addTable adds a table, unless an earlier entry has already added it.
func (st *State) addTable(f *wire.Frame) (added bool, err error) {
	var spec perdure.TableSpec
	if err := wire.ParseControl(f, &spec); err != nil {
		return false, err
	}
	if err := spec.Validate(st.rows.job.Shards); err != nil || f.Clock < perdure.Clock(len(st.rows.parts)) {
		return false, err
	}
	st.rows.add(spec)
	st.rounds.added(st.rows.parts)
	st.updateTableSettings()
	return true, nil
}

// raise raises the applied vector to a base. Updates that the rows lack are lost.
func (st *State) raise(f *wire.Frame) error {
	var a wire.Answer
	if err := wire.ParseAnswer(f, &a); err != nil {
		return err
	}
	if n := len(st.intake.Applied()); len(a.Applied) > n {
		return fmt.Errorf("%w: the base has %d slots, but the job has %d", wire.ErrPayload, len(a.Applied), n)
	}
	for slot, n := range st.intake.Applied() {
		if slot < len(a.Applied) && a.Applied[slot] > n {
			st.rows.states[slot] = slotstate.MarkGap(st.rows.states[slot], a.Applied[slot])
		}
	}
	st.intake.Raise(a.Applied)
	return nil
}

// setMembership applies a new membership: the membership interval of each slot.
func (st *State) setMembership(f *wire.Frame) error {
	var intervals []protocol.Interval
	if err := wire.ParseControl(f, &intervals); err != nil {
		return err
	}
	if n := len(st.intake.Applied()); len(intervals) < n || len(intervals) > perdure.MaxSlots {
		return fmt.Errorf("%w: the membership has %d slots, but the job has %d", wire.ErrPayload, len(intervals), n)
	}
	for slot, n := range st.intake.Applied() {
		if intervals[slot].From > n {
			st.rows.states[slot] = nil // belonged to another worker
		}
	}
	st.intake.SetMembership(uint64(f.Clock), intervals)
	slots := len(st.intake.Applied())
	st.rows.states = append(st.rows.states, make([][]byte, max(0, slots-len(st.rows.states)))...)
	return nil
}

// allows reports whether MinClock allows a read. If the table is not known yet, it arrives with the next view.
func (st *State) allows(rd *Read) bool {
	return int(rd.Rows.Table) < len(st.rows.parts) && st.intake.MinClock() >= rd.MinClock
}

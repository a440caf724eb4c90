package replica

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/scar"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// rounds are the saves of a shard that saves its rows separately, some of them at a time: see recovery.Rounds. They
// need no cut. A round saves whatever the rows contain when it is due, together with the applied vector that describes
// it. So no update is held back for a round, and no log entry mentions it. Rounds belong to the head: a new head does
// not know what the previous one saved, and saves it again.
type rounds struct {
	recovery.Rounds
	settings    scar.Settings
	ignoreMoves bool          // the ledger is not told of evicted rows (negative control)
	ledger      *scar.Ledger  // nil: the saved rows are unknown, and a round saves everything
	taken       int64         // rounds that were started, or merged into a later one
	busy        bool          // a round is being written
	ended       perdure.Clock // clock of the final round, which saves all rows because the job is about to end; 0: none
	allowed     bool          // the shell allows the next round, if rounds are not scheduled by clocks
	newest      protocol.Segment
	bytes       int64                // total size of the written files
	paused      float64              // total seconds spent on choosing rows
	elapsed     func() float64       // nil: not measured
	kept        []protocol.SavedRows // of the content that a lost shard started with
	held        []string             // stored states that the round being written refers to
}

func newRounds(s *Settings) rounds {
	r := s.Job.Recovery
	return rounds{
		Rounds: recovery.RoundsOf(r), allowed: true, elapsed: s.Elapsed, ignoreMoves: s.Mutations.Eviction.Moves,
		settings: scar.Settings{
			Selector: r.Selector, Share: r.Share, Seed: s.Job.Seed, Shard: s.Shard,
			Torn: s.Mutations.Units,
		},
	}
}

// begin starts with a content, at a MinClock.
func (ro *rounds) begin(c *Content, min perdure.Clock) {
	if !ro.Any() {
		return
	}
	ro.taken = ro.Done(min)
	ro.settings.Saves = uint64(ro.taken) // so that the random selector does not repeat its earlier choices
	ro.kept = c.Kept
	if c.RowFiles == nil {
		ro.ledger = scar.New(ro.settings)
		return
	}
	ro.ledger = scar.Resume(ro.settings, c.Parts, c.RowFiles.Files, c.RowFiles.FileIndex)
	ro.ledger.SetSavedValues(c.RowFiles.SavedValues)
}

// forget records that this replica no longer knows which rows are saved.
func (ro *rounds) forget() {
	if ro.ledger != nil {
		ro.ledger.Close()
	}
	ro.ledger, ro.busy, ro.newest = nil, false, protocol.Segment{}
}

// changed records which rows an update changes.
func (ro *rounds) changed(b *wire.Block, p *table.Part) {
	if ro.ledger != nil {
		ro.ledger.Changed(b.Table, p, b.First, b.IDs, b.Count)
	}
}

// evicting returns the func to call with the position of each row of a table that is about to be evicted.
func (ro *rounds) evicting(t perdure.TableID, p *table.Part) func(at int) {
	if ro.ledger == nil || ro.ignoreMoves {
		return func(int) {}
	}
	return ro.ledger.EvictionHook(t, p)
}

// added records the last part, which is new.
func (ro *rounds) added(parts []*table.Part) {
	if ro.ledger != nil {
		last := len(parts) - 1
		ro.ledger.Added(perdure.TableID(last), parts[last])
	}
}

// due returns how many rounds are due at a clock. Rounds that become due while another one is written are merged
// into one.
func (ro *rounds) due(at perdure.Clock) int64 {
	switch {
	case !ro.Any() || ro.busy || ro.ended > 0:
		return 0
	case ro.Timed() && ro.allowed:
		return 1
	}
	return ro.Done(at) - ro.taken
}

// mustPause reports whether the shard must pause at the cut that was named because the job is about to end. It must
// while a round is still being written, because the final round, which saves all rows of the cut, follows it.
func (ro *rounds) mustPause(named perdure.Clock) bool { return ro.busy && ro.ended < named }

// last reports whether the final round, which saves all rows, is due. It is due at the named clock only, because the
// final files of all shards must be of the same clock.
func (ro *rounds) last(named, min perdure.Clock) bool {
	return ro.Any() && !ro.busy && ro.ended < named && min == named
}

// missed reports whether the shard has passed the named clock without a final round: the round could not be written, or
// the shard was unavailable. The coordinator must name another clock.
func (ro *rounds) missed(named, min perdure.Clock) bool {
	return ro.Any() && ro.ended < named && min > named
}

// saveRows makes the head save some of the current rows if a round is due.
func (st *State) saveRows(to *ReaderSet) {
	ro, min, at := &st.rounds, st.intake.MinClock(), st.rows.progress(st.intake)
	if st.mutations.Cuts { // negative control: the save of a clock contains updates of that clock
		min, at = min-1, at-1
	}
	n := ro.due(at)
	if named := st.cuts.schedule.Named; ro.last(named, min) && st.cuts.head {
		ro.forget()
		ro.ended, min, n = named, named, 1
	}
	if n <= 0 || !st.cuts.head || len(st.rows.parts) == 0 {
		return
	}
	ro.taken += n
	if ro.elapsed != nil {
		began := ro.elapsed()
		defer func() { ro.paused += ro.elapsed() - began }()
	}
	if ro.ledger == nil {
		anew := ro.settings
		anew.Full = true
		ro.ledger = scar.New(anew)
	}
	choice := ro.ledger.Choose(st.rows.parts, n)
	ro.allowed = false
	if choice.Bytes == 0 && ro.ended == 0 { // nothing has changed, or an earlier round saved more than its share
		ro.ledger.Unwritten(choice)
		to.fx.NothingToSave = to.fx.NothingToSave || ro.Timed()
		return
	}
	ro.busy, ro.held = true, slotstate.Names(st.rows.states)
	m := &Image{
		Cut: min, Seq: st.rows.seq, Applied: slices.Clone(st.intake.Applied()), States: slices.Clone(st.rows.states),
	}
	for t, p := range st.rows.parts {
		m.Specs, m.First = append(m.Specs, p.Spec), append(m.First, p.First)
		m.Rows = append(m.Rows, p.SnapshotRuns(choice.Runs[t]))
	}
	to.fx.Saves = append(to.fx.Saves, Save{Cut: min, Image: m, Rows: choice, ledger: ro.ledger})
}

// RecordRowsWritten records that a round's rows are in a file.
func (st *State) RecordRowsWritten(sv *Save, seg protocol.Segment) {
	ro := &st.rounds
	if sv.Image.close(false); sv.ledger != ro.ledger {
		return // the shard no longer has these rows
	}
	ro.busy, ro.held, ro.newest, ro.bytes = false, nil, seg, ro.bytes+seg.Bytes
	ro.ledger.Written(sv.Rows, protocol.SegmentFile{File: seg.File, Bytes: seg.Bytes, CRC: seg.CRC})
}

// RecordRowsNotWritten records that a round's rows could not be written. A later round saves them.
func (st *State) RecordRowsNotWritten(sv *Save) {
	if sv.Image.close(false); sv.ledger == st.rounds.ledger {
		st.rounds.busy, st.rounds.ended = false, 0
		st.rounds.ledger.Unwritten(sv.Rows)
	}
}

// RoundsTimed reports whether the caller schedules rounds, with AllowRound.
func (st *State) RoundsTimed() bool { return st.rounds.Timed() }

// AllowRound allows the next round, if rounds are not scheduled by clocks.
func (st *State) AllowRound() { st.rounds.allowed = true }

// segments returns the segment of the running checkpoint: the newest file, with the others as its base. A round with
// only some rows may have been taken at the named clock before that clock was named. It is not the final round, so
// segments returns nothing for it.
func (ro *rounds) segments(named perdure.Clock) []protocol.Segment {
	if ro.ledger == nil || ro.newest.File == "" || ro.newest.Cut == named && ro.ended < named {
		return nil
	}
	seg := ro.newest
	files := ro.ledger.Files()
	if n := len(files); n > 0 && files[n-1].File == seg.File {
		files = files[:n-1]
	}
	seg.Base = slices.Clone(files)
	return []protocol.Segment{seg}
}

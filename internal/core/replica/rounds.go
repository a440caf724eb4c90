package replica

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/scar"
	"github.com/perdure/perdure/internal/core/states"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// rounds are the saves of a shard whose rows are saved by themselves, a part of them at a
// time: see recovery.Rounds. They need no cut: whatever the rows contain when a round is due
// is saved, with the applied vector that says what that is. So nothing is held back for them,
// and no entry of the log tells of them. They are the head's own: what one has saved the next
// one does not know, and saves anew.
type rounds struct {
	recovery.Rounds
	settings scar.Settings
	deaf     bool          // the ledger does not hear of rows that go
	ledger   *scar.Ledger  // nil: what is saved is not known here, and a round saves all
	taken    int64         // rounds that were taken, or went into a later one
	busy     bool          // one is being written
	ended    perdure.Clock // of which the last one was taken: it has all rows, since the job is to end; 0: none was
	allowed  bool          // by who saves, where it is not of clocks when the next one is
	newest   words.Segment
	bytes    int64          // of the files that were written
	paused   float64        // seconds that choosing took
	elapsed  func() float64 // nil: that is not measured
	kept     []words.Kept   // of what a lost shard began with
	held     []string       // states in the store that what is being written refers to
}

func newRounds(s *Settings) rounds {
	r := s.Job.Recovery
	return rounds{
		Rounds: recovery.RoundsOf(r), allowed: true, elapsed: s.Elapsed, deaf: s.Weak.Ebb.Moves,
		settings: scar.Settings{
			Selector: r.Selector, Share: r.Share, Seed: s.Job.Seed, Shard: s.Shard,
			Torn: s.Weak.Units,
		},
	}
}

// begin begins with a content, at a MinClock.
func (ro *rounds) begin(c *Content, min perdure.Clock) {
	if !ro.Any() {
		return
	}
	ro.taken = ro.Done(min)
	ro.settings.Saves = uint64(ro.taken) // so that random does not choose again what it did before
	ro.kept = c.Kept
	if c.Saved == nil {
		ro.ledger = scar.New(ro.settings)
		return
	}
	ro.ledger = scar.Resume(ro.settings, c.Parts, c.Saved.Files, c.Saved.Layer)
	ro.ledger.Past(c.Saved.Past)
}

// forget notes that what is saved is not known here any more.
func (ro *rounds) forget() {
	if ro.ledger != nil {
		ro.ledger.Forget()
	}
	ro.ledger, ro.busy, ro.newest = nil, false, words.Segment{}
}

// changed notes which rows an update changes.
func (ro *rounds) changed(b *wire.Block, p *table.Part) {
	if ro.ledger != nil {
		ro.ledger.Changed(b.Table, p, b.First, b.IDs, b.Count)
	}
}

// evicting returns what is to hear of the rows of a table that are about to go, by position.
func (ro *rounds) evicting(t perdure.TableID, p *table.Part) func(at int) {
	if ro.ledger == nil || ro.deaf {
		return func(int) {}
	}
	return ro.ledger.Evicting(t, p)
}

// added notes the last of the parts, which is new.
func (ro *rounds) added(parts []*table.Part) {
	if ro.ledger != nil {
		last := len(parts) - 1
		ro.ledger.Added(perdure.TableID(last), parts[last])
	}
}

// due returns how many rounds are due at a MinClock. While one is written the next ones wait,
// and are then one.
func (ro *rounds) due(min perdure.Clock) int64 {
	switch {
	case !ro.Any() || ro.busy || ro.ended > 0:
		return 0
	case ro.Timed() && ro.allowed:
		return 1
	}
	return ro.Done(min) - ro.taken
}

// stands reports whether the shard stands at the cut that was named since the job is to end: a round
// is still being written, and all rows of the cut are to be taken after it.
func (ro *rounds) stands(named perdure.Clock) bool { return ro.busy && ro.ended < named }

// last reports whether the last round is due, of all rows: at the clock that was named, and at no other, since
// the last files of all shards are of one.
func (ro *rounds) last(named, min perdure.Clock) bool {
	return ro.Any() && !ro.busy && ro.ended < named && min == named
}

// missed reports whether the shard has gone on after the clock that was named without a last round: it could
// not be written, or the shard was not there. Another one is to be named.
func (ro *rounds) missed(named, min perdure.Clock) bool {
	return ro.Any() && ro.ended < named && min > named
}

// saveRows has the head save some rows, as they are now, if a round is due.
func (st *State) saveRows(to *Audience) {
	ro, min := &st.rounds, st.intake.MinClock()
	if st.weak.Cuts {
		min-- // what is saved as of a clock has updates of it
	}
	n := ro.due(min)
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
	if choice.Bytes == 0 && ro.ended == 0 { // nothing has changed, or what was saved too much is not paid for
		ro.ledger.Unwritten(choice)
		to.fx.Calm = to.fx.Calm || ro.Timed()
		return
	}
	ro.busy, ro.held = true, states.Names(st.rows.states)
	m := &Image{
		Cut: min, Seq: st.rows.seq, Applied: slices.Clone(st.intake.Applied()), States: slices.Clone(st.rows.states),
	}
	for t, p := range st.rows.parts {
		m.Specs, m.First = append(m.Specs, p.Spec), append(m.First, p.First)
		m.Rows = append(m.Rows, p.SnapshotOf(choice.Runs[t]))
	}
	to.fx.Saves = append(to.fx.Saves, Save{Cut: min, Image: m, Rows: choice, ledger: ro.ledger})
}

// SavedRows says that a round's rows are in a file.
func (st *State) SavedRows(sv *Save, seg words.Segment) {
	ro := &st.rounds
	if sv.Image.close(false); sv.ledger != ro.ledger {
		return // of rows that the shard has no more
	}
	ro.busy, ro.held, ro.newest, ro.bytes = false, nil, seg, ro.bytes+seg.Bytes
	ro.ledger.Written(sv.Rows, words.SegmentFile{File: seg.File, Bytes: seg.Bytes, CRC: seg.CRC})
}

// UnsavedRows says that a round's rows could not be written: they go into a later one.
func (st *State) UnsavedRows(sv *Save) {
	if sv.Image.close(false); sv.ledger == st.rounds.ledger {
		st.rounds.busy, st.rounds.ended = false, 0
		st.rounds.ledger.Unwritten(sv.Rows)
	}
}

// RoundsTimed reports whether whoever saves says when the next round may come, by AllowRound.
func (st *State) RoundsTimed() bool { return st.rounds.Timed() }

// AllowRound lets the next round come, where it is not of clocks when that is.
func (st *State) AllowRound() { st.rounds.allowed = true }

// segments tells of the running checkpoint: the newest file, with the others. A round may have been taken at the
// clock that was named before it was, and have some rows only: it is not told of, since it is not the last one.
func (ro *rounds) segments(named perdure.Clock) []words.Segment {
	if ro.ledger == nil || ro.newest.File == "" || ro.newest.Cut == named && ro.ended < named {
		return nil
	}
	seg := ro.newest
	files := ro.ledger.Files()
	if n := len(files); n > 0 && files[n-1].File == seg.File {
		files = files[:n-1]
	}
	seg.Base = slices.Clone(files)
	return []words.Segment{seg}
}

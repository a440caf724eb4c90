package replica

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/table"
)

// Has reports whether there are rows: a replica that joins has none at first.
func (st *State) Has() bool { return st.intake != nil }

// TailReads reports whether who reads does so at the tail.
func (st *State) TailReads() bool { return st.tail }

// End is how many clocks the job has, as of the log; 0: that is not known.
func (st *State) End() perdure.Clock { return st.cuts.schedule.End }

// Seq is how many updates the rows contain.
func (st *State) Seq() uint64 { return st.rows.seq }

// Applied is the applied vector. It is the replica's own: do not change it.
func (st *State) Applied() []perdure.Clock { return st.intake.Applied() }

// MinClock is the smallest count of the slots that take part.
func (st *State) MinClock() perdure.Clock { return st.intake.MinClock() }

// Counts tells how far a slot has come.
func (st *State) Counts(slot perdure.Slot) words.Counts { return st.intake.Counts(slot) }

// PendingBytes is what a slot's updates take that are taken in and not applied.
func (st *State) PendingBytes(slot perdure.Slot) int64 { return st.intake.PendingBytes(slot) }

// Parts are the rows, by table. They are the replica's own: do not change them.
func (st *State) Parts() []*table.Part { return st.rows.parts }

// States are what slots' programs have saved, by slot. They are the replica's own.
func (st *State) States() [][]byte { return st.rows.states }

// Saved returns what a slot's program saved last before a clock; nil: nothing.
func (st *State) Saved(slot perdure.Slot, clock perdure.Clock) ([]byte, error) {
	return st.rows.saved(slot, clock, st.intake)
}

// CheckUpdate refuses an update that could not be applied, before any of it is: ErrEarly, if
// it could be once the log has that number of tables.
func (st *State) CheckUpdate(payload []byte, tables int) error {
	return st.rows.checkUpdate(payload, tables)
}

// Counted reports whether all clocks of an update below until are applied, so that it is
// ignored when it comes.
func (st *State) Counted(slot perdure.Slot, until perdure.Clock) bool {
	return until <= consistency.Count(st.intake.Applied(), slot) && !st.weak.ExactlyOnce
}

// Image takes the rows as they are now, to be written as a cut at which the shard stands.
func (st *State) Image(cut perdure.Clock) *Image { return st.cuts.image(cut, &st.rows, st.intake) }

// Bytes is about how many bytes the rows have.
func (st *State) Bytes() int64 {
	_, all := st.rows.bytes()
	return all
}

// Written says that an image, which is not needed any more, is in a file.
func (st *State) Written(m *Image, file words.SegmentFile) { st.cuts.written(m, file) }

// Unwritten says that an image could not be written: its rows count as changed still.
func (st *State) Unwritten(m *Image) { m.close(true) }

// held returns the states in the store that are in something that is being written, or was written and
// is in no checkpoint yet, though maybe not in the rows any more.
func held(st *State) (names []string) {
	names = append(names, st.cuts.held...)
	names = append(names, st.rounds.held...)
	for _, old := range st.snapped {
		names = append(names, old...)
	}
	return names
}

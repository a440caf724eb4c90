package replica

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/table"
)

// HasRows reports whether the replica has rows. A joiner has none at first.
func (st *State) HasRows() bool { return st.intake != nil }

// TailReads reports whether clients read at the tail of the chain.
func (st *State) TailReads() bool { return st.tail }

// End returns the number of clocks of the job according to the log, or 0 if it is not known.
func (st *State) End() perdure.Clock { return st.cuts.schedule.End }

// Seq returns how many updates the rows contain.
func (st *State) Seq() uint64 { return st.rows.seq }

// Applied returns the applied vector. The caller must not modify it.
func (st *State) Applied() []perdure.Clock { return st.intake.Applied() }

// MinClock returns the smallest count over the slots that participate.
func (st *State) MinClock() perdure.Clock { return st.intake.MinClock() }

// Counts returns how far the updates of a slot have come.
func (st *State) Counts(slot perdure.Slot) protocol.Counts { return st.intake.Counts(slot) }

// PendingBytes returns the size of a slot's updates that are taken in but not applied.
func (st *State) PendingBytes(slot perdure.Slot) int64 { return st.intake.PendingBytes(slot) }

// Parts returns the rows by table. The caller must not modify them.
func (st *State) Parts() []*table.Part { return st.rows.parts }

// States returns by slot the state that its program saved last. The caller must not modify it.
func (st *State) States() [][]byte { return st.rows.states }

// Saved returns the state that a slot's program saved last before a clock, or nil if there is none.
func (st *State) Saved(slot perdure.Slot, clock perdure.Clock) ([]byte, error) {
	return st.rows.saved(slot, clock, st.intake)
}

// CheckUpdate rejects an update that cannot be applied, before any part of it is. It returns ErrEarly if the update
// becomes valid once the log has the given number of tables.
func (st *State) CheckUpdate(payload []byte, tables int) error {
	return st.rows.checkUpdate(payload, tables)
}

// AlreadyApplied reports whether all clocks of an update below until are applied, so that the update will be ignored.
func (st *State) AlreadyApplied(slot perdure.Slot, until perdure.Clock) bool {
	return until <= consistency.AppliedCount(st.intake.Applied(), slot) && !st.mutations.ExactlyOnce
}

// Image captures the current rows, to be written as a cut at which the shard is paused.
func (st *State) Image(cut perdure.Clock) *Image { return st.cuts.image(cut, &st.rows, st.intake) }

// Bytes returns the approximate size of the rows.
func (st *State) Bytes() int64 {
	_, all := st.rows.bytes()
	return all
}

// Written records that an image is in a file. The caller no longer needs the image.
func (st *State) Written(m *Image, file protocol.SegmentFile) { st.cuts.written(m, file) }

// Unwritten records that an image could not be written. Its rows still count as changed.
func (st *State) Unwritten(m *Image) { m.close(true) }

// held returns the stored slot states that a pending or not yet checkpointed write refers to. The rows may already
// refer to newer ones.
func held(st *State) (names []string) {
	names = append(names, st.cuts.held...)
	names = append(names, st.rounds.held...)
	for _, old := range st.snapshotStates {
		names = append(names, old...)
	}
	return names
}

package slotstate

import (
	"encoding/binary"
	"slices"

	"github.com/perdure/perdure"
)

// MarkGap marks a saved state with a gap, for a shard that counts all clocks below until as applied but permanently
// lacks the last of them: a save in these may be lost. It returns a copy. b is nil if the shard knows of no save.
func MarkGap(b []byte, until perdure.Clock) []byte {
	switch was, err := Unpack(b); {
	case err != nil:
		return b // the process that loads it gets the error
	case b == nil:
		b = Note(Unknown)
	case was.Ref != nil:
		b = was.Ref.Pack(was.Clock)
	case was.State != nil:
		b = Pack(was.State, was.Clock)
	default:
		b = slices.Clone(b)
	}
	binary.LittleEndian.PutUint64(b[sumBytes+8:], uint64(until))
	return seal(b)
}

// ApplyUpdate returns a shard's saved state of a slot after an update whose clocks are all below until. brought is the
// part of the update that concerns the state. An empty reference means that a state was saved and then superseded by a
// later one. If the later one never arrives, because its sender dies, the earlier one is lost.
func ApplyUpdate(was, brought []byte, until perdure.Clock) []byte {
	switch {
	case brought == nil:
		return was
	case IsEmptyRef(brought):
		return MarkGap(was, until)
	}
	return brought
}

// MaxAge returns by how many clocks at most the state on a slot's home shard is older than the newest one that the
// shard had acknowledged, or counts as acknowledged; 0: it is the newest. others are the states of the other shards.
//
// The home shard knows the range of clocks in which it lacks saves, if there were any. Another shard without a gap
// knows whether there were, unless it has received a note of a later save since. In that case, or if all other shards
// have gaps, a save is assumed to be lost. The slot continues at clock now. It redoes the saves of that clock and later
// ones, so none of these is lost.
func MaxAge(home Saved, others [][]byte, now perdure.Clock) (older perdure.Clock) {
	home.Gap = min(home.Gap, now)
	if home.Gap <= home.Clock+1 {
		return 0
	}
	known := false
	for _, b := range others {
		received := Saved{Clock: Unknown}
		if b != nil {
			received, _ = Unpack(b)
		}
		if received.Gap <= received.Clock+1 && received.Clock < home.Gap {
			known, older = true, max(older, received.Clock-home.Clock)
		}
	}
	if !known {
		return home.Gap - 1 - home.Clock
	}
	return older
}

package states

import (
	"encoding/binary"
	"slices"

	"github.com/perdure/perdure"
)

// Lose returns what has travelled as a shard has it that counts all clocks below until as had, and lacks the last of
// them for good: a save of one of these may be lost. It is a copy. nil: the shard has heard of no save.
func Lose(b []byte, until perdure.Clock) []byte {
	switch was, err := Unpack(b); {
	case err != nil:
		return b // whoever loads it is told
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

// Next returns what a shard has of what a slot saved once it has taken in what an update brings of it, all of whose
// clocks are below until. A reference to nothing says that something was saved which is gone, since a later one takes
// its place: if that does not come, since its sender dies, the former is lost.
func Next(was, brought []byte, until perdure.Clock) []byte {
	switch {
	case brought == nil:
		return was
	case IsVoid(brought):
		return Lose(was, until)
	}
	return brought
}

// Older returns by how many clocks at most a state, as a slot's home shard has it, is older than the newest one that
// the shard had acknowledged, or counts as if it had; 0: it is that one. Others are what the other shards have heard.
//
// The home shard itself knows between which clocks it lacks saves, if there were any. Another that lacks nothing
// knows whether there were, unless it has heard of a save of a later clock since: then, and where all others lack
// something, too, a save is taken to have been lost. The slot goes on at a clock: what it saved in that one or a later
// one it does again, so that none of these is lost.
func Older(home Saved, others [][]byte, now perdure.Clock) (older perdure.Clock) {
	home.Gap = min(home.Gap, now)
	if home.Gap <= home.Clock+1 {
		return 0
	}
	known := false
	for _, b := range others {
		heard := Saved{Clock: Unknown}
		if b != nil {
			heard, _ = Unpack(b)
		}
		if heard.Gap <= heard.Clock+1 && heard.Clock < home.Gap {
			known, older = true, max(older, heard.Clock-home.Clock)
		}
	}
	if !known {
		return home.Gap - 1 - home.Clock
	}
	return older
}

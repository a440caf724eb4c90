package consistency

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
)

// leastOf computes MinClock from the counts of all slots.
func (in *Sequencer) leastOf() perdure.Clock {
	least, most := perdure.Clock(-1), perdure.Clock(0)
	for i, c := range in.applied {
		most = max(most, c)
		if in.counts(i) && (least < 0 || c < least) {
			least = c
		}
	}
	if least < 0 {
		return most
	}
	return least
}

// nextOf computes from all pending updates which slot's update is next; -1: none.
func (in *Sequencer) nextOf() int {
	next, least := -1, in.leastOf()
	for i := range in.slots {
		if in.inRounds() && (in.applied[i] != least || in.hasLeft(i)) {
			continue
		}
		switch ready := in.ready(i); {
		case in.inRounds() && !ready:
			return -1
		case ready && next < 0:
			next = i
		}
	}
	return next
}

// TestTurn: after any event, the cached MinClock and turn of an intake equal those found by scanning all slots.
func TestTurn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.IntRange(1, 5).Draw(t, "slots")
		in := NewSequencer(rapid.SampledFrom(modes).Draw(t, "mode"), make([]perdure.Clock, slots), mutation.Set{
			Joins: rapid.IntRange(0, 9).Draw(t, "weak") == 0,
		})
		if rapid.Bool().Draw(t, "gaps") {
			in.CountMissingAsLost()
		}
		at := func(what string) perdure.Clock { // a clock near the slots' counts, or none
			return max(0, in.leastOf()+perdure.Clock(rapid.IntRange(-1, 3).Draw(t, what)))
		}
		membershipVersion := uint64(0)
		for range rapid.IntRange(10, 60).Draw(t, "deeds") {
			slot := perdure.Slot(rapid.IntRange(0, len(in.slots)-1).Draw(t, "slot"))
			next, by := in.Counts(slot), in.Incarnation(slot)
			switch kind := rapid.IntRange(0, 20).Draw(t, "kind"); kind {
			default:
				of := rapid.SampledFrom([]int{0, 1, 1, 1, 2}).Draw(t, "of")
				in.Offer(UpdatePart{
					Slot: slot, Clock: next.Staged, Of: of,
					Clocks: rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(t, "clocks"),
					Index:  rapid.IntRange(0, max(0, of-1)).Draw(t, "index"), Ticked: rapid.Bool().Draw(t, "ticked"),
					Incarnation: by + perdure.Incarnation(rapid.IntRange(0, 1).Draw(t, "newer")),
				})
			case 1, 2, 3, 4, 5:
				in.Tick(slot, by, next.Ticked)
			case 6:
				in.Fence(slot, by+1)
			case 7:
				in.Decide(slot, by, at("start"))
			case 8:
				in.SetCut(at("cut"))
			case 9:
				in.SetEnd(at("end"))
			case 10:
				base := make([]perdure.Clock, rapid.IntRange(0, len(in.slots)).Draw(t, "base"))
				for i := range base {
					base[i] = at("least")
				}
				in.Raise(base)
			case 11:
				membershipVersion++
				intervals := make([]protocol.Interval, len(in.slots)+rapid.IntRange(0, 1).Draw(t, "more"))
				for i := range intervals {
					intervals[i] = protocol.Interval{From: at("from"), Until: at("until")}
				}
				in.SetMembership(membershipVersion, intervals)
			case 12:
				in.SetMode(rapid.SampledFrom(modes).Draw(t, "mode"))
			case 13:
				st := in.State()
				gaps := in.gaps
				in = Restore(&st, in.mutations)
				in.gaps = gaps
			}
			giveSome(t, in)
		}
	})
}

// giveSome takes some updates from an intake, and checks that each is the next one.
func giveSome(t *rapid.T, in *Sequencer) {
	for more := rapid.IntRange(0, 3).Draw(t, "gives"); ; more-- {
		if got, want := in.MinClock(), in.leastOf(); got != want {
			t.Fatalf("MinClock is %d, want %d: counts %v, spans %v", got, want, in.applied, in.intervals)
		}
		if more <= 0 {
			return
		}
		want := in.nextOf()
		switch u := in.Next(); {
		case u == nil && want >= 0:
			t.Fatalf("Next returns no update, want slot %d's: counts %v", want, in.applied)
		case u == nil:
			more = 0
		case int(u.Slot) != want:
			t.Fatalf("Next returns slot %d's update, want slot %d's: counts %v", u.Slot, want, in.applied)
		default:
			in.Free(u)
		}
	}
}

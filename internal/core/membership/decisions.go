package membership

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// Decisions about a job's shards and slots are pure functions of their inputs: which members stay in a chain, where a
// dead slot continues, which applied vector a lost shard starts from, and which cut all shards have written. All of
// them are safe for concurrent use.

// memberState is the state of a member of a chain, as far as known.
type memberState int

// The states of members.
const (
	memberAlive  memberState = iota
	memberBack               // its first message after a silence has arrived, which may have been delayed for long
	memberSilent             // suspected, or not reconnected; it may still have its rows
	memberDead               // its rows are gone
)

// judgeChain judges a chain. sure reports that a member certainly has the rows, so that the job need not wait for
// silent members. orphaned reports that no member has them.
func judgeChain(members []memberState) (sure, orphaned bool) {
	orphaned = true
	for _, m := range members {
		sure = sure || m == memberAlive
		orphaned = orphaned && m == memberDead
	}
	return sure, orphaned
}

// Stays reports whether a member stays in its chain. A silent member stays as long as no other certainly has the rows.
func (m memberState) Stays(sure bool) bool { return m <= memberBack || m == memberSilent && !sure }

// silenceConsequence describes for users what happens to a silent process.
func silenceConsequence(guest, server bool) string {
	switch {
	case !guest:
		return "it is killed and replaced"
	case server:
		return "other servers take over its shards; start another if it does not come back"
	}
	return "start a replacement if it does not come back"
}

// DecideStart returns the clock from which a dead slot's next process continues, given every shard's fence of the slot.
// With ticks: if any shard has seen the tick of a clock, all shards apply that clock; otherwise the staged updates are
// dropped and the clock is redone. Without ticks, it is the lowest count of all shards except those in short, unless
// short contains all. It is never below least. torn reports that a shard has lost its part of a clock below the start.
func DecideStart(fences []protocol.Fence, ticks bool, least perdure.Clock, short []perdure.ShardID) (
	start perdure.Clock, torn bool,
) {
	start, staged, judged := least, fences[0].Counts.Staged, false
	for i := range fences {
		n := &fences[i].Counts
		staged = min(staged, n.Staged)
		switch {
		case ticks:
			start = max(start, n.Ticked)
		case len(short) < len(fences) && slices.Contains(short, perdure.ShardID(i)):
		case !judged:
			start, judged = n.Applied, true
		default:
			start = min(start, n.Applied)
		}
	}
	start = max(start, least)
	return start, ticks && staged < start
}

// clockBase completes, in place, the initial applied vector of a lost shard. base contains each slot's acknowledged
// count; has contains the counts in the rows, if any are left. Clocks before the generation's cut are never resent; cut
// is its number, and clocks are those of the slots if it is a cut by slot.
//
// Under two-step clocks a shard applies the updates of all slots for a clock together, so the highest count holds for
// all slots; some just have not received the last acknowledgement. There are two exceptions. A slot that has not
// finished a clock yet proves nothing, because it may have joined before the others reached its first clock. Nor does a
// slot whose process has ticked a clock and died: its next process continues after that clock, which the shard may not
// have applied. Therefore open contains, by slot, a clock that the slot has certainly not ended, or -1. No shard can
// have applied that clock, so the other slots' updates for it are not lost either.
func clockBase(
	base, has []perdure.Clock, slots []protocol.SlotView, open []perdure.Clock, cut perdure.Clock,
	clocks protocol.SlotClocks, twoStep bool,
) {
	for i := range has {
		base[i] = max(base[i], has[i])
	}
	for i := range base {
		if at := clocks.Of(perdure.Slot(i), cut); slots[i].From < at {
			base[i] = max(base[i], slots[i].Clamp(at))
		}
	}
	if !twoStep {
		return
	}
	most := cut
	for i, n := range base {
		if n > slots[i].From {
			most = max(most, n)
		}
	}
	for i, clock := range open {
		if slots[i].Has(clock) {
			most = min(most, max(clock, base[i]))
		}
	}
	for i := range base {
		base[i] = max(base[i], slots[i].Clamp(most))
	}
}

// newestCut returns the newest cut after a clock that every shard has written, with its segments; -1: none.
// written lists the segments of each shard.
func newestCut(written [][]protocol.Segment, after perdure.Clock) (cut perdure.Clock, segments []protocol.Segment) {
	count := map[perdure.Clock]int{}
	cut = -1
	for _, shard := range written {
		for _, g := range shard {
			if count[g.Cut]++; count[g.Cut] == len(written) && g.Cut > after {
				cut = max(cut, g.Cut)
			}
		}
	}
	for _, shard := range written {
		at := slices.IndexFunc(shard, func(g protocol.Segment) bool { return g.Cut == cut })
		if at < 0 {
			return -1, nil
		}
		segments = append(segments, shard[at])
	}
	return cut, segments
}

// onChain returns a shard's view with another chain.
func onChain(sv protocol.ShardView, chain []protocol.Holder) protocol.ShardView {
	sv.Holder, sv.Followers = chain[0], nil
	if len(chain) > 1 {
		sv.Followers = slices.Clone(chain[1:])
	}
	return sv
}

// serversOf returns the servers of a chain.
func serversOf(chain []protocol.Holder) []int {
	servers := make([]int, len(chain))
	for i := range chain {
		servers[i] = chain[i].Server
	}
	return servers
}

// without removes a server from a chain, in place.
func without(chain []protocol.Holder, server int) []protocol.Holder {
	return slices.DeleteFunc(chain, func(h protocol.Holder) bool { return h.Server == server })
}

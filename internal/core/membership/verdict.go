package membership

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// Decisions about a job's shards and slots are pure functions of what they depend on: which members stay in a chain,
// where a dead slot continues, what a lost shard begins with, and which cut all shards have written. All of them may be
// called by any number of goroutines.

// member is how a member of a chain is, as far as is known.
type member int

// How members are.
const (
	memberAlive  member = iota
	memberBack          // alive by its first word after a silence, which may have been long on its way
	memberSilent        // suspected, or not come back; it may have its rows still
	memberDead          // its rows are gone
)

// judgeChain says what becomes of a chain. orphaned: nobody has its rows. sure: a member surely has
// them, so that those who are silent need not be waited for.
func judgeChain(members []member) (sure, orphaned bool) {
	orphaned = true
	for _, m := range members {
		sure = sure || m == memberAlive
		orphaned = orphaned && m == memberDead
	}
	return sure, orphaned
}

// Stays reports whether a member stays in its chain: who is silent does while nobody else
// surely has the rows.
func (m member) Stays(sure bool) bool { return m <= memberBack || m == memberSilent && !sure }

// upshot says, for people, what becomes of a silent process. Of a guest nobody here has started it.
func upshot(guest, server bool) string {
	switch {
	case !guest:
		return "it is killed and replaced"
	case server:
		return "the others take over what it holds; start another if it does not come back"
	}
	return "start another in its place if it does not come back"
}

// Start says from which clock a dead slot's next process goes on, given what every shard
// has of it. Under two-step clocks: was any tick seen, all shards get that clock; was none
// seen, the staging is dropped and the clock is done again. Otherwise it is the lowest count
// of all shards, but for those of short, unless these are all. It is never below least. torn
// says that a shard lost its part of a clock that counts: what was staged there does not
// reach the start.
func Start(fences []words.Fence, twoStep bool, least perdure.Clock, short []perdure.ShardID) (
	start perdure.Clock, torn bool,
) {
	start, staged, judged := least, fences[0].Counts.Staged, false
	for i := range fences {
		n := &fences[i].Counts
		staged = min(staged, n.Staged)
		switch {
		case twoStep:
			start = max(start, n.Ticked)
		case len(short) < len(fences) && slices.Contains(short, perdure.ShardID(i)):
		case !judged:
			start, judged = n.Applied, true
		default:
			start = min(start, n.Applied)
		}
	}
	start = max(start, least)
	return start, twoStep && staged < start
}

// clockBase completes the applied vector that a lost shard starts with, in place. It has what
// each slot was acknowledged; has is what the rows have, where any are left. What came before the
// cut that the generation began with nobody sends again.
//
// Under two-step clocks a shard applies all slots' updates of a clock together; some slots just
// have not heard of the last one. One that has done none of its clocks yet tells nothing: it may
// have joined before the others came to its first. One whose process has ticked a clock and is
// gone tells nothing of the others: its next one goes on after that clock, which the shard need not
// have applied. So open has, by slot, a clock that it has surely not ended, -1 where none is known.
// No shard can have applied that clock, and what the slot does in it is still to come: of the others,
// too, it is not lost.
func clockBase(
	base, has []perdure.Clock,
	slots []words.SlotView,
	open []perdure.Clock,
	cut perdure.Clock,
	twoStep bool,
) {
	for i := range has {
		base[i] = max(base[i], has[i])
	}
	for i := range base {
		if slots[i].From < cut {
			base[i] = max(base[i], slots[i].Clamp(cut))
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

// newestCut returns the newest cut after a clock that every shard has written, and its
// segments; -1: there is none. written is what each shard has.
func newestCut(written [][]words.Segment, after perdure.Clock) (cut perdure.Clock, segments []words.Segment) {
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
		at := slices.IndexFunc(shard, func(g words.Segment) bool { return g.Cut == cut })
		if at < 0 {
			return -1, nil
		}
		segments = append(segments, shard[at])
	}
	return cut, segments
}

// onChain returns a shard as it is on another chain.
func onChain(sv words.ShardView, chain []words.Holder) words.ShardView {
	sv.Holder, sv.Followers = chain[0], nil
	if len(chain) > 1 {
		sv.Followers = slices.Clone(chain[1:])
	}
	return sv
}

// serversOf returns the servers of a chain.
func serversOf(chain []words.Holder) []int {
	servers := make([]int, len(chain))
	for i := range chain {
		servers[i] = chain[i].Server
	}
	return servers
}

// without takes a server out of a chain, in place.
func without(chain []words.Holder, server int) []words.Holder {
	return slices.DeleteFunc(chain, func(h words.Holder) bool { return h.Server == server })
}

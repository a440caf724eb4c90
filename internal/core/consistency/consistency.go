// Package consistency decides, for each consistency model, how fresh a read must be and when an update counts as
// applied.
//
// Its only mechanism is the applied vector of a shard: for each slot, how many of its clocks are applied. The vector is
// the exactly-once filter (an update that is already counted is ignored, so resending is always safe), the source of
// MinClock, and part of every checkpoint. [Sequencer] is the state machine around it that puts a shard's updates in
// order.
//
// Nothing here is safe for concurrent use; a shard's owner guards it.
package consistency

import (
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// AnyClock is the MinClock that a read needs when it may be arbitrarily stale.
const AnyClock = perdure.Clock(math.MinInt64)

// RequiredMinClock returns the minimum MinClock of a row for a Get at clock c: c - s (ESSP paper, section 2: a read at
// clock c sees all updates of clocks ≤ c-s-1). ESSP changes which side sends, not what is needed.
func RequiredMinClock(m perdure.Consistency, c perdure.Clock) perdure.Clock {
	switch m.Kind {
	case perdure.BSP:
		return c
	case perdure.SSP, perdure.ESSP:
		return c - m.Staleness
	}
	return AnyClock
}

// MayRead reports whether a Get at clock c may be answered with a row that was read at the given MinClock. The server
// calls it before it answers, and the reader before it accepts an answer or a cached row.
func MayRead(m perdure.Consistency, minClock, c perdure.Clock) bool {
	return minClock >= RequiredMinClock(m, c)
}

// CachedRow describes a row in a reader's cache.
type CachedRow struct {
	MinClock   perdure.Clock // of the row's contents
	FetchedAt  perdure.Clock // the reader's clock at that time
	Subscribed bool          // the shard pushes the row to this reader whenever it changes
}

// MayReuse reports whether a cached row may answer a Get at clock c. Without a bound on staleness, a cached row is
// valid for one clock, so that reads continue to see other slots' updates. Under VAP it is valid as long as it is
// pushed, because other slots wait for the push.
func MayReuse(m perdure.Consistency, row CachedRow, c perdure.Clock) bool {
	switch m.Kind {
	case perdure.ASP:
		return row.FetchedAt == c
	case perdure.VAP:
		return row.Subscribed
	}
	return MayRead(m, row.MinClock, c)
}

// MayReadDuringOutage reports whether a cached row may answer a Get at clock c while the row's shard is unavailable,
// although MayReuse forbids it. The row may exceed the model's bound by at most by clocks. For models without a bound
// in clocks, by counts from the clock at which the row was read or pushed. Under bsp nothing is relaxed.
func MayReadDuringOutage(m perdure.Consistency, row CachedRow, c, by perdure.Clock) bool {
	switch {
	case m.TwoStep():
		return false
	case m.Bounded():
		return row.MinClock >= RequiredMinClock(m, c)-by
	}
	return row.FetchedAt >= c-by
}

// A reader ends its subscription to a row that it has not read for maxUnreadClocks clocks, or for minUnreadClocks
// clocks if the row was pushed minUnreadPushes times since. So the subscriptions follow the program's working set. A
// row that only its reader changes, once in a pass over its data, is sent once, and not again at every read.
const (
	minUnreadClocks = 8
	maxUnreadClocks = 128
	minUnreadPushes = 4
)

// ShouldUnsubscribe reports whether a reader should end its subscription to a row that it has not read for unread
// clocks, during which the row was pushed pushes times.
func ShouldUnsubscribe(unread perdure.Clock, pushes int) bool {
	return unread > maxUnreadClocks || unread > minUnreadClocks && pushes >= minUnreadPushes
}

// MissingUpdates returns how many updates of clocks ≤ c + s a read at clock c with the given applied vector lacks,
// among those that are known to exist: each slot's clocks < known. It is at most MissingBound (ESSP paper, lemma 4:
// with the slowest slot at c - s and none beyond c + s, each has at most 2s + 1 clocks in doubt). Only the slots that
// participate in clock c count, from the start of their membership intervals.
func MissingUpdates(applied, known []perdure.Clock, intervals []protocol.Interval, s, c perdure.Clock) (n int64) {
	for p, interval := range intervals {
		if p < len(known) && interval.Has(c) {
			n += max(0,
				int64(interval.Clamp(min(known[p], c+s+1))-interval.Clamp(AppliedCount(applied, perdure.Slot(p)))))
		}
	}
	return n
}

// AppliedCount returns a slot's count in an applied vector, or 0 if the vector is older than the slot.
func AppliedCount(applied []perdure.Clock, slot perdure.Slot) perdure.Clock {
	if int(slot) >= len(applied) {
		return 0
	}
	return applied[slot]
}

// MissingBound is the maximum of MissingUpdates if reads are bounded in clocks: P(2s+1) for P slots.
func MissingBound(slots int, s perdure.Clock) int64 { return int64(slots) * (2*int64(s) + 1) }

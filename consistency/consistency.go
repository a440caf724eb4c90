// Package consistency decides, purely, how fresh a read must be and when an
// update counts.
//
// Its one mechanism is the applied vector of a shard: for each slot, how many
// of its clocks are applied. The vector is the exactly-once filter (an update
// already counted is ignored, so resending is always safe), the source of
// MinClock, and part of every checkpoint. [Intake] is the state machine around
// it that puts a shard's updates in order.
//
// Nothing here is safe for concurrent use; a shard's owner guards it.
package consistency

import (
	"math"

	"github.com/perdure/perdure"
)

// Always is the MinClock that a read needs when it may be arbitrarily stale.
const Always = perdure.Clock(math.MinInt64)

// Needed returns the MinClock that a row must have been read at, at least, for a
// Get at clock c: c - s (ESSP paper, section 2: a read at clock c sees all
// updates of clocks ≤ c-s-1).
func Needed(m perdure.Consistency, c perdure.Clock) perdure.Clock {
	switch m.Kind {
	case perdure.BSP:
		return c
	case perdure.SSP:
		return c - m.Staleness
	}
	return Always
}

// MayRead reports whether a Get at clock c may be answered with a row that was
// read at the given MinClock: the one function that the server asks before it
// answers and the reader asks before it believes an answer or its cache.
func MayRead(m perdure.Consistency, minClock, c perdure.Clock) bool {
	return minClock >= Needed(m, c)
}

// MayReuse reports whether a cached row, fetched at the reader's clock fetchedAt
// and with the given MinClock, may answer a Get at clock c. Without a bound on
// staleness a cached row lives for one clock, so that reads do go on to see
// what others did.
func MayReuse(m perdure.Consistency, minClock, fetchedAt, c perdure.Clock) bool {
	if m.Kind == perdure.ASP {
		return fetchedAt == c
	}
	return MayRead(m, minClock, c)
}

// MinClock returns the smallest count of an applied vector: every slot's
// updates of clocks < MinClock are applied.
func MinClock(applied []perdure.Clock) perdure.Clock {
	least := perdure.Clock(math.MaxInt64)
	for _, c := range applied {
		least = min(least, c)
	}
	return least
}

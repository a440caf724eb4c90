package membership

import (
	"cmp"
	"slices"
)

// These functions decide in which order a draining server hands over its shards, and when it leaves the chains that
// have other members. docs/design/leaving.md gives the reasons. A drainDeadline is not safe for concurrent use.

// drainingShard is a shard that waits for its turn to be copied.
type drainingShard struct {
	Shard, Server int   // the draining server
	Others        int   // number of chain members that stay
	Bytes         int64 // size of its rows, as far as known
}

// At most maxDrainCopies are copied from a draining server at a time, so that the network is not idle between two
// copies; or more, as long as their rows total at most maxDrainBytes.
const (
	maxDrainCopies = 2
	maxDrainBytes  = 64 << 20
)

// drainLine is the set of shards being copied from one draining server.
type drainLine struct {
	shards int
	bytes  int64
	full   bool // a shard is waiting, so later ones wait as well
}

// Add counts one more shard that is being copied.
func (l *drainLine) Add(bytes int64) {
	l.shards++
	l.bytes += bytes
}

// takes reports whether one more shard may be copied now.
func (l *drainLine) takes(bytes int64) bool {
	l.full = l.full || l.shards >= maxDrainCopies && l.bytes+bytes > maxDrainBytes
	return !l.full
}

// nextToDrain returns the shards to copy now, in order: first those that no other server has, then small ones. line is
// called once for each server. all may be reordered.
func nextToDrain(all []drainingShard, line func(server int) *drainLine) (now []drainingShard) {
	slices.SortFunc(all, func(a, b drainingShard) int {
		return cmp.Or(cmp.Compare(a.Others, b.Others), cmp.Compare(a.Bytes, b.Bytes), cmp.Compare(a.Shard, b.Shard))
	})
	lines := map[int]*drainLine{}
	for _, s := range all {
		l := lines[s.Server]
		if l == nil {
			l = line(s.Server)
			lines[s.Server] = l
		}
		if l.takes(s.Bytes) {
			l.Add(s.Bytes)
			now = append(now, s)
		}
	}
	return now
}

// A draining server leaves the chains that have other members when a third of its time is left, or 5 seconds if that is
// less: leaving takes a view and an exchange of messages, and until then the server is one more copy.
const (
	urgentFraction = 3
	urgentSeconds  = 5
)

// drainDeadline records when a draining server will stop. The zero value has no deadline.
type drainDeadline struct {
	last    int64 // the tick from which the time is nearly over; 0: no deadline
	Handled bool  // its shards have been checked since then
}

// Set records that ms milliseconds are left at the given tick. tickSeconds is the length of a tick. An earlier
// deadline stays in force.
func (n *drainDeadline) Set(tick, ms int64, tickSeconds float64) {
	perTick := tickSeconds * 1000
	left := int64(float64(ms) / perTick)
	last := max(1, tick+left-min(left/urgentFraction, int64(urgentSeconds*1000/perTick)))
	if n.last == 0 || last < n.last {
		n.last = last
	}
}

// NearlyOver reports whether the time is nearly over at a tick.
func (n *drainDeadline) NearlyOver(tick int64) bool { return n.last > 0 && tick >= n.last }

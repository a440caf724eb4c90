package membership

import (
	"cmp"
	"slices"
)

// This file decides what goes first of what servers hold that are to end, and when such a server leaves
// chains that others are in. Package membership asks, and carries it out; docs/design/leaving.md says why it is so.
//
// It is pure. A drainNotice is not safe for concurrent use.

// drainingShard is one that waits for its turn to be copied.
type drainingShard struct {
	Shard, Server int   // the server is to end
	Others        int   // how many of its chain stay
	Bytes         int64 // of its rows, as far as is known
}

// What is copied at a time, of one server that is to end, is fewShards, so that the line is not idle while one begins
// or ends; or more, while their rows come to no more than fewBytes.
const (
	fewShards = 2
	fewBytes  = 64 << 20
)

// drainLine is what is being copied of one server that is to end.
type drainLine struct {
	shards int
	bytes  int64
	full   bool // somebody waits already: who comes after that one waits, too
}

// Add counts one more shard that is being copied.
func (l *drainLine) Add(bytes int64) {
	l.shards++
	l.bytes += bytes
}

// takes reports whether it is one more shard's turn.
func (l *drainLine) takes(bytes int64) bool {
	l.full = l.full || l.shards >= fewShards && l.bytes+bytes > fewBytes
	return !l.full
}

// nextToDrain returns those of the shards whose turn it is, in their order: what nobody else has goes first, then what
// is small. line is asked once for each server. It may change the list.
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

// A server leaves the chains that others are in when a part of its notice is left, or some seconds, if that is less: it
// takes a view and an exchange of messages, and until then the server is one copy more.
const (
	lastPart    = 3
	lastSeconds = 5
)

// drainNotice is for how long a server that is to end will still be there. The zero one has no end.
type drainNotice struct {
	last   int64 // the tick from which it is nearly over; 0: it has no end
	Looked bool  // its shards were looked at since it is nearly over
}

// Tell notes how many milliseconds are left of it at a tick, of which each takes some seconds.
func (n *drainNotice) Tell(tick, ms int64, tickSeconds float64) {
	perTick := tickSeconds * 1000
	left := int64(float64(ms) / perTick)
	last := max(1, tick+left-min(left/lastPart, int64(lastSeconds*1000/perTick)))
	if n.last == 0 || last < n.last {
		n.last = last
	}
}

// NearlyOver reports whether it is, at a tick.
func (n *drainNotice) NearlyOver(tick int64) bool { return n.last > 0 && tick >= n.last }

package words

import (
	"maps"
	"slices"

	"github.com/perdure/perdure"
)

// ServerWord is what a server has said of itself, put together from its deltas.
type ServerWord struct {
	Revision  uint64
	Draining  bool
	Notice    int64 // as of its newest word: see ServerStatus
	Log       string
	Unreached []string
	Hold      Hold
	Resources Resources
	Shards    map[perdure.ShardID]*ShardWord
	troubled  map[perdure.ShardID]struct{} // those with a problem
}

// ShardWord is what a server has said of a shard. Its Fences are in a map.
type ShardWord struct {
	ShardStatus
	fences map[perdure.Slot]Fence
}

// Fence returns the shard's word on a slot, if it has one.
func (w *ShardWord) Fence(slot perdure.Slot) (f Fence, told bool) {
	f, told = w.fences[slot]
	return f, told
}

// Needs are the states that a replica needs beside those of its rows.
func (w *ShardWord) Needs() (names []string) {
	names = append(names, w.Held...)
	for _, seg := range w.Segments {
		names = append(names, StateNames(seg.States)...)
	}
	return names
}

// StateNames returns the names of states that lie in the store.
func StateNames(files []SegmentFile) (names []string) {
	for _, f := range files {
		names = append(names, f.File)
	}
	return names
}

// Take takes what a server says next, and calls heard for each shard that it says
// something new of, before that counts: with what was known of the shard, nil if nothing
// was, and with what is told, nil if it is not held any more. The first delta of a
// connection replaces all that was known. What it costs depends on what is told.
func (w *ServerWord) Take(d *ServerDelta, heard func(s perdure.ShardID, before *ShardWord, now *ShardDelta)) {
	w.Revision, w.Draining, w.Notice, w.Log = d.Revision, d.Draining, d.Notice, d.Log
	w.Unreached, w.Hold, w.Resources = d.Unreached, d.Hold, d.Resources
	known := w.Shards
	if d.Number == 1 || known == nil {
		w.Shards, w.troubled = make(map[perdure.ShardID]*ShardWord, len(d.Shards)), map[perdure.ShardID]struct{}{}
	}
	for i := range d.Shards {
		now := &d.Shards[i]
		before := known[now.Shard]
		heard(now.Shard, before, now)
		sh := w.Shards[now.Shard]
		if sh == nil {
			sh = &ShardWord{}
			w.Shards[now.Shard] = sh
		}
		sh.take(now)
		if delete(w.troubled, now.Shard); now.Problem != "" {
			w.troubled[now.Shard] = struct{}{}
		}
	}
	for _, s := range d.Gone {
		if before := w.Shards[s]; before != nil {
			heard(s, before, nil)
			delete(w.Shards, s)
			delete(w.troubled, s)
		}
	}
	if d.Number == 1 {
		for s, before := range known {
			if w.Shards[s] == nil {
				heard(s, before, nil)
			}
		}
	}
}

func (w *ShardWord) take(now *ShardDelta) {
	w.ShardStatus = now.ShardStatus
	w.Fences = nil
	if len(now.Fences) > 0 && w.fences == nil {
		w.fences = make(map[perdure.Slot]Fence, len(now.Fences))
	}
	for _, f := range now.Fences {
		w.fences[f.Slot] = f
	}
	for _, slot := range now.Unfenced {
		delete(w.fences, slot)
	}
}

// Problem returns what keeps one of the server's shards from going on, "" if nothing
// does.
func (w *ServerWord) Problem() string {
	least := perdure.ShardID(-1)
	for s := range w.troubled {
		if least < 0 || s < least {
			least = s
		}
	}
	if least < 0 {
		return ""
	}
	return w.Shards[least].Problem
}

// MinClock returns the least MinClock of the server's shards, -1 if it has none.
func (w *ServerWord) MinClock() perdure.Clock {
	least := perdure.Clock(-1)
	for _, sh := range w.Shards {
		if least < 0 || sh.MinClock < least {
			least = sh.MinClock
		}
	}
	return least
}

// Bytes returns how large the rows of its shards are, as far as it has said.
func (w *ServerWord) Bytes() (n int64) {
	for _, sh := range w.Shards {
		n += sh.Bytes
	}
	return n
}

// Unread returns how many records of the update log the rows of its shards lack; nil: that
// is not known of some shard, or there is none.
func (w *ServerWord) Unread() *int64 {
	var n *int64
	for _, sh := range w.Shards {
		if sh.Unread == nil {
			return nil
		}
		if n == nil {
			n = new(int64)
		}
		*n += *sh.Unread
	}
	return n
}

// Status returns all that was said, as a status.
func (w *ServerWord) Status() ServerStatus {
	st := ServerStatus{
		Revision: w.Revision, Draining: w.Draining, Notice: w.Notice, Log: w.Log, Unreached: w.Unreached,
		Hold: w.Hold, Resources: w.Resources,
	}
	for _, s := range slices.Sorted(maps.Keys(w.Shards)) {
		sh := w.Shards[s].ShardStatus
		for _, slot := range slices.Sorted(maps.Keys(w.Shards[s].fences)) {
			sh.Fences = append(sh.Fences, w.Shards[s].fences[slot])
		}
		st.Shards = append(st.Shards, sh)
	}
	return st
}

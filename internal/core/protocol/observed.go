package protocol

import (
	"maps"
	"slices"

	"github.com/perdure/perdure"
)

// ObservedServer is the status of a server as its receiver has assembled it from ServerDeltas.
type ObservedServer struct {
	Revision    uint64
	Draining    bool
	NoticeMs    int64 // as of the newest delta: see ServerStatus
	WaitReason  string
	Unreachable []string
	Hold        LockHold
	Resources   Resources
	Shards      map[perdure.ShardID]*ObservedShard
	stuckShards map[perdure.ShardID]struct{} // shards with a problem
}

// ObservedShard is the status of a shard as reported by a server. The map fences replaces ShardStatus.Fences.
type ObservedShard struct {
	ShardStatus
	fences map[perdure.Slot]Fence
}

// Fence returns the shard's fence of a slot; told reports whether there is one.
func (w *ObservedShard) Fence(slot perdure.Slot) (f Fence, sent bool) {
	f, sent = w.fences[slot]
	return f, sent
}

// NeededStates returns the names of the states that a replica needs in addition to those of its rows.
func (w *ObservedShard) NeededStates() (names []string) {
	names = append(names, w.PendingStates...)
	for _, seg := range w.Segments {
		names = append(names, StateNames(seg.States)...)
	}
	return names
}

// StateNames returns the names of states in the store.
func StateNames(files []SegmentFile) (names []string) {
	for _, f := range files {
		names = append(names, f.File)
	}
	return names
}

// Apply applies the next delta of a server. For each shard with news it first calls heard, with the shard's previous
// status (nil: none) and the new one (nil: the server no longer holds the shard). The first delta of a connection
// replaces the whole status. The cost depends on the size of the delta only, except for the first delta of a
// connection.
func (w *ObservedServer) Apply(
	d *ServerDelta,
	received func(s perdure.ShardID, before *ObservedShard, now *ShardDelta),
) {
	w.Revision, w.Draining, w.NoticeMs, w.WaitReason = d.Revision, d.Draining, d.NoticeMs, d.WaitReason
	w.Unreachable, w.Hold, w.Resources = d.Unreachable, d.Hold, d.Resources
	known := w.Shards
	if d.Number == 1 || known == nil {
		w.Shards, w.stuckShards = make(map[perdure.ShardID]*ObservedShard, len(d.Shards)),
			map[perdure.ShardID]struct{}{}
	}
	for i := range d.Shards {
		now := &d.Shards[i]
		before := known[now.Shard]
		received(now.Shard, before, now)
		sh := w.Shards[now.Shard]
		if sh == nil {
			sh = &ObservedShard{}
			w.Shards[now.Shard] = sh
		}
		sh.apply(now)
		if delete(w.stuckShards, now.Shard); now.Problem != "" {
			w.stuckShards[now.Shard] = struct{}{}
		}
	}
	for _, s := range d.Gone {
		if before := w.Shards[s]; before != nil {
			received(s, before, nil)
			delete(w.Shards, s)
			delete(w.stuckShards, s)
		}
	}
	if d.Number == 1 {
		for s, before := range known {
			if w.Shards[s] == nil {
				received(s, before, nil)
			}
		}
	}
}

func (w *ObservedShard) apply(now *ShardDelta) {
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

// Problem returns why one of the server's shards is stuck; "": none is.
func (w *ObservedServer) Problem() string {
	least := perdure.ShardID(-1)
	for s := range w.stuckShards {
		if least < 0 || s < least {
			least = s
		}
	}
	if least < 0 {
		return ""
	}
	return w.Shards[least].Problem
}

// MinClock returns the lowest MinClock of the server's shards, or -1 if it has none.
func (w *ObservedServer) MinClock() perdure.Clock {
	least := perdure.Clock(-1)
	for _, sh := range w.Shards {
		if least < 0 || sh.MinClock < least {
			least = sh.MinClock
		}
	}
	return least
}

// Bytes returns the size of the rows of its shards, as far as the server has reported it.
func (w *ObservedServer) Bytes() (n int64) {
	for _, sh := range w.Shards {
		n += sh.Bytes
	}
	return n
}

// Unread returns how many records of the update log the rows of its shards lack. It returns nil if that is unknown for
// some shard, or if there are no shards.
func (w *ObservedServer) Unread() *int64 {
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

// Status returns the assembled status as a ServerStatus.
func (w *ObservedServer) Status() ServerStatus {
	st := ServerStatus{
		Revision: w.Revision, Draining: w.Draining, NoticeMs: w.NoticeMs, WaitReason: w.WaitReason,
		Unreachable: w.Unreachable,
		Hold:        w.Hold, Resources: w.Resources,
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

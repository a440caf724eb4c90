package protocol

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
)

// ServerStatus is the status that a server reports to the coordinator.
type ServerStatus struct {
	Revision uint64        `json:"revision"` // of the view that the server acts on
	Shards   []ShardStatus `json:"shards"`
	// Draining reports whether the server must end, and asks other servers to take over its replicas.
	Draining bool `json:"draining,omitempty"`
	// NoticeMs is how long the process of a draining server will still run, in milliseconds from this status on; 0:
	// until other servers have taken over everything.
	NoticeMs int64 `json:"notice,omitempty"`
	// WaitReason is why writes to the update log wait; "": none do.
	WaitReason string `json:"log,omitempty"`
	// Unreachable lists the addresses of servers that this server needs and cannot reach.
	Unreachable []string `json:"unreached,omitempty"`
	// Hold is the lock that the server has held for the longest time without progress.
	Hold LockHold `json:"hold"`
	// Resources are the resources of the process.
	Resources Resources `json:"resources"`
}

// ShardStatus is the status of one replica that the server holds.
type ShardStatus struct {
	Shard      perdure.ShardID    `json:"shard"`
	Generation perdure.Generation `json:"generation"`
	Epoch      perdure.Epoch      `json:"epoch"`
	Since      uint64             `json:"since,omitempty"` // as in the view's Holder
	// Ready reports whether the replica serves: it is restored and, at the head of a chain, all members have received
	// in this epoch everything that the head had when the epoch started.
	Ready bool `json:"ready"`
	// Joined reports whether a joiner has caught up with the tail.
	Joined bool `json:"joined,omitempty"`
	// Yielded reports whether the successor of a yielding head has everything that the head has.
	Yielded  bool          `json:"yielded,omitempty"`
	MinClock perdure.Clock `json:"min_clock"`
	Seq      uint64        `json:"seq"` // number of updates that its rows contain
	// Applied is the applied vector of a head whose updates were partly lost and that waits for its Base. It describes
	// the rows alone, without the additions of Base.
	Applied []perdure.Clock `json:"applied,omitempty"`
	// Fences holds an entry for each slot that the view calls unsettled.
	Fences []Fence `json:"fences,omitempty"`
	// Roster is the newest View.Roster whose membership intervals the replica uses.
	Roster uint64    `json:"roster,omitempty"`
	Cuts   CutStatus `json:"cuts"`
	// ResendComplete reports whether a restored shard has received all updates that the workers had sent to it before
	// it was lost.
	ResendComplete bool `json:"whole,omitempty"`
	// SavedRows groups the rows by the save they come from, if rows were saved one by one; otherwise nil. It is set
	// together with Applied.
	SavedRows []SavedRows `json:"kept,omitempty"`
	// Segments are the segments written in this generation for cuts that the view does not call durable yet. If rows
	// are saved one by one, it holds the newest segment, which lists the segments that the running checkpoint also
	// needs. A segment at clock Named is reported only if it has all rows.
	Segments []Segment `json:"segments,omitempty"`
	// States are the names of the slot states in the store that belong to its rows. PendingStates are those that belong
	// to data still being written. See package states.
	States        []string `json:"states,omitempty"`
	PendingStates []string `json:"held,omitempty"`
	// SaveSeconds is how long the replica took to write its last segment durably, and SaveBytes is the size of the
	// segment; 0: none was written. If rows are saved one by one: the total pause of training for saves, and the total
	// size, so far.
	SaveSeconds float64 `json:"save_seconds,omitempty"`
	SaveBytes   int64   `json:"save_bytes,omitempty"`
	// Unread is how many records of the shard's stream in the update log its rows lack; nil: there is no stream, or its
	// length could not be determined recently.
	Unread *int64 `json:"unread,omitempty"`
	// Bytes is the approximate size of the replica's rows; 0: unknown.
	Bytes int64 `json:"bytes,omitempty"`
	// Problem is why the shard is stuck; "": it is not.
	Problem string `json:"problem,omitempty"`
}

// CutStatus is the part of a ShardStatus about requested cuts.
type CutStatus struct {
	// Named is the newest View.Named at which the replica will save, or which it has passed.
	Named perdure.Clock `json:"named,omitempty"`
	// Missed reports that the replica has passed a cut without saving it: the background save of that cut was given up,
	// or the replica passed the clock at which it had to save all rows. That checkpoint will never exist.
	Missed bool `json:"missed,omitempty"`
	// Hold is the number of the hold that the replica is in; 0: none. Ticked is then by slot the clock below which its
	// updates are decided.
	Hold   uint64          `json:"hold,omitempty"`
	Ticked []perdure.Clock `json:"ticked,omitempty"`
}

// differs reports whether two statuses differ, apart from the progress during a hold.
func (c *CutStatus) differs(o *CutStatus) bool {
	return c.Named != o.Named || c.Missed != o.Missed || c.Hold != o.Hold
}

// Fence is the progress of a slot on a shard at the moment when its older incarnations were fenced. Carried reports
// whether the decision about their updates has been carried out.
type Fence struct {
	Slot        perdure.Slot        `json:"slot"`
	Incarnation perdure.Incarnation `json:"incarnation"` // older ones are rejected
	Counts      Counts              `json:"counts"`
	Carried     bool                `json:"carried"`
}

// Segment is a checkpoint segment that a server has written durably.
type Segment struct {
	Cut   perdure.Clock `json:"cut"`
	File  string        `json:"file"`
	Bytes int64         `json:"bytes"`
	CRC   uint32        `json:"crc"`
	Seq   uint64        `json:"seq"`
	// Base are the segments that this one builds on: see checkpoint.SegmentRef.
	Base []SegmentFile `json:"base,omitempty"`
	// States are the slot states in the store to which the segment refers.
	States []SegmentFile `json:"states,omitempty"`
}

// SegmentFile is the file of a segment.
type SegmentFile = SavedFile

// SavedRows counts rows with which a lost shard restarts and that were saved at the same moment.
type SavedRows struct {
	Cut  perdure.Clock `json:"cut"`  // the shard's MinClock at the save
	Seq  uint64        `json:"seq"`  // number of updates in the shard's rows at the save; 0: initial rows
	Rows int64         `json:"rows"` // number of rows, over all tables
}

// ServerDelta is the change of a ServerStatus since the previous delta on the connection; the first delta holds the
// whole status. Its size depends on the change, not on what the server holds. It holds new values, never increments. A
// receiver that has missed a delta must close the connection, since the sender assumes that it was received.
type ServerDelta struct {
	Number      uint64            `json:"Number"` // sequence number on the connection, from 1; 1 holds the whole status
	Revision    uint64            `json:"Revision"`
	Draining    bool              `json:"Draining"`
	NoticeMs    int64             `json:"Notice"`
	WaitReason  string            `json:"Log"`
	Unreachable []string          `json:"Unreached"`
	Hold        LockHold          `json:"Hold"`
	Resources   Resources         `json:"Resources"`
	Shards      []ShardDelta      `json:"Shards"` // changed and new shards
	Gone        []perdure.ShardID `json:"Gone"`   // shards that the server no longer holds
}

// ShardDelta is the new value of a shard in a ServerDelta. Its Fences are only the changed and new ones.
type ShardDelta struct {
	ShardStatus
	Unfenced []perdure.Slot `json:"Unfenced"` // slots that no longer have a fence
}

// maxDeltaItems is the approximate max number of items in a ServerDelta; the rest is sent with the next one.
const maxDeltaItems = 16 << 10

// ServerDeltaEncoder tracks what a server has sent on a connection. The zero value has sent nothing.
type ServerDeltaEncoder struct {
	number uint64
	sent   map[perdure.ShardID]*ShardStatus
}

// Delta returns the change to send for a status whose fences are in slot order, and records it as sent. Changes on
// which the coordinator may act are sent immediately. Counts, which change with every clock, are sent together with
// other changes of the shard, at the end of the job, or if counts is set. more reports that the rest does not fit into
// this message. Delta keeps st, which must not change afterwards.
func (t *ServerDeltaEncoder) Delta(st *ServerStatus, end perdure.Clock, counts bool) (d ServerDelta, more bool) {
	t.number++
	d = ServerDelta{
		Number: t.number, Revision: st.Revision, Draining: st.Draining, NoticeMs: st.NoticeMs,
		WaitReason:  st.WaitReason,
		Unreachable: st.Unreachable, Hold: st.Hold,
		Resources: st.Resources,
	}
	if t.sent == nil {
		t.sent = map[perdure.ShardID]*ShardStatus{}
	}
	held, record := 0, 0
	for i := range st.Shards {
		now := &st.Shards[i]
		before := t.sent[now.Shard]
		if before != nil {
			held++
			if !isActionable(before, now, end) && !(counts && countsChanged(before, now)) {
				continue
			}
		}
		if more = record > maxDeltaItems; more {
			return d, true
		}
		if before == nil {
			held++
			before = &ShardStatus{}
		}
		t.sent[now.Shard] = now
		c := ShardDelta{ShardStatus: *now}
		c.Fences, c.Unfenced = changedFences(before.Fences, now.Fences)
		record += 1 + len(c.Fences) + len(c.Unfenced) + len(c.Applied) + len(c.Segments)
		d.Shards = append(d.Shards, c)
	}
	if held < len(t.sent) {
		d.Gone = t.forget(st)
	}
	return d, false
}

// forget removes the shards that the status no longer contains.
func (t *ServerDeltaEncoder) forget(st *ServerStatus) (gone []perdure.ShardID) {
	is := map[perdure.ShardID]struct{}{}
	for i := range st.Shards {
		is[st.Shards[i].Shard] = struct{}{}
	}
	for s := range t.sent {
		if _, still := is[s]; !still {
			delete(t.sent, s)
			gone = append(gone, s)
		}
	}
	slices.Sort(gone)
	return gone
}

// isActionable reports whether the change of a shard contains anything on which the coordinator may act.
func isActionable(before, now *ShardStatus, end perdure.Clock) bool {
	return before.Generation != now.Generation || before.Epoch != now.Epoch || before.Since != now.Since ||
		before.Ready != now.Ready || before.Joined != now.Joined || before.Yielded != now.Yielded ||
		before.ResendComplete != now.ResendComplete || before.Roster != now.Roster ||
		before.Cuts.differs(&now.Cuts) || before.Problem != now.Problem ||
		end > 0 && before.MinClock < end && now.MinClock >= end ||
		!slices.Equal(before.Applied, now.Applied) || !slices.Equal(before.SavedRows, now.SavedRows) ||
		!slices.Equal(before.Fences, now.Fences) ||
		!slices.Equal(before.States, now.States) || !slices.Equal(before.PendingStates, now.PendingStates) ||
		!slices.EqualFunc(before.Segments, now.Segments,
			func(a, b Segment) bool { return a.File == b.File && a.CRC == b.CRC })
}

// countsChanged reports whether a shard's counts have changed.
func countsChanged(before, now *ShardStatus) bool {
	return before.MinClock != now.MinClock || before.Seq != now.Seq || before.SaveSeconds != now.SaveSeconds ||
		before.SaveBytes != now.SaveBytes || before.Bytes != now.Bytes ||
		!slices.Equal(before.Cuts.Ticked, now.Cuts.Ticked) ||
		(before.Unread == nil) != (now.Unread == nil) || now.Unread != nil && *before.Unread != *now.Unread
}

// changedFences returns the changed and new fences, and the slots that no longer have one. All lists are in slot order.
func changedFences(before, now []Fence) (changed []Fence, gone []perdure.Slot) {
	for len(before) > 0 || len(now) > 0 {
		switch {
		case len(now) == 0 || len(before) > 0 && before[0].Slot < now[0].Slot:
			gone, before = append(gone, before[0].Slot), before[1:]
			continue
		case len(before) > 0 && before[0].Slot == now[0].Slot:
			if before[0] != now[0] {
				changed = append(changed, now[0])
			}
			before = before[1:]
		default:
			changed = append(changed, now[0])
		}
		now = now[1:]
	}
	return changed, gone
}

// LockHold describes the lock, among those held now, that the server has held for the longest time without progress.
// Its shard is busy or deadlocked.
type LockHold struct {
	Shard     perdure.ShardID `json:"shard"`      // -1: the server's own lock
	Ms        int64           `json:"ms"`         // how long it has been held; 0: no lock at two successive samples
	LongestMs int64           `json:"longest_ms"` // longest completed hold of any lock of the process
}

// String describes the hold for users.
func (h LockHold) String() string {
	if h.Shard < 0 {
		return fmt.Sprintf("has held its lock for %.0f s without progress", float64(h.Ms)/1000)
	}
	return fmt.Sprintf("has held the lock of shard %d for %.0f s without progress", h.Shard, float64(h.Ms)/1000)
}

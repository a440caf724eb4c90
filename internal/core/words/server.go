package words

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
)

// ServerStatus is a server's Status.
type ServerStatus struct {
	Revision uint64        `json:"revision"` // of the view it acts on
	Shards   []ShardStatus `json:"shards"`
	// Draining says that the server is to end, and asks that others take over what
	// it holds.
	Draining bool `json:"draining,omitempty"`
	// Notice is for how long, of one that is to end, its process will still be there, in
	// milliseconds from this word on; 0: until others have taken over all.
	Notice int64 `json:"notice,omitempty"`
	// Log says why what goes to the update log waits, "" if nothing does.
	Log string `json:"log,omitempty"`
	// Unreached are addresses of servers that it wants something of and cannot reach.
	Unreached []string `json:"unreached,omitempty"`
	// Hold is the lock that the server has held for the longest time without progress.
	Hold Hold `json:"hold"`
	// Resources are those of the process.
	Resources Resources `json:"resources"`
}

// ShardStatus is one shard's part of a ServerStatus: of the replica that the
// server holds.
type ShardStatus struct {
	Shard      perdure.ShardID    `json:"shard"`
	Generation perdure.Generation `json:"generation"`
	Epoch      perdure.Epoch      `json:"epoch"`
	Since      uint64             `json:"since,omitempty"` // as in the view's Holder
	// Ready says that it serves: restored and, of a chain's head, that all members
	// have, in this epoch, what it had when the epoch began.
	Ready bool `json:"ready"`
	// Joined says of a replica that is joining that it has come up with the tail.
	Joined bool `json:"joined,omitempty"`
	// Yielded says of a head that yields that its successor has all that it has.
	Yielded  bool          `json:"yielded,omitempty"`
	MinClock perdure.Clock `json:"min_clock"`
	Seq      uint64        `json:"seq"` // updates that its rows contain
	// Applied is the applied vector of a head that was told that updates were lost,
	// and waits for its Base; its rows' own, without what Base is to add.
	Applied []perdure.Clock `json:"applied,omitempty"`
	// Fences answers for the slots that the view calls unsettled.
	Fences []Fence `json:"fences,omitempty"`
	// Roster is the newest View.Roster whose spans it goes by.
	Roster uint64 `json:"roster,omitempty"`
	// Named is the newest View.Named that it will stand at, or has passed.
	Named perdure.Clock `json:"named,omitempty"`
	// Missed says that it has gone on after a cut that was to be written meanwhile, and that
	// nobody writes any more, or after the clock at which it was to save all rows: there will be no
	// checkpoint of it.
	Missed bool `json:"missed,omitempty"`
	// Whole says of a shard that was restored that it has received all that the workers
	// had sent to its former life.
	Whole bool `json:"whole,omitempty"`
	// Kept says what its rows are of, where each was saved by itself; else nil. It goes with
	// Applied.
	Kept []Kept `json:"kept,omitempty"`
	// Segments are those written in this generation for cuts that the view does
	// not call durable yet. Where rows are saved by themselves it is the newest one, with
	// those that the running checkpoint needs beside it. One of clock Named is told of if it has all rows only.
	Segments []Segment `json:"segments,omitempty"`
	// States are names of what slots have saved that lies in the store, and that its rows come with;
	// Held are those that they came with in what is being written still. See package states.
	States []string `json:"states,omitempty"`
	Held   []string `json:"held,omitempty"`
	// SaveSeconds and SaveBytes say how long the replica's last segment took to be
	// written, until it was durable, and how large it is; 0: it has written none. Where rows
	// are saved by themselves: for how long training paused for that, and all bytes, so far.
	SaveSeconds float64 `json:"save_seconds,omitempty"`
	SaveBytes   int64   `json:"save_bytes,omitempty"`
	// Unread is how many records of the shard's stream of the update log its rows lack; nil:
	// it has none, or it was not to be found out lately how long it is.
	Unread *int64 `json:"unread,omitempty"`
	// Bytes is how large the replica's rows are, about; 0: that is not known.
	Bytes int64 `json:"bytes,omitempty"`
	// Problem says what keeps the shard from going on, "" if nothing does.
	Problem string `json:"problem,omitempty"`
}

// Fence says how far a slot had come on a shard when its older incarnations
// were fenced, and whether the decision about them has been carried out.
type Fence struct {
	Slot        perdure.Slot        `json:"slot"`
	Incarnation perdure.Incarnation `json:"incarnation"` // older ones are refused
	Counts      Counts              `json:"counts"`
	Carried     bool                `json:"carried"`
}

// Segment names a checkpoint segment that a server has written durably.
type Segment struct {
	Cut   perdure.Clock `json:"cut"`
	File  string        `json:"file"`
	Bytes int64         `json:"bytes"`
	CRC   uint32        `json:"crc"`
	Seq   uint64        `json:"seq"`
	// Base are the segments that it follows: see checkpoint.SegmentRef.
	Base []SegmentFile `json:"base,omitempty"`
	// States are what slots have saved that lies in the store, and that it refers to.
	States []SegmentFile `json:"states,omitempty"`
}

// SegmentFile is a segment's file.
type SegmentFile = SavedFile

// Kept says of a lost shard of what rows it begins with how many were saved when.
type Kept struct {
	Cut  perdure.Clock `json:"cut"`  // the shard's MinClock then
	Seq  uint64        `json:"seq"`  // updates that the shard's rows contained then; 0 of initial rows
	Rows int64         `json:"rows"` // of all tables
}

// ServerDelta is what a server tells of its ServerStatus: on each connection all of it
// first, then what has changed since. So a word costs what has changed, not what the
// server holds. It holds whole values, never steps; but whoever has missed one of a
// connection knows less than its sender thinks, and breaks it.
type ServerDelta struct {
	Number    uint64            `json:"Number"` // on its connection, from 1: that one tells all
	Revision  uint64            `json:"Revision"`
	Draining  bool              `json:"Draining"`
	Notice    int64             `json:"Notice"`
	Log       string            `json:"Log"`
	Unreached []string          `json:"Unreached"`
	Hold      Hold              `json:"Hold"`
	Resources Resources         `json:"Resources"`
	Shards    []ShardDelta      `json:"Shards"` // that changed, or are new
	Gone      []perdure.ShardID `json:"Gone"`   // that it does not hold any more
}

// ShardDelta is a shard that a ServerDelta tells of, as it is then; of its fences, those
// that changed or are new.
type ShardDelta struct {
	ShardStatus
	Unfenced []perdure.Slot `json:"Unfenced"` // of which it has no fence to tell any more
}

// mostFacts is of how many facts a ServerDelta tells, about: what is more than that
// comes with the next.
const mostFacts = 16 << 10

// ServerSpeaker knows what a server has told on a connection. The zero one has told nothing.
type ServerSpeaker struct {
	number uint64
	told   map[perdure.ShardID]*ShardStatus
}

// Delta returns what is to be told of a status, whose shards' fences are in order, and
// notes it as told. What may decide anything is told at once. Counts, which change with
// every clock, are told of a shard with all else, when it comes to the job's end, or if
// counts says so. It keeps the status, which must stay as it is. More says that there is
// more to tell than fits one message.
func (t *ServerSpeaker) Delta(st *ServerStatus, end perdure.Clock, counts bool) (d ServerDelta, more bool) {
	t.number++
	d = ServerDelta{
		Number: t.number, Revision: st.Revision, Draining: st.Draining, Notice: st.Notice, Log: st.Log,
		Unreached: st.Unreached, Hold: st.Hold,
		Resources: st.Resources,
	}
	if t.told == nil {
		t.told = map[perdure.ShardID]*ShardStatus{}
	}
	held, facts := 0, 0
	for i := range st.Shards {
		now := &st.Shards[i]
		before := t.told[now.Shard]
		if before != nil {
			held++
			if !decides(before, now, end) && !(counts && counted(before, now)) {
				continue
			}
		}
		if more = facts > mostFacts; more {
			return d, true
		}
		if before == nil {
			held++
			before = &ShardStatus{}
		}
		t.told[now.Shard] = now
		c := ShardDelta{ShardStatus: *now}
		c.Fences, c.Unfenced = changedFences(before.Fences, now.Fences)
		facts += 1 + len(c.Fences) + len(c.Unfenced) + len(c.Applied) + len(c.Segments)
		d.Shards = append(d.Shards, c)
	}
	if held < len(t.told) {
		d.Gone = t.forget(st)
	}
	return d, false
}

// forget forgets the shards that a status does not tell of any more.
func (t *ServerSpeaker) forget(st *ServerStatus) (gone []perdure.ShardID) {
	is := map[perdure.ShardID]struct{}{}
	for i := range st.Shards {
		is[st.Shards[i].Shard] = struct{}{}
	}
	for s := range t.told {
		if _, still := is[s]; !still {
			delete(t.told, s)
			gone = append(gone, s)
		}
	}
	slices.Sort(gone)
	return gone
}

// decides reports whether a shard has something to tell that may decide anything.
func decides(before, now *ShardStatus, end perdure.Clock) bool {
	return before.Generation != now.Generation || before.Epoch != now.Epoch || before.Since != now.Since ||
		before.Ready != now.Ready || before.Joined != now.Joined || before.Yielded != now.Yielded ||
		before.Missed != now.Missed || before.Whole != now.Whole ||
		before.Roster != now.Roster || before.Named != now.Named || before.Problem != now.Problem ||
		end > 0 && before.MinClock < end && now.MinClock >= end ||
		!slices.Equal(before.Applied, now.Applied) || !slices.Equal(before.Kept, now.Kept) ||
		!slices.Equal(before.Fences, now.Fences) ||
		!slices.Equal(before.States, now.States) || !slices.Equal(before.Held, now.Held) ||
		!slices.EqualFunc(before.Segments, now.Segments,
			func(a, b Segment) bool { return a.File == b.File && a.CRC == b.CRC })
}

// counted reports whether a shard's counts have changed.
func counted(before, now *ShardStatus) bool {
	return before.MinClock != now.MinClock || before.Seq != now.Seq || before.SaveSeconds != now.SaveSeconds ||
		before.SaveBytes != now.SaveBytes || before.Bytes != now.Bytes ||
		(before.Unread == nil) != (now.Unread == nil) || now.Unread != nil && *before.Unread != *now.Unread
}

// changedFences returns which fences are other ones than before, or new, and of which
// slots there are none any more. All are in the order of their slots.
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

// Hold is the lock that a server has held for the longest time without progress, of those that it holds now: that of a
// shard which is at work, or deadlocked.
type Hold struct {
	Shard     perdure.ShardID `json:"shard"`      // -1: it is the server's own lock
	Ms        int64           `json:"ms"`         // for how long; 0: no lock was held at two samples in a row
	LongestMs int64           `json:"longest_ms"` // the longest hold that has ended, of the process's locks
}

// String says for people what the server does.
func (h Hold) String() string {
	if h.Shard < 0 {
		return fmt.Sprintf("has held its lock for %.0f s without progress", float64(h.Ms)/1000)
	}
	return fmt.Sprintf("has held the lock of shard %d for %.0f s without progress", h.Shard, float64(h.Ms)/1000)
}

package protocol

import (
	"fmt"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// View is the configuration of the job as recorded by the coordinator: which servers hold each shard, which process
// speaks for each slot, and the clock of the last rollback. Views are totally ordered by Revision. A view takes effect
// only once the registry has it.
type View struct {
	Revision   uint64             `json:"revision"`
	Generation perdure.Generation `json:"generation"`
	Cut        perdure.Clock      `json:"cut"` // the clock at which this generation started
	End        perdure.Clock      `json:"end"` // no update of a clock ≥ End is ever applied; 0: no end yet
	// Tentative reports that End may still be taken back: every slot stops there, and one of them evaluates the model.
	// Shards ignore a tentative end.
	Tentative bool `json:"tentative,omitempty"`
	// Pause stops all slots from ending a clock until the end of the job, or its membership, is decided.
	Pause   bool          `json:"pause"`
	Durable perdure.Clock `json:"durable"` // the newest published checkpoint's cut
	// Named is a cut in addition to those of the strategy's interval, at a clock that no
	// slot had passed when it was named; 0: none yet. It matters only while it is later
	// than Durable.
	Named perdure.Clock `json:"named,omitempty"`
	// Hold is the number of the current hold, in which shards apply no updates, so that a cut by slot can be chosen; 0:
	// none.
	Hold uint64 `json:"hold,omitempty"`
	// CutClocks, DurableClocks and NamedClocks are the clocks of the slots at Cut, Durable and Named, if these are cuts
	// by slot.
	CutClocks     SlotClocks          `json:"cut_clocks,omitempty"`
	DurableClocks SlotClocks          `json:"durable_clocks,omitempty"`
	NamedClocks   SlotClocks          `json:"named_clocks,omitempty"`
	Done          bool                `json:"done"`
	Tables        []perdure.TableSpec `json:"tables"`
	Shards        []ShardView         `json:"shards"`
	Slots         []SlotView          `json:"slots"`
	// Roster counts the changes of the slots' membership intervals.
	Roster uint64 `json:"roster,omitempty"`
}

// SlotClocks describes a cut by slot: it contains the updates of each slot up to another clock. The cut's number is
// the mean of these clocks, or higher if an earlier cut has that number. A nil SlotClocks describes a cut at one clock,
// its number, for all slots. SlotClocks are never changed in place.
type SlotClocks []perdure.Clock

// Of returns the clock of a slot in the cut with the given number; that number for NoSlot.
func (c SlotClocks) Of(slot perdure.Slot, cut perdure.Clock) perdure.Clock {
	switch {
	case c == nil || slot < 0:
		return cut
	case int(slot) >= len(c):
		return 0 // it has joined since
	}
	return c[slot]
}

// Least returns the lowest clock of any slot in the cut with the given number.
func (c SlotClocks) Least(cut perdure.Clock) perdure.Clock {
	if len(c) == 0 {
		return cut
	}
	return slices.Min(c)
}

// Most returns the highest clock of any slot in the cut with the given number.
func (c SlotClocks) Most(cut perdure.Clock) perdure.Clock {
	if len(c) == 0 {
		return cut
	}
	return slices.Max(c)
}

// Clone returns a copy with its own lists of tables, shards and slots. The lists of a
// shard (followers, base) are shared: they are never changed in place.
func (v *View) Clone() View {
	w := *v
	w.Tables, w.Shards, w.Slots = slices.Clone(v.Tables), slices.Clone(v.Shards), slices.Clone(v.Slots)
	return w
}

// ClockLimit returns the highest count of clocks that any slot of the job may say it has.
func (v *View) ClockLimit(job *perdure.JobSpec) perdure.Clock {
	if end := max(v.End, job.Clocks); end > 0 {
		return end
	}
	return perdure.MaxClock
}

// Holder is a server that holds a replica of a shard.
type Holder struct {
	Server      int                 `json:"server"`      // -1: no server
	Incarnation perdure.Incarnation `json:"incarnation"` // of the server's process
	Addr        string              `json:"addr"`
	// Since is the revision of the view that made it a holder. A server that holds the
	// shard since another revision must discard it: it has missed changes.
	Since uint64 `json:"since,omitempty"`
}

// ShardView is the chain that holds a shard. The embedded Holder is the head,
// which receives updates; if its Server is -1, the shard has no holder.
type ShardView struct {
	Holder
	Epoch perdure.Epoch `json:"epoch"`
	// Followers are the rest of the chain, in its order; the last is the tail. An
	// update is committed once all of them have it.
	Followers []Holder `json:"followers,omitempty"`
	// Joining is the joiner: it copies the shard from the tail, and is not yet a member of the chain.
	Joining *Holder `json:"joining,omitempty"`

	// Base is the applied vector with which the shard starts this epoch, if the strategy lets rows be lost: the
	// acknowledged clock of each slot. It is nil until all live slots have reported theirs, and always nil under other
	// strategies.
	Base []perdure.Clock `json:"base,omitempty"`
	// Lost reports that the shard's rows were lost before this epoch. Under a chain that acknowledges early it can also
	// mean that updates were lost which only the former head had.
	Lost bool `json:"lost,omitempty"`
	// Restored reports that this epoch started with the rows of the cut Durable, and that workers resend all later
	// updates.
	Restored bool `json:"restored,omitempty"`
	// Saved lists the files of the running checkpoint from which this epoch started, oldest first, if single rows are
	// saved; nil: it started with the initial rows.
	Saved []SavedFile `json:"saved,omitempty"`
	// Yields reports that the head, which acknowledges early, must be dropped: it accepts no updates, and reports when
	// the next member has caught up.
	Yields bool `json:"yields,omitempty"`
}

// SavedFile is a file of saved rows in the job's checkpoint directory.
type SavedFile struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
	CRC   uint32 `json:"crc"`
}

// RestoredAt returns the clock of the cut whose rows restore a shard that no server holds: the
// generation's or, if only the shard was lost, the newest.
func (v *View) RestoredAt(shard perdure.ShardID) perdure.Clock {
	if v.Shards[shard].Restored {
		return v.Durable
	}
	return v.Cut
}

// DescribeShards describes shards by their number and the servers at the heads of their chains.
func (v *View) DescribeShards(shards []int) string {
	const maxNamed = 3
	var servers []string
	for _, i := range shards {
		if name := fmt.Sprintf("server:%d", v.Shards[i].Server); !slices.Contains(servers, name) {
			servers = append(servers, name)
		}
	}
	if len(servers) > maxNamed {
		return fmt.Sprintf("%d shards on %d servers", len(shards), len(servers))
	}
	return fmt.Sprintf("%d shards on %s", len(shards), strings.Join(servers, ", "))
}

// Replicas returns the number of members of the shard's chain; 0 if it has no holder.
func (s *ShardView) Replicas() int {
	if s.Server < 0 {
		return 0
	}
	return 1 + len(s.Followers)
}

// Replica returns the i-th member of the chain, from the head, 0 ≤ i < Replicas.
func (s *ShardView) Replica(i int) Holder {
	if i == 0 {
		return s.Holder
	}
	return s.Followers[i-1]
}

// Members returns the chain in newly allocated memory.
func (s *ShardView) Members() []Holder {
	chain := make([]Holder, 0, s.Replicas()+1)
	for i := range s.Replicas() {
		chain = append(chain, s.Replica(i))
	}
	return chain
}

// Tail returns the last member of the chain.
func (s *ShardView) Tail() Holder { return s.Replica(len(s.Followers)) }

// SlotView is the incarnation of a slot that may speak, and the clock from which it may.
type SlotView struct {
	Incarnation perdure.Incarnation `json:"incarnation"` // 0: never taken; older ones are fenced
	// Decided reports whether the last clock of the older incarnations is decided: every shard ticks what it has staged
	// of clocks < Start and drops the rest. Until then the slot's next process must wait.
	Decided bool          `json:"decided"`
	Start   perdure.Clock `json:"start"`
	// Settled reports whether every shard has executed the decision, so that the slot's process may speak.
	Settled bool `json:"settled"`
	// Source is 1 + the slot whose process saves the shared state of clock Start for this slot's process; 0: none.
	Source int32 `json:"source,omitempty"`
	// Interval is the slot's membership interval.
	Interval
	// Left reports whether the slot has finished its last clock, and no rollback can return to before it: its process
	// may end.
	Left bool `json:"left,omitempty"`
}

// Counts is the progress of one slot's updates on one shard: how many of
// its clocks are staged, ticked and applied. Applied ≤ Ticked ≤ Staged.
type Counts struct {
	Staged  perdure.Clock `json:"staged"`
	Ticked  perdure.Clock `json:"ticked"`
	Applied perdure.Clock `json:"applied"`
	// Seen is the number of clocks that every active slot can see in all reads: ≤ Applied, and less only under vap. It
	// is sent in frames, but not in JSON.
	Seen perdure.Clock `json:"-"`
}

// Intervals returns the membership interval of each slot.
func (v *View) Intervals() []Interval {
	intervals := make([]Interval, len(v.Slots))
	for i := range v.Slots {
		intervals[i] = v.Slots[i].Interval
	}
	return intervals
}

// Rank returns how many slots participate in clock c, and how many of them precede the given one. It depends only on
// the slots' membership intervals. Programs divide the data by it, so that only participating slots get a share.
func (v *View) Rank(slot perdure.Slot, c perdure.Clock) (rank, of int) {
	for i := range v.Slots {
		if !v.Slots[i].Has(c) {
			continue
		}
		if of++; perdure.Slot(i) < slot {
			rank++
		}
	}
	return rank, of
}

// StartClock returns the clock of a slot at the start of the view's generation.
func (v *View) StartClock(slot perdure.Slot) perdure.Clock {
	return v.Slots[slot].Clamp(v.CutClocks.Of(slot, v.Cut))
}

// MeanClock returns the mean of the clocks of the slots that participate, rounded down.
func (v *View) MeanClock(clock func(slot perdure.Slot) perdure.Clock) perdure.Clock {
	sum, n := perdure.Clock(0), perdure.Clock(0)
	for i := range v.Slots {
		if at := clock(perdure.Slot(i)); !v.Slots[i].Left && at > v.Slots[i].From {
			sum, n = sum+at, n+1
		}
	}
	return sum / max(1, n)
}

// Saved returns the clock below which the newest published checkpoint contains all updates of a slot.
func (v *View) Saved(slot perdure.Slot) perdure.Clock { return v.DurableClocks.Of(slot, v.Durable) }

// EndClock returns the clock at which a slot's work ends, because its membership interval or the job ends; 0: not known
// yet.
func (v *View) EndClock(slot perdure.Slot) perdure.Clock {
	if until := v.Slots[slot].Until; until > 0 && (v.End == 0 || until < v.End) {
		return until
	}
	return v.End
}

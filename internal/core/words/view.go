package words

import (
	"slices"

	"github.com/perdure/perdure"
)

// View is the job's shape as the coordinator recorded it: who holds which
// shard, which process speaks for which slot, and where the job was last
// rolled back to. Views are totally ordered by Revision; a view takes effect
// only once the registry has it.
type View struct {
	Revision   uint64             `json:"revision"`
	Generation perdure.Generation `json:"generation"`
	Cut        perdure.Clock      `json:"cut"` // the clock this generation began at
	End        perdure.Clock      `json:"end"` // no update of a clock ≥ End is ever applied; 0: no end yet
	// Tentative says that End may still be taken back: every slot stops there, and one of them evaluates the model.
	// Shards ignore such an end.
	Tentative bool `json:"tentative,omitempty"`
	// no slot ends a clock until it is decided where the job ends, or who takes part
	Pause   bool          `json:"pause"`
	Durable perdure.Clock `json:"durable"` // the newest published checkpoint's cut
	// Named is a cut beside those that the strategy's interval gives, at a clock that
	// nobody had passed when it was named; 0: none was yet. It is only of interest while
	// it is later than Durable.
	Named  perdure.Clock       `json:"named,omitempty"`
	Done   bool                `json:"done"`
	Tables []perdure.TableSpec `json:"tables"`
	Shards []ShardView         `json:"shards"`
	Slots  []SlotView          `json:"slots"`
	// Roster counts the changes of the slots' spans.
	Roster uint64 `json:"roster,omitempty"`
}

// Clone returns a copy whose lists of tables, shards and slots are its own. What a
// shard's entry refers to (followers, base) is shared: it is never changed in
// place.
func (v *View) Clone() View {
	w := *v
	w.Tables, w.Shards, w.Slots = slices.Clone(v.Tables), slices.Clone(v.Shards), slices.Clone(v.Slots)
	return w
}

// Latest returns the highest count of clocks that any slot of the job may say it has.
func (v *View) Latest(job *perdure.JobSpec) perdure.Clock {
	if end := max(v.End, job.Clocks); end > 0 {
		return end
	}
	return perdure.MaxClock
}

// Holder is a server that holds a replica of a shard.
type Holder struct {
	Server      int                 `json:"server"`      // -1: nobody
	Incarnation perdure.Incarnation `json:"incarnation"` // of the server's process
	Addr        string              `json:"addr"`
	// Since is the revision of the view that made it a holder. What a server holds
	// of a shard since another revision it must forget: it has missed something.
	Since uint64 `json:"since,omitempty"`
}

// ShardView says who holds a shard: its chain. The embedded Holder is the head,
// which takes updates in; one whose Server is -1 is nobody, and the shard has no
// holder.
type ShardView struct {
	Holder
	Epoch perdure.Epoch `json:"epoch"`
	// Followers are the rest of the chain, in its order; the last is the tail. An
	// update is committed once all of them have it.
	Followers []Holder `json:"followers,omitempty"`
	// Joining copies the shard from the tail, and is no member of the chain yet.
	Joining *Holder `json:"joining,omitempty"`

	// Base is the applied vector that the shard starts this epoch with, where the
	// strategy lets rows be lost: for each slot, what it was acknowledged. Nil
	// until all live slots have told it; always nil under other strategies.
	Base []perdure.Clock `json:"base,omitempty"`
	// Lost says that this epoch began with the shard's rows lost, or, under a chain
	// that acknowledges early, with what its former head alone had.
	Lost bool `json:"lost,omitempty"`
	// Restored says that this epoch began with the rows of the cut Durable, and that
	// workers send again what came after.
	Restored bool `json:"restored,omitempty"`
	// Saved are the files of the running checkpoint that this epoch began with, oldest first,
	// where each row is saved by itself; nil: it began with the initial rows.
	Saved []SavedFile `json:"saved,omitempty"`
	// Yields says that the head, which acknowledges early, is to be dropped: it takes
	// nothing more in, and says when the next member has all that it has.
	Yields bool `json:"yields,omitempty"`
}

// SavedFile is a file of rows that are saved, in the job's folder of checkpoints.
type SavedFile struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
	CRC   uint32 `json:"crc"`
}

// RestoredAt returns the clock of the cut with whose rows a shard begins where nobody
// has any: the generation's or, if only the shard was lost, the newest.
func (v *View) RestoredAt(shard perdure.ShardID) perdure.Clock {
	if v.Shards[shard].Restored {
		return v.Durable
	}
	return v.Cut
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

// Members returns the chain, in memory of its own.
func (s *ShardView) Members() []Holder {
	chain := make([]Holder, 0, s.Replicas()+1)
	for i := range s.Replicas() {
		chain = append(chain, s.Replica(i))
	}
	return chain
}

// Tail returns the last member of the chain.
func (s *ShardView) Tail() Holder { return s.Replica(len(s.Followers)) }

// SlotView says which incarnation of a slot may speak, and from which clock.
type SlotView struct {
	Incarnation perdure.Incarnation `json:"incarnation"` // 0: never taken; older ones are fenced
	// Decided says that the fate of the older incarnations' last clock is decided:
	// every shard ticks what it has staged of clocks < Start and drops the rest.
	// Until then the slot's next process must wait.
	Decided bool          `json:"decided"`
	Start   perdure.Clock `json:"start"`
	// Settled says that every shard has carried the decision out: the slot's
	// process may speak.
	Settled bool `json:"settled"`
	// Span is when the slot takes part.
	Span
	// Left says that the slot has done its last clock, and that no roll-back goes
	// back before it: its process may end.
	Left bool `json:"left,omitempty"`
}

// Counts says how far one slot's updates have come on one shard: how many of
// its clocks are staged, ticked and applied. Applied ≤ Ticked ≤ Staged.
type Counts struct {
	Staged  perdure.Clock `json:"staged"`
	Ticked  perdure.Clock `json:"ticked"`
	Applied perdure.Clock `json:"applied"`
	// Seen, on the wire only, says how many of them every active slot can see in
	// whatever it reads: ≤ Applied, and less only under vap.
	Seen perdure.Clock `json:"-"`
}

// Spans returns when each slot takes part.
func (v *View) Spans() []Span {
	spans := make([]Span, len(v.Slots))
	for i := range v.Slots {
		spans[i] = v.Slots[i].Span
	}
	return spans
}

// Share returns how many slots take part in clock c, and how many of them come before
// the given one: a pure function of the slots' spans. Data that is shared out by it is
// shared out among those who are there.
func (v *View) Share(slot perdure.Slot, c perdure.Clock) (rank, of int) {
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

// Begin returns the clock at which a slot stood when the view's generation began.
func (v *View) Begin(slot perdure.Slot) perdure.Clock { return v.Slots[slot].Clamp(v.Cut) }

// EndOf returns the clock at which a slot's work ends, with its own span or with the
// job; 0: not known yet.
func (v *View) EndOf(slot perdure.Slot) perdure.Clock {
	if until := v.Slots[slot].Until; until > 0 && (v.End == 0 || until < v.End) {
		return until
	}
	return v.End
}

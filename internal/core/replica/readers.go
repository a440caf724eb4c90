package replica

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/wire"
)

// Reader is a connection to a shard, from a slot's process or from an observer. It never changes. Readers are compared
// by address.
type Reader struct {
	Slot        perdure.Slot // NoSlot: an observer
	Incarnation perdure.Incarnation
	Conn        any // for the shell's use
}

// Read is a request for rows.
type Read struct {
	Reader    *Reader
	Request   uint64        // its number on its connection
	MinClock  perdure.Clock // the minimum MinClock of the rows
	Rows      wire.Rows
	Scan      bool             // ask which rows a sparse table stores, not for their values
	Subscribe bool             // push later changes of the rows
	Encoding  perdure.Encoding // of the values in the answer
	Since     int64            // when it began to wait, in the shell's time; 0: it did not wait
}

// Open is a reader's first request. It is answered once all entries received before it are applied, because a reader
// that moves here from another replica must not find less than it has seen there.
type Open struct {
	Reader      *Reader
	Writes      bool          // it only sends updates here
	EndedClocks perdure.Clock // how many clocks its slot has ended
	Pos         uint64        // position of the log's last entry when it arrived
}

// readers tracks the readers, their waiting requests, and the slots whose counts have changed since they were sent.
type readers struct {
	slots      []slotState
	waiting    []Read
	tried      allowance // the allowance of the last scan of waiting, or untried
	opening    []Open
	unsentAcks []perdure.Slot // slots whose counts may have to be sent, each once
	large      bool           // a large update was applied since the last acknowledgements
}

// allowance is everything that decides whether a read can be answered now.
type allowance struct {
	minClock perdure.Clock
	tables   int
	holds    bool // the shard withholds its rows
}

// untried is an allowance that no state has.
var untried = allowance{minClock: -1}

// noteWaiting records that a read must wait under an allowance. It may differ from that of the last scan: the shard may
// have started to withhold its rows since then, and may soon stop.
func (q *readers) noteWaiting(now allowance) {
	if now != q.tried {
		q.tried = untried
	}
}

// slotState is the state of one slot.
type slotState struct {
	reader  *Reader             // receives the slot's acknowledgements; nil: none
	dirty   bool                // its counts have changed since they were last sent
	listed  bool                // it is in readers.unsentAcks
	staged  bool                // its staged count has changed, and its worker waits for that
	prompt  perdure.Clock       // its worker waits until the clocks below this are applied
	speaker perdure.Incarnation // the newest process that the view named in this life, or that opened the shard
	opened  perdure.Incarnation // the newest process that opened the shard to read
}

// Waiting returns the number of waiting reads.
func (q *readers) Waiting() int { return len(q.waiting) }

// KnowsSlot reports whether the shard knows the slot of a connection. A slot that has just joined the job may be ahead
// of the log.
func (q *readers) KnowsSlot(c *Reader) bool { return int(c.Slot) < len(q.slots) }

// IsCurrent reports whether a connection is the one on which its slot reads.
func (q *readers) IsCurrent(c *Reader) bool {
	return c.Slot >= 0 && q.KnowsSlot(c) && q.slots[c.Slot].reader == c
}

// drop drops the waiting reads that which selects.
func (q *readers) drop(fx *Effects, which func(*Read) bool) {
	q.waiting = slices.DeleteFunc(q.waiting, func(rd Read) bool {
		if !which(&rd) {
			return false
		}
		fx.Dropped = append(fx.Dropped, rd)
		return true
	})
}

// renew starts a new epoch, in which readers must open the shard again. It is no longer known which rows processes have
// cached: they may be of lives that this server did not learn of.
func (q *readers) renew(fx *Effects) {
	q.opening = nil
	q.drop(fx, func(*Read) bool { return true })
	for i := range q.slots {
		s := &q.slots[i]
		s.reader, s.prompt, s.speaker = nil, 0, 0
	}
}

// grow adds slots until there are `slots` of them.
func (q *readers) grow(slots int) {
	q.slots = append(q.slots, make([]slotState, max(0, slots-len(q.slots)))...)
}

// changed records that the counts of a slot differ from those last sent to it.
func (q *readers) changed(slot perdure.Slot) {
	q.slots[slot].dirty = true
	q.list(slot)
}

// list lists a slot that may have to be sent its counts.
func (q *readers) list(slot perdure.Slot) {
	if s := &q.slots[slot]; s.reader != nil && s.dirty && !s.listed {
		s.listed = true
		q.unsentAcks = append(q.unsentAcks, slot)
	}
}

// pendingAcks returns the slots with a pending acknowledgement, in order. Slots without a reader are listed again when
// they get one.
func (q *readers) pendingAcks() []perdure.Slot {
	q.unsentAcks = slices.DeleteFunc(q.unsentAcks, func(slot perdure.Slot) bool {
		s := &q.slots[slot]
		s.listed = s.reader != nil && s.dirty
		return !s.listed
	})
	slices.Sort(q.unsentAcks)
	return q.unsentAcks
}

// TakeAck takes the pending acknowledgement of a connection, and reports whether there was one.
func (q *readers) TakeAck(c *Reader) (owed bool) {
	if !q.IsCurrent(c) || !q.slots[c.Slot].dirty {
		return false
	}
	s := &q.slots[c.Slot]
	s.dirty, s.staged = false, false
	return true
}

// acknowledge sends counts to the slots whose counts have changed. It sends them immediately if a worker waits for them
// or holds a large update until then; otherwise with the next answer, or soon.
func (q *readers) acknowledge(in *consistency.Sequencer, seen bool, fx *Effects) {
	now := q.large || seen
	q.large = false
	for _, slot := range q.pendingAcks() {
		s := &q.slots[slot]
		prompt := now || s.prompt != 0
		if !prompt && !s.staged {
			fx.AcksPending = true
			continue
		}
		ack := Ack{Reader: s.reader, Prompt: prompt}
		if !prompt {
			ack.Staged = in.Counts(slot).Staged
		}
		s.dirty, s.staged = false, false
		fx.Acks = append(fx.Acks, ack)
		if in.Applied()[slot] >= s.prompt {
			s.prompt = 0
		}
	}
}

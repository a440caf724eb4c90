package replica

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/wire"
)

// Reader is a connection to a shard, of a slot's process or of an observer. It never changes.
// Two connections are two Readers, by their addresses.
type Reader struct {
	Slot        perdure.Slot // NoSlot: an observer's
	Incarnation perdure.Incarnation
	Conn        any // the shell's own
}

// Read is a request for rows.
type Read struct {
	Reader    *Reader
	Request   uint64        // its number on its connection
	Need      perdure.Clock // the MinClock that the rows must have, at least
	Rows      wire.Rows
	Scan      bool  // which rows a sparse table stores is asked for, and not what they are
	Subscribe bool  // what becomes of the rows is wanted too
	Since     int64 // when it began to wait, as the shell counts time; 0: it did not
}

// Open is a reader that begins. It is answered once all is applied that was received before:
// who comes from another replica must not find less here.
type Open struct {
	Reader *Reader
	Writes bool          // it only sends updates here
	Ended  perdure.Clock // how many clocks its slot has ended
	Pos    uint64        // of the log's last entry then
}

// readers are who reads, what of theirs waits, and what their slots have not been told.
type readers struct {
	seats   []seat
	waiting []Read
	tried   allowance // with which all reads that wait were looked at, or untried
	opening []Open
	owed    []perdure.Slot // that may have to be told their counts, each once
	large   bool           // a large update was applied since the last acknowledgements
}

// allowance is all that decides whether a read may be answered now.
type allowance struct {
	minClock perdure.Clock
	tables   int
	holds    bool // the shard does not show its rows yet
}

// untried is the allowance of no state.
var untried = allowance{minClock: -1}

// waits notes that a read has to wait because of an allowance, which need not be the one with which the others were
// looked at last: the shard may have begun to hold its rows back since, and may soon end that.
func (q *readers) waits(now allowance) {
	if now != q.tried {
		q.tried = untried
	}
}

// seat is a slot.
type seat struct {
	reader *Reader             // where its acknowledgements go; nil: nowhere
	dirty  bool                // its counts have changed since they were acknowledged
	listed bool                // it is among readers.owed
	staged bool                // likewise what is staged, and its worker waits for that
	prompt perdure.Clock       // it waits until its updates of clocks below this are applied
	spoke  perdure.Incarnation // the newest process of which the view told in this life, or that opened the shard
	opened perdure.Incarnation // the newest process that opened it to read
}

// Waiting returns how many reads wait.
func (q *readers) Waiting() int { return len(q.waiting) }

// Seated reports whether the shard knows the slot of a connection already: one that
// has just joined the job may be ahead of the log.
func (q *readers) Seated(c *Reader) bool { return int(c.Slot) < len(q.seats) }

// Serves reports whether a connection is the one on which its slot reads.
func (q *readers) Serves(c *Reader) bool {
	return c.Slot >= 0 && q.Seated(c) && q.seats[c.Slot].reader == c
}

// drop forgets reads that wait.
func (q *readers) drop(fx *Effects, which func(*Read) bool) {
	q.waiting = slices.DeleteFunc(q.waiting, func(rd Read) bool {
		if !which(&rd) {
			return false
		}
		fx.Dropped = append(fx.Dropped, rd)
		return true
	})
}

// renew begins another epoch: who reads opens the shard anew. Of processes it is not known
// any more what they have: rows of lives that this server did not hear of, perhaps.
func (q *readers) renew(fx *Effects) {
	q.opening = nil
	q.drop(fx, func(*Read) bool { return true })
	for i := range q.seats {
		s := &q.seats[i]
		s.reader, s.prompt, s.spoke = nil, 0, 0
	}
}

// grow makes room for a number of slots.
func (q *readers) grow(slots int) {
	q.seats = append(q.seats, make([]seat, max(0, slots-len(q.seats)))...)
}

// changed notes that the counts of a slot differ from those last sent to it.
func (q *readers) changed(slot perdure.Slot) {
	q.seats[slot].dirty = true
	q.list(slot)
}

// list lists a slot that may have to be told its counts.
func (q *readers) list(slot perdure.Slot) {
	if s := &q.seats[slot]; s.reader != nil && s.dirty && !s.listed {
		s.listed = true
		q.owed = append(q.owed, slot)
	}
}

// owes returns the slots that are owed an acknowledgement, in order. Slots without a reader are listed again when they
// have one.
func (q *readers) owes() []perdure.Slot {
	q.owed = slices.DeleteFunc(q.owed, func(slot perdure.Slot) bool {
		s := &q.seats[slot]
		s.listed = s.reader != nil && s.dirty
		return !s.listed
	})
	slices.Sort(q.owed)
	return q.owed
}

// TakeAck takes the acknowledgement that a connection is owed, and reports whether it is.
func (q *readers) TakeAck(c *Reader) (owed bool) {
	if !q.Serves(c) || !q.seats[c.Slot].dirty {
		return false
	}
	s := &q.seats[c.Slot]
	s.dirty, s.staged = false, false
	return true
}

// acknowledge has the slots told whose counts have changed: at once where a worker waits for
// it, or keeps a large update until then; else with the next answer or soon.
func (q *readers) acknowledge(in *consistency.Intake, seen bool, fx *Effects) {
	now := q.large || seen
	q.large = false
	for _, slot := range q.owes() {
		s := &q.seats[slot]
		prompt := now || s.prompt != 0
		if !prompt && !s.staged {
			fx.Later = true
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

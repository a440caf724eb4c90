package replica

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
)

// The protocol tests run all five models on a system of slots and shards without network or goroutines. Each shard is a
// Replica, each reader has a reads.Reader, and connections are first in, first out. Every possible next event is a
// move. The value of a row is the set of updates in it, so reads are checked against the definitions themselves, and
// labels are checked against values.
const (
	mostSlots  = 4
	mostShards = 2
	mostRows   = 4
	mostClocks = 12
)

// updateSet is the value of a row: a set of updates (slot, clock).
type updateSet uint64

func one(slot int, clock perdure.Clock) updateSet {
	return 1 << (slot*mostClocks + int(clock))
}

// String lists the clocks of each slot: "0:0,1 2:0".
func (c updateSet) String() string {
	var slots []string
	for slot := range mostSlots {
		var clocks []string
		for clock := range perdure.Clock(mostClocks) {
			if c&one(slot, clock) != 0 {
				clocks = append(clocks, fmt.Sprint(clock))
			}
		}
		if len(clocks) > 0 {
			slots = append(slots, fmt.Sprintf("%d:%s", slot, strings.Join(clocks, ",")))
		}
	}
	if len(slots) == 0 {
		return "nothing"
	}
	return strings.Join(slots, " ")
}

// rowMask is a set of a few rows.
type rowMask uint8

func (m rowMask) has(row int) bool { return m>>row&1 != 0 }

// each yields the rows in order.
func (m rowMask) each(yield func(row int) bool) {
	for ; m != 0; m &= m - 1 {
		if !yield(bits.TrailingZeros8(uint8(m))) {
			return
		}
	}
}

func (m rowMask) ids() (ids []perdure.RowID) {
	for row := range m.each {
		ids = append(ids, perdure.RowID(row))
	}
	return ids
}

// plan describes the actions of a system, and the faults that may happen to it. It is plain data.
type plan struct {
	model               perdure.Consistency
	slots, shards, rows int
	ends                [mostSlots]perdure.Clock       // a slot's clocks
	reads               [mostSlots][mostClocks]rowMask // the rows that a slot reads in a clock, in order
	writes              [mostSlots][mostClocks]rowMask // the rows that its update changes
	sparse              bool
	oneWay              bool // not every slot reads in every clock
	piece               int  // number of rows pushed in one frame
	spare               int  // bytes left over then: the last rows of a round carry its end

	chances
	off   off
	worst int64 // the most existing updates that any read has lacked so far
}

// chances limits how often each of these events may happen in one course, a sequence of moves from the initial state.
// 0: never.
type chances struct {
	drops  int // a reader drops the subscription to a row
	breaks int // a connection breaks
	aheads int // a row is prefetched
	deaths int // a slot's process dies and is not replaced
}

// off disables safety mechanisms, for negative controls.
type off struct {
	mutation.Set      // those of the intake, a shard's pushes, and a sender's bound
	order        bool // a round's last frame precedes its rows
	note         bool // a reader reports drops to the shard, and removes the rows
	again        bool // a reader drops a row that it has subscribed to again since
	subs         bool // a reader treats an answer requested before a drop as subscribed
	connection   bool // a shard accepts late messages of a replaced connection
	rest         bool // changes that become due during a round are forgotten at its end
	advance      bool // a round that starts late is taken to contain later changes
	saw          bool // a reader confirms a round when it starts
	answered     bool // a shard forgets that a slot without cached rows now has some
}

// system is one complete state of all shards, readers and connections. Its fields are values or are cloned, so that
// several moves can be tried from the same state.
type system struct {
	*plan
	left    chances
	shards  [mostShards]shardSide
	readers [mostSlots]reader
	ups     [mostSlots][mostShards][]frame // in transit to the shard
	late    [mostSlots][mostShards][]frame // in transit to the shard, on a connection that was replaced
	downs   [mostSlots][mostShards][]frame // in transit to the reader
	trace   *strings.Builder               // for scripts
}

func newSystem(p *plan) *system {
	s := &system{plan: p, left: p.chances}
	for i := range p.shards {
		s.shards[i] = newShardSide(p, i)
	}
	for i := range p.slots {
		s.readers[i] = newReader(p, i)
		for shard := range p.shards {
			s.open(i, shard)
			for len(s.ups[i][shard]) > 0 {
				_ = s.toShard(i, shard)
			}
			for len(s.downs[i][shard]) > 0 {
				_ = s.toReader(i, shard)
			}
		}
	}
	return s
}

// after returns the system that results from a move. s is unchanged: the two share the shards and readers that the move
// does not affect.
func (s *system) after(m move) (n *system, err error) {
	n = new(system)
	*n = *s
	for i := range s.slots {
		for j := range s.plan.shards {
			n.ups[i][j], n.late[i][j] = slices.Clone(s.ups[i][j]), slices.Clone(s.late[i][j])
			n.downs[i][j] = slices.Clone(s.downs[i][j])
		}
	}
	switch m.kind {
	case up, upLate, pushOn:
		n.shards[m.shard] = s.shards[m.shard].clone()
	case dies:
		for i := range s.plan.shards {
			n.shards[i] = s.shards[i].clone()
		}
	case loseLate:
	default:
		n.readers[m.slot].side = cloneOf(s.readers[m.slot].side)
	}
	return n, n.do(m)
}

func (s *system) say(format string, args ...any) {
	if s.trace != nil {
		fmt.Fprintf(s.trace, format+"\n", args...)
	}
}

// valueOf returns the value of a row whose shard has applied the given number of clocks of each slot.
func (p *plan) valueOf(row int, applied vector) (c updateSet) {
	for slot := range p.slots {
		for clock := range applied[slot] {
			if p.writes[slot][clock].has(row) {
				c |= one(slot, clock)
			}
		}
	}
	return c
}

// vector is an applied vector.
type vector [mostSlots]perdure.Clock

func vectorOf(applied []perdure.Clock) (v vector) {
	copy(v[:], applied)
	return v
}

// label describes what rows contain.
type label struct {
	seq     uint64
	least   perdure.Clock
	applied vector
}

// frameKind is the purpose of a frame.
type frameKind int

const (
	openFrame   frameKind = iota // up: a connection starts; down: the slot's counts
	getFrame                     // up: requests a row; down: the answer
	updateFrame                  // up
	tickFrame                    // up
	dropFrame                    // up: rows that no longer need to be pushed
	sawFrame                     // up: the state that the cached rows have reached
	ackFrame                     // down: the slot's counts
	pushFrame                    // down: rows, or the end of a round
)

// frame is one message. Fields that do not belong to its kind are zero.
type frame struct {
	kind       frameKind
	connection int
	request    int
	row        int
	subscribe  bool
	clock      perdure.Clock
	rows       rowMask
	seq        uint64
	label      label
	values     [mostRows]updateSet
	last       bool
	counts     protocol.Counts
}

func (f *frame) String() string {
	switch f.kind {
	case openFrame:
		return fmt.Sprintf("connection %d, applied %d", f.connection, f.counts.Applied)
	case getFrame:
		return fmt.Sprintf("row %d", f.row)
	case updateFrame:
		return fmt.Sprintf("update of clock %d", f.clock)
	case tickFrame:
		return fmt.Sprintf("tick of clock %d", f.clock)
	case dropFrame:
		return fmt.Sprintf("drop %v", f.rows.ids())
	case sawFrame:
		return fmt.Sprintf("seen state %d", f.seq)
	case ackFrame:
		return fmt.Sprintf("staged %d applied %d seen %d", f.counts.Staged, f.counts.Applied, f.counts.Seen)
	}
	end := ""
	if f.last {
		end = fmt.Sprintf(", end of the round: MinClock %d", f.label.least)
	}
	return fmt.Sprintf("push of %v, state %d%s", f.rows.ids(), f.label.seq, end)
}

// keyOf encodes a complete state.
type keyOf []byte

func (k *keyOf) num(ns ...int) {
	for _, n := range ns {
		*k = strconv.AppendInt(append(*k, ' '), int64(n), 36)
	}
}

func (k *keyOf) flags(fs ...bool) {
	n := 1
	for _, f := range fs {
		n <<= 1
		if f {
			n |= 1
		}
	}
	k.num(n)
}

func (k *keyOf) label(l *label) {
	k.num(int(l.seq), int(l.least))
	for _, c := range l.applied {
		*k = append(*k, byte('a'+c))
	}
}

func (k *keyOf) frames(fs []frame) {
	k.num(len(fs))
	for i := range fs {
		f := &fs[i]
		k.num(int(f.kind), f.connection, f.request, f.row, int(f.clock), int(f.rows), int(f.seq))
		k.flags(f.subscribe, f.last)
		k.num(int(f.counts.Staged), int(f.counts.Applied), int(f.counts.Seen))
		k.label(&f.label)
		for row := range f.rows.each {
			k.num(int(f.values[row]))
		}
		if f.kind == getFrame {
			k.num(int(f.values[f.row]))
		}
	}
}

// key encodes the complete state. It is written by hand because most of the explorer's time is spent here.
func (s *system) key() string {
	k := make(keyOf, 0, 1024)
	k.num(s.left.drops, s.left.breaks, s.left.aheads, s.left.deaths)
	for i := range s.plan.shards {
		s.shards[i].key(&k, s.plan)
	}
	for i := range s.slots {
		s.readers[i].key(&k, s.plan)
		for j := range s.plan.shards {
			k.frames(s.ups[i][j])
			k.frames(s.late[i][j])
			k.frames(s.downs[i][j])
		}
	}
	return string(k)
}

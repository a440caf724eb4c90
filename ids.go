package perdure

import "math"

// RowID numbers a row within its table, from 0.
type RowID uint64

// TableID numbers a table within its job, in order of creation, from 0.
type TableID uint32

// ShardID numbers a shard within its job, from 0. Shard i of a job holds part i
// of every table's rows, but for whole tables: each is on one shard.
type ShardID int32

// Slot numbers a worker's place in the job, from 0.
type Slot int32

// NoSlot is no particular slot: where a worker asks for one, any that is free; of
// a client that only reads, none, for it owns no clock and nobody waits for it.
const NoSlot Slot = -1

// SlotZero asks for slot 0 where 0, as the zero value, stands for any slot: in worker.Config.
const SlotZero Slot = math.MinInt32

// Exactly is what asks for a slot and no other, in worker.Config.
func (s Slot) Exactly() Slot {
	if s == 0 {
		return SlotZero
	}
	return s
}

// Asked is the slot that a worker.Config asks for; NoSlot: any that is free.
func (s Slot) Asked() Slot {
	switch s {
	case 0:
		return NoSlot
	case SlotZero:
		return 0
	}
	return s
}

// Clock counts a slot's finished iterations, from 0. A worker "at clock c" has
// finished c iterations and works on iteration number c.
type Clock int64

// Epoch numbers the views of one shard: every change of the shard's holder has
// a higher one, and messages of older epochs are refused.
type Epoch uint64

// Generation counts the courses of training: 1 and the roll-backs of the whole job. Messages of older generations
// are refused, so that nothing of an abandoned course of training can reach
// the present one.
type Generation uint64

// Incarnation counts the processes that have held a slot (or a server's place),
// from 1. Once a newer incarnation is fenced, older ones are refused.
type Incarnation uint32

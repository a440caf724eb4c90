package perdure

import "math"

// RowID numbers a row within its table, from 0.
type RowID uint64

// TableID numbers a table within its job, in order of creation, from 0.
type TableID uint32

// ShardID numbers a shard within its job, from 0. Shard i holds part i of the rows of every table, except that a whole
// table is on one shard.
type ShardID int32

// Slot is the numbered position of a worker in the job, from 0.
type Slot int32

// NoSlot stands for no particular slot. A worker that asks for NoSlot gets any free slot. A client that only reads has
// NoSlot: it owns no clock, and no process waits for it.
const NoSlot Slot = -1

// SlotZero asks for slot 0 in worker.Config, where the zero value asks for any free slot.
const SlotZero Slot = math.MinInt32

// Exactly returns the value for worker.Config that asks for slot s and no other.
func (s Slot) Exactly() Slot {
	if s == 0 {
		return SlotZero
	}
	return s
}

// Requested returns the slot that a worker.Config asks for, or NoSlot for any free slot.
func (s Slot) Requested() Slot {
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

// Epoch numbers the configurations of one shard: every change of its chain has a higher epoch. Messages with an older
// epoch are rejected.
type Epoch uint64

// Generation numbers the rollbacks of the whole job, starting from 1. Messages with an older generation are rejected,
// so no state from before a rollback can reach the present generation.
type Generation uint64

// Incarnation counts the processes that have held a slot or a server index, from 1. Once a newer incarnation has
// taken over, messages from older ones are rejected.
type Incarnation uint32

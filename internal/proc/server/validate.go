package server

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// errStaleConn ends the connection of a process that has received its slot again with a newer incarnation. The process
// may reconnect with that incarnation.
var errStaleConn = errors.New("server: the connection belongs to an earlier incarnation of the slot than its frames do")

// checkFrame rejects frames that the peer may not send: kinds that its role may not send, frames of another slot, and
// clocks outside of the job.
func (c *conn) checkFrame(f *wire.Frame, job *perdure.JobSpec) error {
	switch err := wire.CheckToServer(c.role, f.Kind); {
	case err != nil:
		return err
	case c.server, f.Kind == wire.KindEcho:
		return nil
	case c.Slot < 0: // an observer has no slot
	case f.Slot != c.Slot && f.Kind != wire.KindLoad: // a slot may have saved a state for others as well
		return fmt.Errorf("a frame of kind %d names slot %d on a connection of slot %d", f.Kind, f.Slot,
			c.Slot)
	case f.Incarnation != c.Incarnation:
		return errStaleConn
	}
	switch f.Kind {
	case wire.KindOpen, wire.KindUpdate, wire.KindTick, wire.KindSync, wire.KindLoad:
		var v protocol.View // without an end in the view, which is never later than the job's
		if latest := v.ClockLimit(job); f.Clock < 0 || f.Until() < 0 || f.Clock > latest {
			return fmt.Errorf("invalid clock %d in a frame of kind %d: the job's clocks are 0 to %d", f.Clock, f.Kind,
				latest)
		}
	}
	return nil
}

// rejectNonPredecessor rejects a server that claims to be the predecessor of a shard and is not.
func (c *conn) rejectNonPredecessor(shard perdure.ShardID) {
	why := fmt.Sprintf("server %d is not the predecessor of shard %d on this server", c.index, shard)
	c.log.Warn("closed a connection", "peer", c.tc.Peer(), "err", why)
	_ = transport.Refuse(c.tc, wire.Refusal{Reason: why, Temporary: true}) // the connection is closed anyway
	c.closeAsync()
}

// slotCount is the number of slots that a shard's log entries may belong to. It is safe for concurrent use.
type slotCount struct{ n atomic.Int32 }

// grow raises the count to n.
func (c *slotCount) grow(n int) {
	for old := c.n.Load(); old < int32(n) && !c.n.CompareAndSwap(old, int32(n)); old = c.n.Load() {
	}
}

// growForMembership raises the count for a membership list, in a job that started with min slots.
func (c *slotCount) growForMembership(f *wire.Frame, least int) error {
	var intervals []protocol.Interval
	if err := wire.ParseControl(f, &intervals); err != nil {
		return err
	}
	if n := len(intervals); n < least || n > perdure.MaxSlots {
		return fmt.Errorf("%w: the membership list has %d slots, but the job has at least %d", wire.ErrPayload, n,
			least)
	}
	c.grow(len(intervals))
	return nil
}

package server

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/admission"
	"github.com/perdure/perdure/internal/proc/transport"
)

// errRenamed ends the connection of a process that was given its slot anew since it came
// here: it may come again, and say so.
var errRenamed = errors.New("server: the connection is of an earlier incarnation of its slot than what comes on it")

// speaks refuses what a peer may not say on its connection: what is not its role's, whatever shard it is about; in
// another slot's name; or of clocks that nobody can have come to.
func (c *conn) speaks(f *wire.Frame, job *perdure.JobSpec) error {
	switch err := admission.ToServer(c.role, f.Kind); {
	case err != nil:
		return err
	case c.server, f.Kind == wire.KindEcho:
		return nil
	case c.Slot < 0: // it speaks for nobody
	case f.Slot != c.Slot:
		return fmt.Errorf("a frame of kind %d in the name of slot %d, on a connection of slot %d", f.Kind, f.Slot,
			c.Slot)
	case f.Incarnation != c.Incarnation:
		return errRenamed
	}
	switch f.Kind {
	case wire.KindOpen, wire.KindUpdate, wire.KindTick, wire.KindSync, wire.KindLoad:
		var v words.View // of no end that was named: it is never later than the job's
		if latest := v.Latest(job); f.Clock < 0 || f.Until() < 0 || f.Clock > latest {
			return fmt.Errorf("a frame of kind %d of clock %d; the job's clocks are 0 to %d", f.Kind, f.Clock, latest)
		}
	}
	return nil
}

// strange turns away a server that says it is the predecessor of a shard, and is not.
func (c *conn) strange(shard perdure.ShardID) {
	why := fmt.Sprintf("server:%d is not what shard %d follows here", c.index, shard)
	c.log.Warn("closed a connection", "peer", c.tc.Peer(), "err", why)
	_ = transport.Refuse(c.tc, wire.Refusal{Reason: why, Again: true}) // it is being closed anyway
	c.end()
}

// slotCount is of how many slots entries of a shard's log can be. It is safe for concurrent use.
type slotCount struct{ n atomic.Int32 }

// grow lets entries come of slots below a number.
func (c *slotCount) grow(n int) {
	for old := c.n.Load(); old < int32(n) && !c.n.CompareAndSwap(old, int32(n)); old = c.n.Load() {
	}
}

// expect lets entries of a roster's slots come, in a job that began with some.
func (c *slotCount) expect(f *wire.Frame, least int) error {
	var spans []words.Span
	if err := wire.ParseControl(f, &spans); err != nil {
		return err
	}
	if n := len(spans); n < least || n > perdure.MaxSlots {
		return fmt.Errorf("%w: a roster of %d slots in a job of %d", wire.ErrPayload, n, least)
	}
	c.grow(len(spans))
	return nil
}

package server

import (
	"errors"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// errRenamed ends the connection of a process that was given its slot anew since it came
// here: it may come again, and say so.
var errRenamed = errors.New("server: the connection is of an earlier incarnation of its slot than what comes on it")

// speaks refuses what a worker or an observer may not say on its connection: in another
// slot's name, or of clocks that nobody can have come to.
func (c *conn) speaks(f *wire.Frame, job *perdure.JobSpec) error {
	switch {
	case c.server, f.Kind == wire.KindEcho:
		return nil
	case c.Slot < 0 && f.Kind == wire.KindLoad:
		return fmt.Errorf("an observer has no saved state")
	case c.Slot < 0: // what else it may not say those say who take it
	case f.Slot != c.Slot:
		return fmt.Errorf("a frame of kind %d in the name of slot %d, on a connection of slot %d", f.Kind, f.Slot,
			c.Slot)
	case f.Incarnation != c.Incarnation:
		return errRenamed
	}
	switch f.Kind {
	case wire.KindOpen, wire.KindUpdate, wire.KindTick, wire.KindSync, wire.KindLoad:
		var v perdure.View // of no end that was named: it is never later than the job's
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
	go c.tc.Close()                                                    // it may take a moment
}

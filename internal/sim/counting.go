package sim

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// Counts are the numbers of events that tests require.
type Counts struct {
	Merged int64 // sent update frames that cover several clocks
	Taken  int64 // job records saved while other servers had taken over from a server with a fixed index
	// Job records saved with a checkpoint in which the slots have different clocks, and those in which shards, or the
	// job, have restarted from such a checkpoint.
	SlotCuts, SlotRestarts int64
}

// Counts returns the numbers so far.
func (c *Cluster) Counts() Counts {
	return Counts{c.merged.Load(), c.takeovers.Load(), c.slotCuts.cuts.Load(), c.slotCuts.restarts.Load()}
}

// Add adds other counts.
func (n *Counts) Add(o Counts) {
	n.Merged, n.Taken = n.Merged+o.Merged, n.Taken+o.Taken
	n.SlotCuts, n.SlotRestarts = n.SlotCuts+o.SlotCuts, n.SlotRestarts+o.SlotRestarts
}

// slotCutCounts counts recorded documents with cuts by slot: see Counts.
type slotCutCounts struct{ cuts, restarts atomic.Int64 }

func (n *slotCutCounts) add(v *protocol.View) {
	differ := func(clocks protocol.SlotClocks) bool { return clocks.Least(0) < clocks.Most(0) }
	if differ(v.DurableClocks) {
		n.cuts.Add(1)
	}
	restored := func(s protocol.ShardView) bool { return s.Restored }
	if differ(v.CutClocks) || differ(v.DurableClocks) && slices.ContainsFunc(v.Shards, restored) {
		n.restarts.Add(1)
	}
}

func (c *Cluster) countMerged(f *wire.Frame) {
	if f.Kind == wire.KindUpdate && f.Clocks > 1 {
		c.merged.Add(1)
	}
}

// countingNet counts frames sent over a network; countingLog counts updates appended to a log.
type (
	countingNet struct {
		transport.Network
		c    *Cluster
		slot perdure.Slot
	}
	countingConn struct {
		transport.Conn
		c    *Cluster
		slot perdure.Slot
	}
	countingLog struct {
		updatelog.Log
		c *Cluster
	}
)

func (n countingNet) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	conn, err := n.Network.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return countingConn{conn, n.c, n.slot}, nil
}

func (n countingConn) Send(frames ...wire.Frame) error {
	for i := range frames {
		n.c.countMerged(&frames[i])
	}
	return n.Conn.Send(frames...)
}

func (n countingConn) TrySend(frames ...wire.Frame) error {
	for i := range frames {
		n.c.countMerged(&frames[i])
	}
	return n.Conn.TrySend(frames...)
}

func (n countingConn) Recv(f *wire.Frame) error { return n.received(f, n.Conn.Recv(f)) }

func (n countingConn) RecvInto(f *wire.Frame, place func(f *wire.Frame, n int) []byte) error {
	return n.received(f, n.Conn.RecvInto(f, place))
}

// received reports a shard's acknowledgements.
func (n countingConn) received(f *wire.Frame, err error) error {
	if err == nil && n.c.o.Events != nil && (f.Kind == wire.KindAck || f.Kind == wire.KindOpened) {
		if counts, err := wire.ParseCounts(f.Payload); err == nil {
			n.c.o.Events.Acked(n.slot, f.Shard, counts.Applied)
		}
	}
	return err
}

// openLogFunc opens an update log.
type openLogFunc = func(ctx context.Context, addr string, o updatelog.Options) (updatelog.Log, error)

// countAppends wraps open so that updates appended to the log are counted.
func (c *Cluster) countAppends(open openLogFunc) openLogFunc {
	return func(ctx context.Context, addr string, o updatelog.Options) (updatelog.Log, error) {
		l, err := open(ctx, addr, o)
		return countingLog{l, c}, err
	}
}

func (l countingLog) Append(ctx context.Context, shard int, payload [][]byte,
	done func(updatelog.Position, error),
) error {
	var f wire.Frame
	_, bad := wire.ParseHeader(payload[0], &f)
	if bad == nil {
		l.c.countMerged(&f)
	}
	return l.Log.Append(ctx, shard, payload, func(at updatelog.Position, err error) {
		if bad == nil && err == nil && l.c.o.Events != nil {
			l.c.o.Events.Logged(&f.Header)
		}
		done(at, err)
	})
}

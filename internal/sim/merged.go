package sim

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// Seen returns the number of sent update frames that cover several clocks, and how often a job record was saved while
// other servers had taken over from a server with a fixed index.
func (c *Cluster) Seen() (merged, taken int64) { return c.merged.Load(), c.taken.Load() }

func (c *Cluster) countMerged(f *wire.Frame) {
	if f.Kind == wire.KindUpdate && f.Clocks > 1 {
		c.merged.Add(1)
	}
}

// countedNet counts frames sent over a network; countedLog counts updates appended to a log.
type (
	countedNet struct {
		transport.Network
		c    *Cluster
		slot perdure.Slot
	}
	countedConn struct {
		transport.Conn
		c    *Cluster
		slot perdure.Slot
	}
	countedLog struct {
		updatelog.Log
		c *Cluster
	}
)

func (n countedNet) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	conn, err := n.Network.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return countedConn{conn, n.c, n.slot}, nil
}

func (n countedConn) Send(frames ...wire.Frame) error {
	for i := range frames {
		n.c.countMerged(&frames[i])
	}
	return n.Conn.Send(frames...)
}

func (n countedConn) TrySend(frames ...wire.Frame) error {
	for i := range frames {
		n.c.countMerged(&frames[i])
	}
	return n.Conn.TrySend(frames...)
}

func (n countedConn) Recv(f *wire.Frame) error { return n.received(f, n.Conn.Recv(f)) }

func (n countedConn) RecvInto(f *wire.Frame, place func(f *wire.Frame, n int) []byte) error {
	return n.received(f, n.Conn.RecvInto(f, place))
}

// received reports a shard's acknowledgements.
func (n countedConn) received(f *wire.Frame, err error) error {
	if err == nil && n.c.o.Told != nil && (f.Kind == wire.KindAck || f.Kind == wire.KindOpened) {
		if counts, err := wire.ParseCounts(f.Payload); err == nil {
			n.c.o.Told.Acked(n.slot, f.Shard, counts.Applied)
		}
	}
	return err
}

// opener opens an update log.
type opener = func(ctx context.Context, addr string, o updatelog.Options) (updatelog.Log, error)

// counted wraps open so that updates appended to the log are counted.
func (c *Cluster) counted(open opener) opener {
	return func(ctx context.Context, addr string, o updatelog.Options) (updatelog.Log, error) {
		l, err := open(ctx, addr, o)
		return countedLog{l, c}, err
	}
}

func (l countedLog) Append(ctx context.Context, shard int, payload [][]byte,
	done func(updatelog.Position, error),
) error {
	var f wire.Frame
	_, bad := wire.ParseHeader(payload[0], &f)
	if bad == nil {
		l.c.countMerged(&f)
	}
	return l.Log.Append(ctx, shard, payload, func(at updatelog.Position, err error) {
		if bad == nil && err == nil && l.c.o.Told != nil {
			l.c.o.Told.Logged(&f.Header)
		}
		done(at, err)
	})
}

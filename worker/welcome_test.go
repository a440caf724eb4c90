package worker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
)

// stage is a network on which every dialer receives the given frames in order and nothing else.
type stage struct {
	transport.Network
	frames []wire.Frame
}

type stageConn struct {
	transport.Conn
	frames []wire.Frame
}

func (n *stage) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	conn, err := n.Network.Dial(ctx, addr)
	return &stageConn{conn, n.frames}, err
}

func (c *stageConn) Recv(f *wire.Frame) error { return c.RecvInto(f, nil) }

func (c *stageConn) RecvInto(f *wire.Frame, place func(f *wire.Frame, n int) []byte) error {
	if len(c.frames) == 0 {
		return c.Conn.RecvInto(f, place)
	}
	*f, c.frames = c.frames[0], c.frames[1:]
	return nil
}

// TestBadWelcome checks that an invalid welcome makes Dial return an error that says so, whatever follows it.
func TestBadWelcome(t *testing.T) {
	ctx, h := testcluster.NewForTest(t, time.Minute, testcluster.Options{})
	h.Listen(coordinatorAddr, func(transport.Conn, wire.Hello) { <-ctx.Done() })
	view := &protocol.View{
		Revision: 1, Generation: 1, Slots: make([]protocol.SlotView, 1),
		Shards: []protocol.ShardView{{Holder: protocol.Holder{Server: -1}}},
	}
	_, err := h.NewProcess("worker").Dial(ctx, 0, func(cfg *testcluster.DialConfig) {
		cfg.Network = &stage{cfg.Network, []wire.Frame{
			{Header: wire.Header{Kind: wire.KindWelcome}, Payload: []byte("hello there")},
			wire.Control(wire.KindView, view),
		}}
	})
	if !errors.Is(err, wire.ErrPayload) {
		t.Errorf("Dial: %v", err)
	}
}

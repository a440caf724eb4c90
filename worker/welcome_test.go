package worker_test

import (
	"context"
	"errors"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/worker"
)

// stage is a network on which whoever dials receives the given frames, one after the other,
// and nothing more.
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

// TestBadWelcome: a welcome that makes no sense ends Dial with an error that says so, whatever
// has come behind it.
func TestBadWelcome(t *testing.T) {
	mem := transport.NewMemory(1, transport.MemoryOptions{})
	l, err := mem.Host("coordinator").Listen("coordinator/1")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	view := &perdure.View{
		Revision: 1, Generation: 1, Slots: make([]perdure.SlotView, 1),
		Shards: []perdure.ShardView{{Holder: perdure.Holder{Server: -1}}},
	}
	n := &stage{mem.Host("worker"), []wire.Frame{
		{Header: wire.Header{Kind: wire.KindWelcome}, Payload: []byte("hello there")},
		wire.Control(wire.KindView, view),
	}}
	_, err = worker.Dial(t.Context(), worker.Config{Network: n, Coordinator: "coordinator/1"})
	if !errors.Is(err, wire.ErrPayload) {
		t.Errorf("Dial: %v", err)
	}
}

package worker_test

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// tap is a network that counts a client's frames. While it is shut, messages from servers are delayed.
type tap struct {
	transport.Network

	mu      sync.Mutex // guards the fields below
	out, in map[wire.Kind]int
	packed  map[wire.Kind]int     // number of frames with packed values
	pushed  map[perdure.RowID]int // number of pushes of each row
	shut    chan struct{}         // nil while it is open
	conns   []transport.Conn      // connections to servers
}

type tappedConn struct {
	transport.Conn
	tap *tap
}

// tapped joins as the worker of a slot through a tap.
func (c *cluster) tapped(host string, slot perdure.Slot, with ...func(*testcluster.DialConfig)) (*worker.Client, *tap) {
	c.Helper()
	tp := &tap{
		Network: c.Net.Host(host), out: map[wire.Kind]int{}, in: map[wire.Kind]int{}, packed: map[wire.Kind]int{},
		pushed: map[perdure.RowID]int{},
	}
	w := c.dial(host, slot, append(with, func(cfg *testcluster.DialConfig) { cfg.Network = tp })...)
	c.Cleanup(tp.open) // before the client is closed
	return w, tp
}

func (n *tap) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	conn, err := n.Network.Dial(ctx, addr)
	if err != nil || !strings.HasPrefix(addr, "server:") {
		return conn, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns = append(n.conns, conn)
	return &tappedConn{conn, n}, nil
}

func (c *tappedConn) Send(frames ...wire.Frame) error {
	c.count(frames)
	return c.Conn.Send(frames...)
}

func (c *tappedConn) TrySend(frames ...wire.Frame) error {
	c.count(frames) // the queue never fills up in these tests
	return c.Conn.TrySend(frames...)
}

func (c *tappedConn) count(frames []wire.Frame) {
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	for i := range frames {
		c.tap.out[frames[i].Kind]++
		if frames[i].Kind == wire.KindUpdate {
			b := wire.ReadBlocks(slices.Concat(frames[i].Payload, frames[i].Body))
			for b.Next() {
				if len(b.Sent) < b.Len {
					c.tap.packed[wire.KindUpdate]++
				}
			}
		}
	}
}

func (c *tappedConn) Recv(f *wire.Frame) error { return c.RecvInto(f, nil) }

func (c *tappedConn) RecvInto(f *wire.Frame, place func(f *wire.Frame, n int) []byte) error {
	err := c.Conn.RecvInto(f, place)
	n := c.tap
	n.mu.Lock()
	var p wire.Push
	if n.in[f.Kind]++; err == nil && f.Kind == wire.KindPush && wire.ParsePush(f, &p) == nil {
		for i := range p.Count {
			n.pushed[p.ID(i)]++
		}
	}
	if f.Flags&wire.FlagPacked != 0 {
		n.packed[f.Kind]++
	}
	shut := n.shut
	n.mu.Unlock()
	if shut != nil && err == nil {
		<-shut
	}
	return err
}

// close shuts the tap.
func (n *tap) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.shut = make(chan struct{})
}

// open releases delayed frames and stops delaying.
func (n *tap) open() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.shut != nil {
		close(n.shut)
		n.shut = nil
	}
}

// cut breaks all connections to servers.
func (n *tap) cut() {
	n.mu.Lock()
	conns := n.conns
	n.conns = nil
	n.mu.Unlock()
	for _, conn := range conns {
		conn.Close()
	}
}

// sent returns the number of frames of a kind sent to servers.
func (n *tap) sent(kind wire.Kind) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.out[kind]
}

// takePushed returns how often each row was pushed since the previous call.
func (n *tap) takePushed() map[perdure.RowID]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	was := n.pushed
	n.pushed = map[perdure.RowID]int{}
	return was
}

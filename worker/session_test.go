package worker

import (
	"errors"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// stuckConn accepts a limited number of frames. Callers must not wait for more.
type stuckConn struct {
	transport.Conn
	takes  int
	got    []wire.Frame
	closed chan struct{}
}

func newStuckConn(takes int) *stuckConn { return &stuckConn{takes: takes, closed: make(chan struct{})} }

func (c *stuckConn) TrySend(frames ...wire.Frame) error {
	if len(c.got)+len(frames) > c.takes {
		return transport.ErrFull
	}
	c.got = append(c.got, frames...)
	return nil
}

func (c *stuckConn) Close() error {
	close(c.closed)
	return nil
}

// TestSessionGivesUpWhatIsFull checks that messages which a coordinator does not accept are kept and sent on the next
// connection. The stuck connection is closed, once.
func TestSessionGivesUpWhatIsFull(t *testing.T) {
	var s session
	first, second := newStuckConn(2), newStuckConn(10)
	s.welcome(first, &wire.Welcome{})
	for clock := range perdure.Clock(5) {
		s.report(wire.Control(wire.KindReport, wire.Report{Clock: clock}))
	}
	<-first.closed
	if err := s.send(wire.Frame{}); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("without a connection: %v", err)
	}
	s.down(first)
	s.welcome(second, &wire.Welcome{})
	s.report(wire.Control(wire.KindReport, wire.Report{Clock: 5}))
	if s.down(first); s.conn != second {
		t.Error("the end of the first connection ended the second")
	}
	var clocks []perdure.Clock
	for _, f := range append(first.got, second.got...) {
		var r wire.Report
		if err := wire.ParseControl(&f, &r); err != nil {
			t.Fatal(err)
		}
		clocks = append(clocks, r.Clock)
	}
	for i, clock := range clocks {
		if int(clock) != i || len(first.got) != 2 || len(clocks) != 6 {
			t.Fatalf("told %v, %d of them on the first connection; want 0 to 5, and 2", clocks, len(first.got))
		}
	}
}

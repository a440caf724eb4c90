package supervisor

import (
	"errors"
	"slices"
	"testing"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// wires is a connection that keeps what is sent, until it breaks.
type wires struct {
	transport.Conn
	kinds  []wire.Kind
	breaks int // after as many frames; 0: never
}

func (w *wires) Send(frames ...wire.Frame) error {
	if w.breaks > 0 && len(w.kinds) == w.breaks {
		return errors.New("broken")
	}
	w.kinds = append(w.kinds, frames[0].Kind)
	return nil
}

// What is said while the coordinator is away is sent once it is back, in order, and what a
// connection broke over, with the next one.
func TestLine(t *testing.T) {
	frame := func(k wire.Kind) wire.Frame { return wire.Frame{Header: wire.Header{Kind: k}} }
	var l line
	l.send(frame(1))
	l.send(frame(2))
	first, second := &wires{breaks: 1}, &wires{}
	l.up(first)
	l.send(frame(3))
	l.down(first)
	l.up(second)
	l.down(first) // that of a connection that had ended already
	l.send(frame(4))
	if !slices.Equal(first.kinds, []wire.Kind{1}) || !slices.Equal(second.kinds, []wire.Kind{2, 3, 4}) {
		t.Errorf("first %v, then %v; want 1, then 2 3 4", first.kinds, second.kinds)
	}
	l.down(second)
	for range maxUnsent + 5 {
		l.send(frame(5))
	}
	if len(l.unsent) != maxUnsent {
		t.Errorf("%d frames are kept, want %d", len(l.unsent), maxUnsent)
	}
}

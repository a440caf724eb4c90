package supervisor

import (
	"errors"
	"slices"
	"testing"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// wires is a connection that records frames until it breaks.
type wires struct {
	transport.Conn
	kinds  []wire.Kind
	breaks int // number of frames before it breaks; 0: never
}

func (w *wires) Send(frames ...wire.Frame) error {
	if w.breaks > 0 && len(w.kinds) == w.breaks {
		return errors.New("broken")
	}
	w.kinds = append(w.kinds, frames[0].Kind)
	return nil
}

// TestLine checks that messages sent while the coordinator is unavailable are sent in order after the reconnect,
// including the one that broke a connection.
func TestLine(t *testing.T) {
	frame := func(k wire.Kind) wire.Frame { return wire.Frame{Header: wire.Header{Kind: k}} }
	var l coordinatorConn
	l.send(frame(1))
	l.send(frame(2))
	first, second := &wires{breaks: 1}, &wires{}
	l.up(first)
	l.send(frame(3))
	l.down(first)
	l.up(second)
	l.down(first) // a connection that had already ended
	l.send(frame(4))
	if !slices.Equal(first.kinds, []wire.Kind{1}) || !slices.Equal(second.kinds, []wire.Kind{2, 3, 4}) {
		t.Errorf("first %v, then %v; want 1, then 2 3 4", first.kinds, second.kinds)
	}
	l.down(second)
	for range maxUnsent + 5 {
		l.send(frame(5))
	}
	if len(l.unsent) != maxUnsent {
		t.Errorf("kept %d frames, want %d", len(l.unsent), maxUnsent)
	}
}

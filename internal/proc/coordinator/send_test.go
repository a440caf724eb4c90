package coordinator

import (
	"fmt"
	"io"
	"testing"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// refusing is a connection that accepts no frames.
type refusing struct {
	transport.Conn
	why    error
	closed bool
}

func (r *refusing) TrySend(...wire.Frame) error { return r.why }

func (r *refusing) Close() error {
	r.closed = true
	return nil
}

// TestSendToWhoIsGone checks that messages of a peer that has disconnected are still read: a failed send does not close
// its connection. The connection of a peer that is present but does not read is closed.
func TestSendToWhoIsGone(t *testing.T) {
	for why, closes := range map[error]bool{
		fmt.Errorf("%w: worker: %w", transport.ErrBroken, io.EOF): false,
		transport.ErrFull:   true,
		transport.ErrClosed: true, // closing again is harmless
	} {
		c := &refusing{why: why}
		(&member{conn: c}).send(wire.Frame{})
		if c.closed != closes {
			t.Errorf("%v: closed: %v, want %v", why, c.closed, closes)
		}
	}
}

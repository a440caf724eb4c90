package coordinator

import (
	"fmt"
	"io"
	"testing"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// refusing is a connection that takes nothing.
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

// TestSendToWhoIsGone: what somebody has said before he went is still read: his connection is not closed because
// nothing can be sent to him. Who takes nothing though he is there is ended.
func TestSendToWhoIsGone(t *testing.T) {
	for why, closes := range map[error]bool{
		fmt.Errorf("%w: worker: %w", transport.ErrBroken, io.EOF): false,
		transport.ErrFull:   true,
		transport.ErrClosed: true, // once more does no harm
	} {
		c := &refusing{why: why}
		(&member{conn: c}).send(wire.Frame{})
		if c.closed != closes {
			t.Errorf("%v: closed: %v, want %v", why, c.closed, closes)
		}
	}
}

package transport

import (
	"errors"

	"github.com/perdure/perdure/internal/data/wire"
)

// Tell sends frames without waiting. A peer that has left as much lying as may be queued is frozen, or is gone
// without a word: the connection is closed, so that a new one is made, and the error is ErrClosed.
func Tell(conn Conn, frames ...wire.Frame) error {
	err := conn.TrySend(frames...)
	if errors.Is(err, ErrFull) {
		go conn.Close()
		return ErrClosed
	}
	return err
}

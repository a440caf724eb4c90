package transport

import (
	"errors"

	"github.com/perdure/perdure/internal/data/wire"
)

// SendOrClose sends frames without blocking. If the send queue is full, the peer is frozen or gone, so SendOrClose
// closes the connection, to be replaced by a new one, and returns ErrClosed.
func SendOrClose(conn Conn, frames ...wire.Frame) error {
	err := conn.TrySend(frames...)
	if errors.Is(err, ErrFull) {
		go conn.Close()
		return ErrClosed
	}
	return err
}

package transport

import (
	"errors"
	"fmt"

	"github.com/perdure/perdure/internal/data/wire"
)

// ErrBroken is wrapped by every error of a connection that broke for another reason than a Close on this side: the peer
// closed it or died, the network failed, or invalid data was received (then the error of package wire is also wrapped).
var ErrBroken = errors.New("transport: connection broken")

// brokenError returns the error of a broken connection to peer.
func brokenError(peer string, why error) error {
	return fmt.Errorf("%w: %s: %w", ErrBroken, peer, why)
}

// batchBytes returns the size of frames on the wire. It returns an error for a frame that is too large, which every
// receiver would reject, before that frame breaks the connection.
func batchBytes(frames []wire.Frame) (int, error) {
	n := 0
	for i := range frames {
		size := frames[i].PayloadBytes()
		if size > wire.MaxPayload {
			return 0, fmt.Errorf("transport: send: %w: %d bytes, but only %d allowed", wire.ErrTooLarge, size,
				wire.MaxPayload)
		}
		n += wire.HeaderBytes + size
	}
	return n, nil
}

// releaseAll notifies the owners of the frames' memory that the transport no longer uses it.
func releaseAll(frames []wire.Frame) {
	for i := range frames {
		if r := frames[i].Release; r != nil {
			r.Release()
		}
	}
}

// payloadBuffer asks place for the memory of a payload of n bytes. It empties all of f except its header.
func payloadBuffer(f *wire.Frame, n int, place func(f *wire.Frame, n int) []byte) ([]byte, error) {
	f.Payload, f.Body, f.Release = f.Payload[:0], nil, nil
	if place == nil || n == 0 {
		return nil, nil
	}
	b := place(f, n)
	if len(b) > n {
		return nil, fmt.Errorf("transport: a payload of %d bytes does not fill the %d bytes reserved for it", n, len(b))
	}
	return b, nil
}

// copyLent copies the lent bodies of frames that are still needed after Send returns.
func copyLent(frames []wire.Frame) {
	for i := range frames {
		if f := &frames[i]; f.Lent {
			f.Body, f.Lent = f.Release.(wire.Keeper).Keep(f.Body), false
		}
	}
}

package transport

import (
	"errors"
	"fmt"

	"github.com/perdure/perdure/internal/data/wire"
)

// ErrBroken is wrapped by every error of a connection that broke for another
// reason than this side's Close: the peer closed it or died, the network failed,
// or what came in was not a valid frame (then the error of package wire is
// wrapped too).
var ErrBroken = errors.New("transport: connection broken")

// broken says why the connection to peer cannot be used any more.
func broken(peer string, why error) error {
	return fmt.Errorf("%w: %s: %w", ErrBroken, peer, why)
}

// batchBytes returns what frames weigh on the connection. A frame that every
// receiver would refuse is an error here, before it breaks the connection.
func batchBytes(frames []wire.Frame) (int, error) {
	n := 0
	for i := range frames {
		size := frames[i].PayloadBytes()
		if size > wire.MaxPayload {
			return 0, fmt.Errorf("transport: send: %w: %d bytes, %d allowed", wire.ErrTooLarge, size, wire.MaxPayload)
		}
		n += wire.HeaderBytes + size
	}
	return n, nil
}

// released tells the owners of the frames' bytes that the transport has no more
// use for them.
func released(frames []wire.Frame) {
	for i := range frames {
		if r := frames[i].Release; r != nil {
			r.Release()
		}
	}
}

// placed asks where a payload of n bytes belongs. All but the header of f is made
// empty.
func placed(f *wire.Frame, n int, place func(f *wire.Frame, n int) []byte) ([]byte, error) {
	f.Payload, f.Body, f.Release = f.Payload[:0], nil, nil
	if place == nil || n == 0 {
		return nil, nil
	}
	b := place(f, n)
	if len(b) > n {
		return nil, fmt.Errorf("transport: a payload of %d bytes was to be placed in %d", n, len(b))
	}
	return b, nil
}

// keep copies the lent bodies of frames that outlast their Send.
func keep(frames []wire.Frame) {
	for i := range frames {
		if f := &frames[i]; f.Lent {
			f.Body, f.Lent = f.Release.(wire.Keeper).Keep(f.Body), false
		}
	}
}

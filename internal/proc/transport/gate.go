package transport

import (
	"errors"
	"fmt"
	"sync"

	"github.com/perdure/perdure/internal/data/wire"
)

// DefaultMaxQueued is how many bytes of frames a connection queues, unless its
// network's options say otherwise, before Send blocks.
const DefaultMaxQueued = 64 << 20

// ErrBroken is wrapped by every error of a connection that broke for another
// reason than this side's Close: the peer closed it or died, the network failed,
// or what came in was not a valid frame (then the error of package wire is
// wrapped too).
var ErrBroken = errors.New("transport: connection broken")

// broken says why the connection to peer cannot be used any more.
func broken(peer string, why error) error {
	return fmt.Errorf("%w: %s: %w", ErrBroken, peer, why)
}

// gate lets batches in, in order of arrival, while at most max bytes are
// inside. A batch that alone is larger is let in when nothing is inside. Every
// method is called with the owner's lock held.
//
// Waiting is on a sync.Cond, which a testing/synctest bubble sees as blocked.
type gate struct {
	change sync.Cond // on the owner's lock: a batch left or entered, or the gate failed
	max    int
	inside int
	err    error // what entering gives, once set

	// Tickets keep a large batch from being overtaken by small ones for ever.
	next, serving uint64
}

func (g *gate) init(owner sync.Locker, max int) {
	g.change.L = owner
	g.max = max
	if max <= 0 {
		g.max = DefaultMaxQueued
	}
}

// enter waits until n bytes may go in; without wait it gives ErrFull instead.
func (g *gate) enter(n int, wait bool) error {
	if !wait && g.err == nil && (g.next != g.serving || g.inside > 0 && g.inside+n > g.max) {
		return ErrFull
	}
	ticket := g.next
	g.next++
	for g.err == nil && (ticket != g.serving || g.inside > 0 && g.inside+n > g.max) {
		g.change.Wait()
	}
	if g.err != nil {
		return g.err
	}
	g.serving++
	g.inside += n
	if g.serving != g.next {
		g.change.Broadcast()
	}
	return nil
}

// leave says that n bytes are out.
func (g *gate) leave(n int) {
	g.inside -= n
	if g.serving != g.next {
		g.change.Broadcast()
	}
}

// fail lets nobody in any more. The first error stays.
func (g *gate) fail(err error) {
	if g.err == nil {
		g.err = err
		g.change.Broadcast()
	}
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

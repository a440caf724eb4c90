// Package transport provides connections that carry Perdure's frames between processes: over TCP and Unix sockets, over
// an in-memory network for tests, and through a fault layer around either.
//
// A [Network] dials and listens. A [Conn] is an ordered, reliable stream of frames until it breaks. A broken Conn stays
// broken; its users must reconnect and resend. All implementations pass the same conformance suite.
package transport

import (
	"context"
	"errors"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/keys"
)

// Network connects to other processes. It is safe for concurrent use.
type Network interface {
	// Dial connects to a listener's address.
	Dial(ctx context.Context, addr string) (Conn, error)
	// Listen opens a listener. An empty port (TCP: "127.0.0.1:0") selects a free one.
	Listen(addr string) (Listener, error)
}

// Listener accepts connections. Close makes a pending Accept return an error.
type Listener interface {
	Accept() (Conn, error)
	Addr() string
	Close() error
}

// Conn carries frames in order. One goroutine may call Recv while others call Send.
type Conn interface {
	// Send queues the frames in order, as one batch, and returns. It writes as much as the network accepts without
	// blocking and leaves the rest to the connection's own goroutine. It blocks while more bytes are queued than the
	// connection's limit, and fails once the connection is broken. Each Send costs at least one system call, so small
	// frames are cheaper in one batch.
	//
	// Payload and Body are not copied. They must not change until Release is called or, without Release, until the
	// connection is closed or the peer has answered them. Release is called exactly once for each frame: when the
	// network has its bytes, when the connection has broken, or when Send fails, and always before Close returns. It
	// may be called by Send's goroutine before Send returns, so it must not acquire a lock that the caller holds. A
	// lent body must not change until Send returns; if it is needed longer, its Keeper copies it. The caller may reuse
	// the slice of frames after Send returns, which avoids allocations.
	Send(frames ...wire.Frame) error
	// TrySend is like Send but never blocks. It returns ErrFull, and sends nothing, if Send would block.
	TrySend(frames ...wire.Frame) error
	// Charge also counts queued bytes in a budget until they are sent or the connection is closed. TrySend then also
	// returns ErrFull if the budget is used up, unless at most alwaysQueued bytes would be queued, or the queue is
	// empty.
	Charge(b *Budget)
	// Recv waits for the next frame. It reuses the capacity of f.Payload. A receiver that keeps the payload must set
	// f.Payload to nil before the next Recv.
	Recv(f *wire.Frame) error
	// RecvInto is like Recv for receivers that know the final location of a payload's end. The receiver's goroutine
	// calls place, unless it is nil, for each frame with a payload of n > 0 bytes before they are read. place returns a
	// slice b of at most n bytes. The last len(b) bytes are read directly into b, which becomes f.Body, and the first n
	// - len(b) bytes become f.Payload. A longer slice is an error that breaks the connection.
	//
	// When place is called, f's header is not verified by the checksum yet, and the payload is not read. It must only
	// choose memory. If RecvInto fails, the content of that memory is undefined.
	RecvInto(f *wire.Frame, place func(f *wire.Frame, n int) (b []byte)) error
	// OnWait sets a function that the goroutine in Recv calls before it waits for data, also in the middle of a frame.
	// It is used to send frames that were held back until all received data is processed. OnWait must be called before
	// the first Recv, or between two by the same goroutine.
	OnWait(f func())
	// Close breaks the connection; pending Sends and Recvs return ErrClosed. Frames sent before are still written if
	// the peer accepts them promptly, so a refusal followed by Close is not lost.
	Close() error
	// Peer describes the other end, for logs.
	Peer() string
	// PeerIdentity returns the identity in the peer's certificate. It is the zero value on connections without keys,
	// and before the first frame is received.
	PeerIdentity() keys.Identity
}

// ErrClosed is returned by operations on a connection or listener that was closed by this side.
var ErrClosed = errors.New("transport: closed")

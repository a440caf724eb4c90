// Package transport moves Perdure's frames between processes: over TCP and
// Unix sockets, over an in-memory network for tests, and through a fault layer around either.
//
// A [Network] dials and listens; a [Conn] is an ordered, reliable stream of
// frames until it breaks, and a broken Conn stays broken: reconnecting and
// resending is for its users. All implementations pass one conformance suite.
package transport

import (
	"context"
	"errors"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/keys"
)

// Network is a way to reach other processes. Safe for concurrent use.
type Network interface {
	// Dial connects to a listener's address.
	Dial(ctx context.Context, addr string) (Conn, error)
	// Listen opens a listener. An empty port (TCP: "127.0.0.1:0") picks one.
	Listen(addr string) (Listener, error)
}

// Listener accepts connections. Close makes a pending Accept return an error.
type Listener interface {
	Accept() (Conn, error)
	Addr() string
	Close() error
}

// Conn carries frames in order. One goroutine may Recv while others Send.
type Conn interface {
	// Send takes the frames in order, as one batch, and returns: it writes what
	// the network takes at once and leaves the rest to the connection's own
	// goroutine. It blocks while more than the connection's bound of bytes is
	// queued, and fails once the connection is broken. A Send is a system call at
	// least: small frames are cheaper together.
	//
	// Payload and Body are not copied: they must stay unchanged until Release is
	// called or, without one, until the connection is closed or the peer has
	// answered them. Release is called once for each frame given, whatever becomes
	// of it: when the network has its bytes, when the connection has broken, and
	// also when Send fails; at the latest before Close returns. It may be called
	// before Send returns and by its goroutine, so it must not take a lock that
	// the caller holds. A body that is lent stays unchanged until Send returns, and
	// is copied by its Keeper where that is not enough. The slice of frames is the
	// caller's again when Send returns: one that is used again and again costs no
	// allocation.
	Send(frames ...wire.Frame) error
	// TrySend is Send for those who must not wait: it fails with ErrFull, and
	// sends nothing, where Send would block.
	TrySend(frames ...wire.Frame) error
	// Charge has what is queued counted in a budget, too, until it is sent or the
	// connection is closed. TrySend then also fails with ErrFull where the budget has
	// no room, unless no more than alwaysQueued would be queued, or nothing else is.
	Charge(b *Budget)
	// Recv waits for the next frame. It reuses f.Payload's capacity; a receiver
	// that keeps the payload sets f.Payload to nil before the next Recv.
	Recv(f *wire.Frame) error
	// RecvInto is Recv for those who know where a payload's end belongs. place,
	// unless nil, is called by the receiver's goroutine for each frame whose
	// payload has n > 0 bytes, before they are read, and returns where their last
	// len(b) ≤ n are to go: they are read straight into b, which is f.Body
	// afterwards, and f.Payload gets the first n - len(b). More than n is an error
	// that breaks the connection.
	//
	// place sees f's header before the checksum was verified, and nothing of the
	// payload: it must do no more than choose memory. Where RecvInto fails, what
	// that memory holds is undefined.
	RecvInto(f *wire.Frame, place func(f *wire.Frame, n int) (b []byte)) error
	// OnWait has f called by the goroutine that calls Recv whenever that is about to
	// wait for what has not come yet, also in the middle of a frame: the moment to
	// send what was put off until all that has come is dealt with. It is called
	// before the first Recv, or between two by the same goroutine.
	OnWait(f func())
	// Close breaks the connection; pending Sends and Recvs return ErrClosed. What
	// was sent before still goes out if the peer takes it at once: a refusal is
	// not lost to the Close behind it.
	Close() error
	// Peer describes the other end, for logs.
	Peer() string
	// Who is who the peer's certificate says that it is; nobody (the zero value) where connections are not private, or
	// before something was received.
	Who() keys.Identity
}

// ErrClosed is returned by operations on a connection or listener that was
// closed by this side.
var ErrClosed = errors.New("transport: closed")

// Package registry keeps the coordinator's durable facts: one document that is
// replaced as a whole, by compare-and-swap on its revision, by the one process
// that has the lease. A view exists only once the registry has it.
//
// What keeps the facts right is the revision and the lease together, and no
// clock: a process that no longer has the lease cannot save, however late it
// hears of that.
package registry

import (
	"context"
	"errors"
)

// Registry is one client's access to a document. All methods are safe for
// concurrent use. Implementations pass one conformance suite.
type Registry interface {
	// Load returns the document and its revision; revision 0 means that there is
	// none yet. What was loaded is durable.
	Load(ctx context.Context) (doc []byte, revision uint64, err error)
	// Acquire takes the lease, the right to save. At most one client of all has
	// it; while another has, Acquire gives ErrHeld at once and names that one.
	Acquire(ctx context.Context, holder Holder) (Lease, error)
	// Close gives up what this client has: its lease.
	Close() error
}

// Lease is the right to save. It ends when it is released, when its Registry is
// closed, when its holder dies, or when the registry takes it away.
type Lease interface {
	// Save replaces the document if its revision is still previous, and returns
	// the new revision, which is higher, by one or more. It is durable when Save
	// returns. A revision that is not previous gives ErrConflict, a lease that
	// has ended ErrLost: nothing was saved. After any other error the old
	// document or the new one is there, whole, and the same Save may be tried
	// again: it succeeds where the first one did.
	Save(ctx context.Context, doc []byte, previous uint64) (revision uint64, err error)
	// Done is closed when the lease has ended. That may be noticed late: only
	// Save tells for certain.
	Done() <-chan struct{}
	// Release gives the lease back; it may be called again.
	Release() error
}

var (
	// ErrConflict is returned by Save when somebody else has saved meanwhile.
	ErrConflict = errors.New("registry: the document was changed by another process")
	// ErrHeld is returned by Acquire while somebody else has the lease.
	ErrHeld = errors.New("registry: in use by another process")
	// ErrLost is returned by Save once the lease has ended.
	ErrLost = errors.New("registry: this process has no right to write any more")
	// ErrClosed is returned by a Registry that was closed.
	ErrClosed = errors.New("registry: closed")
	// ErrAway is wrapped when the service that keeps the registry does not answer. It
	// is nobody's mistake, and it may come back: whoever can wait does.
	ErrAway = errors.New("registry: no answer")
)

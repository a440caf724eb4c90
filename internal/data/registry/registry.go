// Package registry stores the job record, the coordinator's durable state. It is a single document that is replaced as
// a whole, by compare-and-swap on its revision, by the one process that has the lease. A view takes effect only after
// the registry has stored it.
//
// Correctness depends on the revision and the lease together, and not on a clock: a process that has lost the lease
// cannot save, however late it notices.
package registry

import (
	"context"
	"errors"
	"fmt"
)

// Registry is one client's access to a document. All methods are safe for concurrent use. All implementations pass the
// same conformance suite.
type Registry interface {
	// Load returns the document and its revision; revision 0 means that no document exists yet. A loaded document is
	// durable.
	Load(ctx context.Context) (doc []byte, revision uint64, err error)
	// Acquire acquires the lease, the right to save. At most one client has it. While another client has it, Acquire
	// immediately returns ErrHeld, with the name of that client.
	Acquire(ctx context.Context, holder Holder) (Lease, error)
	// Close releases the client's lease and closes the client.
	Close() error
}

// Lease is the right to save. It ends when it is released, its Registry is closed, its holder dies, or the registry
// revokes it.
type Lease interface {
	// Save replaces the document if its revision is still previous, and returns the new revision, which is higher. The
	// document is durable when Save returns. Save returns ErrConflict if the revision differs, and ErrLost if the lease
	// has ended; in both cases nothing was saved, except after ErrOutcomeUnknown, which wraps ErrLost. After any other
	// error, either the old or the new document is stored, completely. The same Save may then be retried: it succeeds
	// even if the first attempt took effect.
	Save(ctx context.Context, doc []byte, previous uint64) (revision uint64, err error)
	// Done is closed when the lease has ended, possibly with a delay. Only Save determines this reliably.
	Done() <-chan struct{}
	// Release ends the lease. It may be called more than once.
	Release() error
}

var (
	// ErrConflict is returned by Save if another process has saved in the meantime.
	ErrConflict = errors.New("registry: the document was changed by another process")
	// ErrHeld is returned by Acquire while another process has the lease.
	ErrHeld = errors.New("registry: in use by another process")
	// ErrLost is returned by Save after the lease has ended.
	ErrLost = errors.New("registry: this process no longer has the lease")
	// ErrOutcomeUnknown is returned by Save if the lease has ended after an attempt of the same Save without an answer.
	// That attempt may have taken effect, even if the document has since been replaced by the next holder.
	ErrOutcomeUnknown = fmt.Errorf("%w; the document may have been saved before the lease ended", ErrLost)
	// ErrClosed is returned by a closed Registry.
	ErrClosed = errors.New("registry: closed")
	// ErrUnavailable is wrapped if the registry's service does not answer. It may become available again, so callers
	// that can wait should wait.
	ErrUnavailable = errors.New("registry: no answer")
)

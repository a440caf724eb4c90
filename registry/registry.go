// Package registry keeps the coordinator's durable facts: one document that is
// replaced as a whole, by compare-and-swap on its revision. A view exists only
// once the registry has it.
package registry

import (
	"context"
	"errors"
)

// Registry holds one document. Implementations pass one conformance suite.
type Registry interface {
	// Load returns the document and its revision; revision 0 means that there is
	// none yet.
	Load(ctx context.Context) (doc []byte, revision uint64, err error)
	// Save replaces the document if its revision is still previous, and returns
	// the new revision, which is higher. The document is durable when Save
	// returns. A revision that is not previous gives ErrConflict.
	Save(ctx context.Context, doc []byte, previous uint64) (revision uint64, err error)
	// Close releases the registry.
	Close() error
}

// ErrConflict is returned by Save when somebody else has saved meanwhile.
var ErrConflict = errors.New("registry: the document was changed by another process")

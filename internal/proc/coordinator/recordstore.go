package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
)

// recordStore saves the loop's facts to the registry.
type recordStore struct {
	lease    registry.Lease
	initial  initialView // immutable
	revision uint64      // of the registry's document
	document membership.Document
	text     []byte // the registry's document
	calls    inspections
	// generation is that of the last saved facts. Goroutines that publish checkpoints read it.
	generation atomic.Uint64
}

// saveTries is how often saving a document is tried before the coordinator ends. It is tried without limit while the
// disk is full or the registry is unavailable. The loop is blocked meanwhile, because no decision takes effect before
// it is saved.
const (
	saveTries = 10
	savePause = time.Second
)

// isTemporary reports whether an error of the registry is temporary.
func isTemporary(err error) bool { return disk.IsFull(err) || errors.Is(err, registry.ErrUnavailable) }

// outdated reports whether err means that another process is, or may be, the coordinator.
func outdated(err error) bool {
	return errors.Is(err, registry.ErrConflict) || errors.Is(err, registry.ErrLost)
}

// fencedError returns the error of a coordinator that has lost its lease. Its parent may start another one, which
// continues if no other process holds the lease.
func fencedError(err error) error { return fmt.Errorf("coordinator: %w: %w", perdure.ErrFenced, err) }

// save saves the facts and blocks until the registry has them. It calls tell for each failed try that is repeated.
func (b *recordStore) save(ctx context.Context, f *membership.JobRecord, tell func(error)) error {
	doc, err := b.document.Encode(f)
	if err != nil {
		return fmt.Errorf("coordinator: %w", err)
	}
	lost := func(err error) bool { return outdated(err) || ctx.Err() != nil }
	retry := disk.Retry{MaxAttempts: saveTries, Pause: savePause, Permanent: lost, Retryable: isTemporary}
	err = b.calls.serveDuring(func(failed func(error)) error {
		return retry.Do(ctx, func() error {
			revision, err := b.lease.Save(ctx, doc, b.revision)
			if err == nil {
				b.revision = revision
			} else if !lost(err) {
				failed(err)
			}
			return err
		})
	}, tell)
	switch {
	case err == nil:
		b.text = append(b.text[:0], doc...)
		b.generation.Store(uint64(f.View.Generation))
		return nil
	case outdated(err):
		return fencedError(err)
	}
	return fmt.Errorf("coordinator: %w", err)
}

// serveDuring runs do, which waits for the registry, and serves callers of Inspect in the meantime. The loop is blocked
// and handles nothing else. It passes the error of each failed attempt to tell.
func (l inspections) serveDuring(do func(failed func(error)) error, tell func(error)) error {
	began, why := time.Now(), ""
	failed, done := make(chan error), make(chan error, 1)
	go func() { done <- do(func(err error) { failed <- err }) }()
	for {
		select {
		case err := <-done:
			return err
		case err := <-failed:
			why = err.Error()
			tell(err)
		case show := <-l:
			show(&RegistryWait{Duration: time.Since(began), LastError: why})
		}
	}
}

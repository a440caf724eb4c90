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

// book is where the loop records its facts, and what is recorded.
type book struct {
	lease    registry.Lease
	revision uint64 // of the registry's document
	document membership.Document
	text     []byte // the registry's document
	looks    looks
	// generation of the facts that this process recorded last. Goroutines that publish checkpoints read it.
	generation atomic.Uint64
}

// A document that cannot be saved is tried again this number of times before the coordinator
// gives up; on a full disk until there is room, and in a registry that is away until it is
// back. Nothing goes on without it: what is not recorded has not been decided.
const (
	saveTries = 10
	savePause = time.Second
)

// passes reports that an error of the registry is nobody's mistake.
func passes(err error) bool { return disk.Full(err) || errors.Is(err, registry.ErrAway) }

// outdated reports that another process is the coordinator, or may be.
func outdated(err error) bool {
	return errors.Is(err, registry.ErrConflict) || errors.Is(err, registry.ErrLost)
}

// fenced is how a coordinator ends whose lease was taken away. Whoever has started it may start the next
// one: if nobody else has the lease that one goes on.
func fenced(err error) error { return fmt.Errorf("coordinator: %w: %w", perdure.ErrFenced, err) }

// save records the facts, which takes as long as the registry takes. It tells of each try that has failed, and will be
// made again.
func (b *book) save(ctx context.Context, f *membership.Facts, tell func(error)) error {
	doc, err := b.document.Encode(f)
	if err != nil {
		return fmt.Errorf("coordinator: %w", err)
	}
	lost := func(err error) bool { return outdated(err) || ctx.Err() != nil }
	retry := disk.Retry{Tries: saveTries, Pause: savePause, Over: lost, Passes: passes}
	err = b.looks.meanwhile(func(failed func(error)) error {
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
		return fenced(err)
	}
	return fmt.Errorf("coordinator: %w", err)
}

// meanwhile does what takes as long as the registry takes, and shows those who look what is known. The loop stands
// where it was: nothing else happens in it. Of each try that failed it tells the loop.
func (l looks) meanwhile(do func(failed func(error)) error, tell func(error)) error {
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
			show(&Waits{For: time.Since(began), Why: why})
		}
	}
}

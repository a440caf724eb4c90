package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"

	"github.com/perdure/perdure/internal/data/disk"
)

// fileLease is the lock of a registry's file. The registry's mu guards it.
type fileLease struct {
	r           *File
	holder      Holder
	lock        disk.Lock // nil on a file system without locks
	done        chan struct{}
	unknownSave *failedSave  // the last Save, if its result is unknown
	buf         bytes.Buffer // reusable memory for the file's contents
}

// failedSave is a Save that failed part-way: the file may have been replaced.
type failedSave struct {
	doc      []byte
	previous uint64
}

// Acquire implements Registry.
func (r *File) Acquire(ctx context.Context, holder Holder) (Lease, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := checkOpen(ctx, r.closed); err != nil {
		return nil, err
	}
	if r.lease != nil {
		return nil, fmt.Errorf("%w: %s (%s)", ErrHeld, r.lease.holder, r.path)
	}
	l := &fileLease{r: r, holder: holder, done: make(chan struct{})}
	if locker, ok := r.fsys.(disk.Locker); ok {
		lock, err := locker.Lock(r.path+".lock", holder.Line())
		var locked *disk.LockedError
		switch {
		case errors.As(err, &locked):
			return nil, fmt.Errorf("%w: %s (%s)", ErrHeld, HolderName(locked.Holder), r.path)
		case err != nil:
			return nil, fmt.Errorf("registry: %w", err)
		}
		l.lock = lock
	}
	r.lease = l
	if l.lock == nil {
		return l, nil
	}
	if err := r.removeTemporaries(); err != nil {
		_ = r.endLeaseLocked(l) // err is the cause
		return nil, err
	}
	r.lockChecks.Go(l.pollLock)
	return l, nil
}

// removeTemporaries deletes temporary files that writers of this file left when they died. Only the lease's holder may
// call it, because otherwise a writer may still be alive.
func (r *File) removeTemporaries() error {
	dir, base := path.Dir(r.path), path.Base(r.path)
	names, err := r.fsys.List(dir)
	if err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	for _, name := range names {
		if final, ok := disk.ParseTemporary(name); ok && final == base {
			if err := r.fsys.Remove(path.Join(dir, name)); err != nil {
				return fmt.Errorf("registry: %w", err)
			}
		}
	}
	return nil
}

// endLeaseLocked ends a lease that has not ended yet. The caller must hold r.mu.
func (r *File) endLeaseLocked(l *fileLease) error {
	if l == nil || r.lease != l {
		return nil
	}
	r.lease = nil
	close(l.done)
	if l.lock == nil {
		return nil
	}
	if err := l.lock.Close(); err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	return nil
}

// checkHeldLocked returns ErrLost if the lease has ended. It ends a lease whose lock no longer excludes others. The
// caller must hold r.mu.
func (l *fileLease) checkHeldLocked() error {
	if l.r.lease != l {
		return ErrLost
	}
	if l.lock == nil {
		return nil
	}
	if err := l.lock.CheckHeld(); err != nil {
		_ = l.r.endLeaseLocked(l) // err is the cause
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return nil
}

// pollLock polls the lock until the lease has ended, so that the holder notices it even without saving.
func (l *fileLease) pollLock() {
	tick := l.r.ticker()
	defer tick.Stop()
	for {
		select {
		case <-l.done:
			return
		case <-tick.C:
			l.r.mu.Lock()
			_ = l.checkHeldLocked() // ends the lease if the lock is lost
			l.r.mu.Unlock()
		}
	}
}

func (l *fileLease) Save(ctx context.Context, doc []byte, previous uint64) (uint64, error) {
	r := l.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := checkOpen(ctx, r.closed); err != nil {
		return 0, err
	}
	retried := l.unknownSave != nil && l.unknownSave.previous == previous && bytes.Equal(l.unknownSave.doc, doc)
	if err := l.checkHeldLocked(); err != nil {
		if retried {
			return 0, ErrOutcomeUnknown
		}
		return 0, err
	}
	stored, revision, err := l.current()
	if err != nil {
		return 0, err
	}
	if retried && revision == previous+1 && bytes.Equal(stored, doc) {
		l.unknownSave = nil
		return revision, nil // only the last sync had failed, and read has repeated it
	}
	if revision != previous {
		return 0, conflict(revision, previous)
	}
	l.unknownSave = nil
	err = disk.WriteFile(r.fsys, r.path, func(w io.Writer) error {
		if _, err := w.Write(head(doc, revision+1)); err != nil {
			return err
		}
		_, err := w.Write(doc)
		return err
	})
	if err != nil {
		l.unknownSave = &failedSave{slices.Clone(doc), previous}
		return 0, fmt.Errorf("registry: save: %w", err)
	}
	return revision + 1, nil
}

// current returns the contents of the file, valid until the next call. It makes the result of a failed Save durable.
func (l *fileLease) current() (doc []byte, revision uint64, err error) {
	if l.unknownSave != nil {
		return l.r.readDurable()
	}
	return l.r.readFile(&l.buf)
}

func conflict(revision, previous uint64) error {
	return fmt.Errorf("%w: the record is at revision %d; the save expects %d", ErrConflict, revision, previous)
}

func (l *fileLease) Done() <-chan struct{} { return l.done }

func (l *fileLease) Release() error {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	return l.r.endLeaseLocked(l)
}

package rundir

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/perdure/perdure/internal/data/disk"
)

// ErrRunning is returned by CheckEnded for a run that has not ended.
var ErrRunning = errors.New("rundir: the run is still running")

// lockName is the file that a run's parent keeps locked while the run is alive. Its content names that process for
// users.
const lockName = "lock"

// coordinatorLock is the lock of the run's coordinator, which may outlive the parent.
var coordinatorLock = filepath.Join("registry", "facts.lock")

// acquireLock acquires the lock of a new run's directory.
func (d *Dir) acquireLock() (err error) {
	locker, ok := disk.OS().(disk.Locker)
	if !ok {
		return nil
	}
	who := fmt.Sprintf("pid %d since %s", os.Getpid(), time.Now().UTC().Format(time.RFC3339))
	d.lock, err = locker.Lock(filepath.ToSlash(filepath.Join(d.path, lockName)), who)
	return err
}

// CheckEnded returns ErrRunning and a description of the process that runs it if the run in a directory is alive. It
// returns nil if the run has ended in any way.
func CheckEnded(path string) (holder string, err error) {
	lock, err := disk.LockShared(filepath.Join(path, lockName))
	var locked *disk.LockedError
	switch {
	case errors.As(err, &locked):
		return holderOf(locked), ErrRunning
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("rundir: check whether the run is alive: %w", err)
	}
	return "", lock.Close()
}

// LockEnded checks that the run in a directory has ended, and prevents it from continuing until hold is closed. It
// shares the locks of the run's parent and coordinator, which a continued run needs exclusively. Like CheckEnded, it
// returns ErrRunning if a process holds one of them.
func LockEnded(path string) (hold io.Closer, holder string, err error) {
	var held locks
	for _, name := range []string{lockName, coordinatorLock} {
		lock, err := disk.LockShared(filepath.Join(path, name))
		var locked *disk.LockedError
		switch {
		case errors.As(err, &locked):
			return nil, holderOf(locked), errors.Join(ErrRunning, held.Close())
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, "", errors.Join(fmt.Errorf("rundir: check whether the run is alive: %w", err), held.Close())
		default:
			held = append(held, lock)
		}
	}
	return held, "", nil
}

// locks is a set of locks that are released together.
type locks []disk.Lock

func (l locks) Close() (err error) {
	for _, lock := range l {
		err = errors.Join(err, lock.Close())
	}
	return err
}

// holderOf describes the holder of a lock for users.
func holderOf(locked *disk.LockedError) string {
	return cmp.Or(strings.ToValidUTF8(locked.Holder, "?"), "an unknown process")
}

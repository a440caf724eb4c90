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

// ErrAlive is returned by Alive for a run that goes on.
var ErrAlive = errors.New("rundir: the run goes on")

// lockName is the file whose lock a run's parent holds while the run goes on. Its line
// tells people who that is.
const lockName = "lock"

// coordinatorLock is the lock of the run's coordinator, which may outlive the parent.
var coordinatorLock = filepath.Join("registry", "facts.lock")

// hold takes the lock of a new run's folder.
func (d *Dir) hold() (err error) {
	locker, ok := disk.OS().(disk.Locker)
	if !ok {
		return nil
	}
	who := fmt.Sprintf("pid %d since %s", os.Getpid(), time.Now().UTC().Format(time.RFC3339))
	d.lock, err = locker.Lock(filepath.ToSlash(filepath.Join(d.path, lockName)), who)
	return err
}

// Alive returns ErrAlive, and for people which process it is, while the run in a folder
// goes on; nil when it has ended, however it did.
func Alive(path string) (holder string, err error) {
	lock, err := disk.Share(filepath.Join(path, lockName))
	var locked *disk.LockedError
	switch {
	case errors.As(err, &locked):
		return holderOf(locked), ErrAlive
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("rundir: whether the run goes on: %w", err)
	}
	return "", lock.Close()
}

// HoldEnded sees that the run in a folder has ended, and keeps it so until it is closed: the locks
// of its parent and of its coordinator are shared, and whoever would go on wants them alone. It
// returns ErrAlive, as Alive does, while somebody has one of them.
func HoldEnded(path string) (hold io.Closer, holder string, err error) {
	var held locks
	for _, name := range []string{lockName, coordinatorLock} {
		lock, err := disk.Share(filepath.Join(path, name))
		var locked *disk.LockedError
		switch {
		case errors.As(err, &locked):
			return nil, holderOf(locked), errors.Join(ErrAlive, held.Close())
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, "", errors.Join(fmt.Errorf("rundir: whether the run goes on: %w", err), held.Close())
		default:
			held = append(held, lock)
		}
	}
	return held, "", nil
}

// locks are locks that are held together.
type locks []disk.Lock

func (l locks) Close() (err error) {
	for _, lock := range l {
		err = errors.Join(err, lock.Close())
	}
	return err
}

// holderOf is for people who has a lock.
func holderOf(locked *disk.LockedError) string {
	return cmp.Or(strings.ToValidUTF8(locked.Holder, "?"), "a process that has not written who it is")
}

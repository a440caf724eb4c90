package rundir

import (
	"errors"
	"fmt"
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

// coordinatorLock is what a run of an older version has instead: its coordinator's.
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
	name := filepath.Join(path, lockName)
	if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
		name = filepath.Join(path, coordinatorLock)
	}
	lock, err := disk.Share(name)
	var locked *disk.LockedError
	switch {
	case errors.As(err, &locked):
		if holder = strings.ToValidUTF8(locked.Holder, "?"); holder == "" {
			holder = "a process that has not written who it is"
		}
		return holder, ErrAlive
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("rundir: whether the run goes on: %w", err)
	}
	return "", lock.Close()
}

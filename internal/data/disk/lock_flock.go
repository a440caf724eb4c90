//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// maxHolder bounds what is read of a holder's line, in bytes.
const maxHolder = 256

// flock is a lock that the kernel gives back however the process ends.
type flock struct {
	f    *os.File
	path string
}

// lockFile takes an flock. The file stays when the lock is released: removing it
// would let two processes hold locks of two files of one name.
func lockFile(path, holder string) (Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, wrap(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = &LockedError{Path: path, Holder: holderOf(f)}
		} else {
			err = fmt.Errorf("disk: lock %s: %w", path, err)
		}
		return nil, both(err, f.Close())
	}
	name(f, holder)
	return flock{f, path}, nil
}

// Share holds the lock of the file at path off everybody who wants it alone, together with
// others who do so, and writes nothing. It gives a LockedError at once while somebody has
// the lock, and fs.ErrNotExist where nobody ever had it. It is the operating system's.
func Share(path string) (Lock, error) {
	f, err := OpenRegular(path)
	if err != nil {
		return nil, wrap(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = &LockedError{Path: path, Holder: holderOf(f)}
		} else {
			err = fmt.Errorf("disk: lock %s: %w", path, err)
		}
		return nil, both(err, f.Close())
	}
	return flock{f, path}, nil
}

// name writes the holder's line into a lock file. It is for people only, so a full
// disk must not keep the lock from its next holder; the line goes over the older
// one, which needs no room. Where it cannot be written, nobody is named.
func name(f *os.File, holder string) {
	line := holder + "\n"
	size := int64(len(line))
	if _, err := f.WriteAt([]byte(line), 0); err != nil {
		size = 0
	}
	_ = f.Truncate(size) // what is behind the line is not read
}

// holderOf reads the line of the process that has a lock file locked.
func holderOf(f *os.File) string {
	var b [maxHolder]byte
	n, _ := f.ReadAt(b[:], 0) // what cannot be read is not told
	line, _, whole := strings.Cut(string(b[:n]), "\n")
	if !whole {
		return ""
	}
	return line
}

func (l flock) Held() error {
	ours, err := l.f.Stat()
	if err != nil {
		return wrap(err)
	}
	now, err := os.Stat(l.path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !os.SameFile(ours, now):
		return fmt.Errorf("disk: lock %s: %w", l.path, errReplaced)
	case err != nil:
		return wrap(err)
	}
	return nil
}

func (l flock) Close() error { return wrap(l.f.Close()) }

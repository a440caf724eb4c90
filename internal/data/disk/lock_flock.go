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

// maxHolderBytes is the max number of bytes read of a holder's line.
const maxHolderBytes = 256

// flock is a lock that the kernel releases however the process ends.
type flock struct {
	f    *os.File
	path string
}

// lockFile acquires an flock. The file remains when the lock is released: if it were removed, two processes could hold
// locks on two files of the same name.
func lockFile(path, holder string) (Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, wrap(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = &LockedError{Path: path, Holder: readHolder(f)}
		} else {
			err = fmt.Errorf("disk: lock %s: %w", path, err)
		}
		return nil, joinErrors(err, f.Close())
	}
	writeHolder(f, holder)
	return flock{f, path}, nil
}

// LockShared acquires a shared lock on the file at path, in the operating system's file system, and writes nothing.
// While it is held, an exclusive Lock fails; other shared locks succeed. If the file is locked exclusively, LockShared
// returns a LockedError immediately. If it has never been locked, it returns fs.ErrNotExist.
func LockShared(path string) (Lock, error) {
	f, err := OpenRegular(path)
	if err != nil {
		return nil, wrap(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = &LockedError{Path: path, Holder: readHolder(f)}
		} else {
			err = fmt.Errorf("disk: lock %s: %w", path, err)
		}
		return nil, joinErrors(err, f.Close())
	}
	return flock{f, path}, nil
}

// writeHolder writes the holder's line into a lock file. The line only informs users, so a full disk must not keep the
// next holder from the lock. The line overwrites the previous one, which needs no space. If it cannot be written, no
// holder is named.
func writeHolder(f *os.File, holder string) {
	line := holder + "\n"
	size := int64(len(line))
	if _, err := f.WriteAt([]byte(line), 0); err != nil {
		size = 0
	}
	_ = f.Truncate(size) // bytes after the line are ignored
}

// readHolder reads the line of the process that holds the lock.
func readHolder(f *os.File) string {
	var b [maxHolderBytes]byte
	n, _ := f.ReadAt(b[:], 0) // an unreadable line is omitted
	line, _, whole := strings.Cut(string(b[:n]), "\n")
	if !whole {
		return ""
	}
	return line
}

func (l flock) CheckHeld() error {
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

//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// lockFile takes an flock, which the kernel gives back however the process
// ends. The file stays when the lock is released: removing it would let two
// processes hold locks of two files of one name.
func lockFile(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, wrap(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = fmt.Errorf("%w, %s", ErrLocked, holder(f))
		}
		return nil, both(fmt.Errorf("disk: lock %s: %w", path, err), f.Close())
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	if err != nil {
		return nil, both(wrap(err), f.Close())
	}
	return f, nil
}

// holder names the process that a held lock file was written by.
func holder(f *os.File) string {
	var b [24]byte
	n, _ := f.ReadAt(b[:], 0) // what cannot be read is said below
	if pid := strings.TrimSpace(string(b[:n])); pid != "" {
		return "pid " + pid
	}
	return "which has not written its pid yet"
}

//go:build darwin || dragonfly || freebsd || linux

package disk

import (
	"path/filepath"

	"golang.org/x/sys/unix"
)

// FreeBytes returns the number of bytes available to unprivileged users in the file system of a file or directory,
// which need not exist yet. known is false if the system does not report it.
func FreeBytes(path string) (bytes int64, known bool) {
	var s unix.Statfs_t
	err := unix.Statfs(path, &s)
	for err == unix.ENOENT && path != filepath.Dir(path) {
		path = filepath.Dir(path)
		err = unix.Statfs(path, &s)
	}
	if err != nil {
		return 0, false
	}
	return int64(s.Bavail) * int64(s.Bsize), true
}

//go:build darwin || dragonfly || freebsd || linux

package disk

import (
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Free returns how many bytes anybody may still use of the file system that a file or
// folder is on, or would be made on; false where the system does not say.
func Free(path string) (bytes int64, known bool) {
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

//go:build !windows && !plan9

package keys

import (
	"io/fs"
	"syscall"
)

// ownerOf returns the user ID of a file's owner, or -1 if it is unknown.
func ownerOf(info fs.FileInfo) int {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid)
	}
	return -1
}

//go:build !windows && !plan9

package keys

import (
	"io/fs"
	"syscall"
)

// ownerOf is the user whose file it is; -1: it is not known.
func ownerOf(info fs.FileInfo) int {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid)
	}
	return -1
}

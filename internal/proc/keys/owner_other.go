//go:build windows || plan9

package keys

import "io/fs"

func ownerOf(fs.FileInfo) int { return -1 }

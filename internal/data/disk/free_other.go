//go:build !(darwin || dragonfly || freebsd || linux)

package disk

// Free returns how many bytes anybody may still use of the file system that a file or
// folder is on, or would be made on; false where the system does not say.
func Free(string) (bytes int64, known bool) { return 0, false }

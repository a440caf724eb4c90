//go:build !(darwin || dragonfly || freebsd || linux)

package disk

// FreeBytes returns the number of bytes available to unprivileged users in the file system of a file or directory,
// which need not exist yet. known is false if the system does not report it.
func FreeBytes(string) (bytes int64, known bool) { return 0, false }

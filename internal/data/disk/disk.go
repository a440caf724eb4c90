// Package disk abstracts the file system. It provides the real one and one in memory that loses unsynced data when it
// crashes.
//
// It makes tests fast and simulates faults: a crash after every write, sync or rename, and a full disk. It contains
// only what durable formats need. Paths use forward slashes. All types are safe for concurrent use.
package disk

import "io"

// FS is a file system.
type FS interface {
	// MkdirAll creates a directory and its parents durably. Existing ones are not an error.
	MkdirAll(path string) error
	// Create creates or truncates a file for writing.
	Create(path string) (File, error)
	// ReadFile returns a file's content. A missing file is fs.ErrNotExist. A file that is not regular or is larger than
	// 1 GiB is ErrCorrupt.
	ReadFile(path string) ([]byte, error)
	// Open opens a file for reading. A missing file is fs.ErrNotExist; one that is not regular is ErrCorrupt.
	Open(path string) (io.ReadCloser, error)
	// List returns the names in a directory, sorted. A missing directory is empty.
	List(path string) ([]string, error)
	// Rename atomically renames oldPath to newPath, replacing it. Both must be in the same directory. The rename is
	// durable only after SyncDir of the directory.
	Rename(oldPath, newPath string) error
	// Link gives a file a second name in its directory; if that name exists, the error is fs.ErrExist. The link is
	// durable only after SyncDir of the directory.
	Link(oldPath, newPath string) error
	// Remove deletes a file. A missing file is not an error.
	Remove(path string) error
	// SyncDir makes creations, renames and removals in a directory durable.
	SyncDir(path string) error
}

// File is a file open for writing. Written data is durable after Sync, and the file's name after FS.SyncDir.
type File interface {
	io.Writer
	Sync() error
	Close() error
}

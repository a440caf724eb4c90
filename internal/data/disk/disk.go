// Package disk abstracts the file system: the real one, and one in memory that loses what was not synced when it
// crashes.
//
// It exists for two reasons: fast tests, and simulated faults (a crash after
// every write, sync or rename; a full disk). Only what durable formats need is
// here. Paths use forward slashes. Safe for concurrent use.
package disk

import "io"

// FS is a file system.
type FS interface {
	// MkdirAll makes a folder and its parents, durably; it is no error if they
	// exist.
	MkdirAll(path string) error
	// Create makes or truncates a file for writing.
	Create(path string) (File, error)
	// ReadFile returns a file's content; a missing file gives fs.ErrNotExist. What is no
	// regular file, and one of more than 1 GiB, is ErrCorrupt.
	ReadFile(path string) ([]byte, error)
	// Open opens a file for reading; a missing file gives fs.ErrNotExist, and what is no
	// regular file ErrCorrupt.
	Open(path string) (io.ReadCloser, error)
	// List returns the names in a folder, sorted; a missing folder is empty.
	List(path string) ([]string, error)
	// Rename replaces newPath by oldPath, atomically. Both must be in the same
	// folder. It is durable only after SyncDir of the folder.
	Rename(oldPath, newPath string) error
	// Link gives a file another name in its folder, which nothing may have yet: else fs.ErrExist.
	// It is durable only after SyncDir of the folder.
	Link(oldPath, newPath string) error
	// Remove deletes a file; a missing file is no error.
	Remove(path string) error
	// SyncDir makes creations, renames and removals in a folder durable.
	SyncDir(path string) error
}

// File is an open file that is being written. What was written is durable
// after Sync, and the file's name after FS.SyncDir.
type File interface {
	io.Writer
	Sync() error
	Close() error
}

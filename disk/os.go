package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
)

// Locker is what a file system offers that can keep other processes out.
type Locker interface {
	// Lock takes the exclusive lock of the file at path, which it makes if need
	// be, until the returned Closer is closed or the process dies. A lock that
	// another holds gives ErrLocked at once, naming the holder's process.
	Lock(path string) (io.Closer, error)
}

// ErrLocked is returned by Lock while somebody else holds the lock.
var ErrLocked = errors.New("locked by another process")

var errAcrossFolders = errors.New("not within one folder")

// OS returns the operating system's file system. It is a Locker too, where the
// system has flock.
func OS() FS { return osFS{} }

type osFS struct{}

// wrap names this package; the os package's errors name the operation and path.
func wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("disk: %w", err)
}

func (osFS) MkdirAll(dir string) error {
	dir = filepath.Clean(filepath.FromSlash(dir))
	var made []string // the folders that are missing, deepest first
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(d); err == nil || d == filepath.Dir(d) {
			break
		}
		made = append(made, d)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return wrap(err)
	}
	for _, d := range made {
		if err := syncDir(filepath.Dir(d)); err != nil {
			return err
		}
	}
	return nil
}

func (osFS) Create(path string) (File, error) {
	f, err := os.Create(filepath.FromSlash(path))
	if err != nil {
		return nil, wrap(err)
	}
	return osFile{f}, nil
}

func (osFS) ReadFile(path string) ([]byte, error) {
	b, err := os.ReadFile(filepath.FromSlash(path))
	return b, wrap(err)
}

func (osFS) Open(path string) (io.ReadCloser, error) {
	f, err := os.Open(filepath.FromSlash(path))
	if err != nil {
		return nil, wrap(err)
	}
	return f, nil
}

func (osFS) List(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.FromSlash(path)) // sorted by name
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, wrap(err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

func (osFS) Rename(oldPath, newPath string) error {
	if path.Dir(oldPath) != path.Dir(newPath) {
		return wrap(&os.LinkError{Op: "rename", Old: oldPath, New: newPath, Err: errAcrossFolders})
	}
	return wrap(os.Rename(filepath.FromSlash(oldPath), filepath.FromSlash(newPath)))
}

func (osFS) Remove(path string) error {
	err := os.Remove(filepath.FromSlash(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return wrap(err)
}

func (osFS) SyncDir(path string) error { return syncDir(filepath.FromSlash(path)) }

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return wrap(err)
	}
	if runtime.GOOS != "windows" { // which cannot sync a folder, and journals it by itself
		err = d.Sync()
	}
	return wrap(both(err, d.Close()))
}

func (osFS) Lock(path string) (io.Closer, error) { return lockFile(filepath.FromSlash(path)) }

type osFile struct{ f *os.File }

func (f osFile) Write(p []byte) (int, error) {
	n, err := f.f.Write(p)
	return n, wrap(err)
}

func (f osFile) Sync() error  { return wrap(f.f.Sync()) }
func (f osFile) Close() error { return wrap(f.f.Close()) }

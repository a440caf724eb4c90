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

// Locker is implemented by file systems that can lock out other processes.
type Locker interface {
	// Lock acquires the exclusive lock of the file at path, creating the file if necessary, until the Lock is closed or
	// the process dies. holder is one line that describes the holder to others. If another process holds the lock, Lock
	// returns a LockedError immediately.
	Lock(path, holder string) (Lock, error)
}

// Lock is a held lock. Close releases it.
type Lock interface {
	io.Closer
	// CheckHeld returns an error once the lock is ineffective, because its file was removed or replaced: other
	// processes would lock a different file.
	CheckHeld() error
}

// LockedError is returned by Locker.Lock while another process holds the lock. It wraps ErrLocked.
type LockedError struct {
	Path   string
	Holder string // the holder's line, unmodified; "" if it could not be read
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("disk: lock %s: %v (%q)", e.Path, ErrLocked, e.Holder)
}

// Unwrap returns ErrLocked.
func (e *LockedError) Unwrap() error { return ErrLocked }

// ErrLocked is wrapped by every LockedError.
var ErrLocked = errors.New("locked by another process")

var errReplaced = errors.New("the lock file was removed or replaced")

var errAcrossDirs = errors.New("not within one directory")

// OS returns the operating system's file system. It is also a Locker, if the system has flock.
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
	var made []string // the missing directories, deepest first
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

func (osFS) createStream(path string) (File, error) {
	f, err := os.Create(filepath.FromSlash(path))
	if err != nil {
		return nil, wrap(err)
	}
	return &stream{f: f}, nil
}

// maxReadBytes is the max size of a file that ReadFile accepts: a registry or a manifest of the largest job has a tenth
// of it.
const maxReadBytes = 1 << 30

func (osFS) ReadFile(path string) ([]byte, error) {
	b, err := ReadRegular(filepath.FromSlash(path), maxReadBytes)
	return b, wrap(err)
}

func (osFS) Open(path string) (io.ReadCloser, error) {
	f, err := OpenRegular(filepath.FromSlash(path))
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
		return wrap(&os.LinkError{Op: "rename", Old: oldPath, New: newPath, Err: errAcrossDirs})
	}
	return wrap(os.Rename(filepath.FromSlash(oldPath), filepath.FromSlash(newPath)))
}

func (osFS) Link(oldPath, newPath string) error {
	if path.Dir(oldPath) != path.Dir(newPath) {
		return wrap(&os.LinkError{Op: "link", Old: oldPath, New: newPath, Err: errAcrossDirs})
	}
	return wrap(os.Link(filepath.FromSlash(oldPath), filepath.FromSlash(newPath)))
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
	if runtime.GOOS != "windows" { // which cannot sync a directory but journals its changes
		err = d.Sync()
	}
	return wrap(joinErrors(err, d.Close()))
}

func (osFS) Lock(path, holder string) (Lock, error) {
	return lockFile(filepath.FromSlash(path), holder)
}

type osFile struct{ f *os.File }

func (f osFile) Write(p []byte) (int, error) {
	n, err := f.f.Write(p)
	return n, wrap(err)
}

func (f osFile) Sync() error  { return wrap(f.f.Sync()) }
func (f osFile) Close() error { return wrap(f.f.Close()) }

package store

import (
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"github.com/perdure/perdure/internal/data/disk"
)

// NewDir returns a store that keeps each object in a file of its name in the directory dir. Files are written under
// temporary names, synced and renamed (disk.WriteFile). Other files in the directory are listed but never changed.
func NewDir(fsys disk.FS, dir string) Store { return dirStore{fsys, dir} }

type dirStore struct {
	fsys disk.FS
	dir  string
}

func (f dirStore) String() string { return f.dir }

func (f dirStore) path(name string) string { return path.Join(f.dir, name) }

func (f dirStore) Prepare() error { return classifyDiskError(f.fsys.MkdirAll(f.dir)) }

func (f dirStore) Put(name string, write func(io.Writer) error) error {
	if err := CheckName(name); err != nil {
		return err
	}
	return classifyDiskError(disk.WriteFile(f.fsys, f.path(name), write))
}

func (f dirStore) PutNew(name string, content []byte) error {
	if err := CheckName(name); err != nil {
		return err
	}
	return classifyDiskError(disk.WriteNewFile(f.fsys, f.path(name), func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	}))
}

// file implements Object.
type file struct {
	io.ReadCloser
	size int64
}

func (f file) Size() int64 { return f.size }

func (f dirStore) Open(name string) (Object, error) {
	size, err := disk.Size(f.fsys, f.path(name))
	if err != nil {
		return nil, classifyDiskError(err)
	}
	r, err := f.fsys.Open(f.path(name))
	if err != nil {
		return nil, classifyDiskError(err)
	}
	return file{r, size}, nil
}

func (f dirStore) List(prefix string) ([]Entry, error) {
	return f.list(func(name string, started bool) bool { return !started && strings.HasPrefix(name, prefix) })
}

func (f dirStore) Unfinished() ([]Entry, error) {
	return f.list(func(_ string, started bool) bool { return started })
}

// maxListAttempts is the max number of attempts to list a directory while files are being deleted.
const maxListAttempts = 10

// list returns the files that wanted accepts. If one disappears before its size is read, another may have replaced it,
// so list starts again.
func (f dirStore) list(wanted func(name string, started bool) bool) (all []Entry, err error) {
	for range maxListAttempts {
		var gone bool
		if all, gone, err = f.listOnce(wanted); err != nil || !gone {
			break
		}
	}
	return all, err
}

func (f dirStore) listOnce(wanted func(name string, started bool) bool) (all []Entry, gone bool, err error) {
	names, err := f.fsys.List(f.dir)
	if err != nil {
		return nil, false, classifyDiskError(err)
	}
	for _, name := range names {
		_, started := disk.ParseTemporary(name)
		if !wanted(name, started) {
			continue
		}
		n, err := disk.Size(f.fsys, f.path(name))
		if errors.Is(err, fs.ErrNotExist) {
			gone = true
			continue
		}
		if err != nil {
			n = -1
		}
		all = append(all, Entry{name, n})
	}
	return all, gone, nil
}

func (f dirStore) Delete(names ...string) error {
	if len(names) == 0 {
		return nil
	}
	for _, name := range names {
		if err := f.fsys.Remove(f.path(name)); err != nil {
			return classifyDiskError(err)
		}
	}
	return f.Sync()
}

func (f dirStore) Sync() error { return classifyDiskError(f.fsys.SyncDir(f.dir)) }

// classifyDiskError classifies an error of a disk.
func classifyDiskError(err error) error {
	switch {
	case err == nil:
	case disk.IsFull(err):
		return WithKind(ErrFull, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return WithKind(ErrDenied, err)
	}
	return err
}

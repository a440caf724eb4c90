package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"sync"

	"github.com/perdure/perdure/disk"
)

// FileVersion is the version of the file format written here.
const FileVersion = 1

// A registry file is a sealed document (see disk.Seal) whose body is the
// revision on a line of its own, and then the registry's document:
//
//	PERDURE REGISTRY <version> bytes <body bytes> crc32c <8 hexadecimal digits>\n
//	revision <decimal>\n
//	<document>
const (
	fileKind       = "REGISTRY"
	revisionPrefix = "revision "
)

// Errors of a registry file, beside disk.ErrLocked while another process has it.
var (
	// ErrCorrupt is wrapped when the file was truncated or changed.
	ErrCorrupt = disk.ErrCorrupt
	// ErrNewerVersion is wrapped when the file's format is not known here yet.
	ErrNewerVersion = disk.ErrNewerVersion

	errClosed = errors.New("registry: closed")
)

type file struct {
	fsys disk.FS
	path string

	mu     sync.Mutex // guards what is below, and the file among this registry's users
	lock   io.Closer  // nil on a file system without locks
	closed bool
}

// OpenFile opens the registry in the file at path, which the first Save makes.
// On a file system with locks it holds the lock of path + ".lock" until Close,
// and refuses with disk.ErrLocked, naming the holder, while another process has
// it. On one without, its user sees to it that there is one writer.
func OpenFile(fsys disk.FS, filePath string) (Registry, error) {
	r := &file{fsys: fsys, path: filePath}
	if err := fsys.MkdirAll(path.Dir(filePath)); err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	if l, ok := fsys.(disk.Locker); ok {
		lock, err := l.Lock(filePath + ".lock")
		if err != nil {
			return nil, fmt.Errorf("registry: %w", err)
		}
		r.lock = lock
	}
	_, _, err := r.read()
	if err == nil && r.lock != nil {
		err = r.removeTemporaries()
	}
	if err != nil {
		_ = r.Close() // the reason is err
		return nil, err
	}
	return r, nil
}

// removeTemporaries deletes what writers of this file left behind when they
// died. Only the lock's holder may: any other's writer may be alive.
func (r *file) removeTemporaries() error {
	dir, base := path.Dir(r.path), path.Base(r.path)
	names, err := r.fsys.List(dir)
	if err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	for _, name := range names {
		if final, ok := disk.TemporaryOf(name); ok && final == base {
			if err := r.fsys.Remove(path.Join(dir, name)); err != nil {
				return fmt.Errorf("registry: %w", err)
			}
		}
	}
	return nil
}

// read returns what the file holds, and makes it durable first: a process that
// died, or a Save that failed, may have renamed the file and not synced its
// folder, and what has been read must not be taken back by a power cut.
func (r *file) read() (doc []byte, revision uint64, err error) {
	if err := r.fsys.SyncDir(path.Dir(r.path)); err != nil {
		return nil, 0, fmt.Errorf("registry: %w", err)
	}
	sealed, err := r.fsys.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("registry: %w", err)
	}
	doc, revision, err = decode(sealed)
	if err != nil {
		return nil, 0, fmt.Errorf("registry: %s: %w", r.path, err)
	}
	return doc, revision, nil
}

func encode(doc []byte, revision uint64) []byte {
	body := fmt.Appendf(nil, "%s%d\n", revisionPrefix, revision)
	return disk.Seal(fileKind, FileVersion, append(body, doc...))
}

func decode(sealed []byte) (doc []byte, revision uint64, err error) {
	body, err := disk.Unseal(fileKind, FileVersion, sealed)
	if err != nil {
		return nil, 0, err
	}
	line, doc, found := bytes.Cut(body, []byte("\n"))
	digits, prefixed := bytes.CutPrefix(line, []byte(revisionPrefix))
	revision, err = strconv.ParseUint(string(digits), 10, 64)
	if !found || !prefixed || err != nil || revision == 0 {
		return nil, 0, fmt.Errorf("%w: it has no revision", ErrCorrupt)
	}
	return doc, revision, nil
}

func (r *file) usable(ctx context.Context) error {
	if r.closed {
		return errClosed
	}
	return ctx.Err()
}

func (r *file) Load(ctx context.Context) ([]byte, uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usable(ctx); err != nil {
		return nil, 0, err
	}
	return r.read()
}

func (r *file) Save(ctx context.Context, doc []byte, previous uint64) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usable(ctx); err != nil {
		return 0, err
	}
	_, revision, err := r.read()
	if err != nil {
		return 0, err
	}
	if revision != previous {
		return 0, conflict(revision, previous)
	}
	sealed := encode(doc, revision+1)
	err = disk.WriteFile(r.fsys, r.path, func(w io.Writer) error {
		_, err := w.Write(sealed)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("registry: save: %w", err)
	}
	return revision + 1, nil
}

func conflict(revision, previous uint64) error {
	return fmt.Errorf("%w: it is at revision %d, not %d", ErrConflict, revision, previous)
}

func (r *file) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	if r.lock == nil {
		return nil
	}
	return r.lock.Close()
}

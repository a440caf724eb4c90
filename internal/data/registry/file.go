package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"sync"
	"time"

	"github.com/perdure/perdure/internal/data/disk"
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

// Errors of a registry file.
var (
	// ErrCorrupt is wrapped when the file was truncated or changed.
	ErrCorrupt = disk.ErrCorrupt
	// ErrOtherVersion is wrapped when a newer or an older version of Perdure wrote the file.
	ErrOtherVersion = disk.ErrOtherVersion
)

// defaultPoll is how often a lock is looked at, as often as a coordinator looks
// at everything else.
const defaultPoll = 100 * time.Millisecond

// File is a registry in a file, seen by one client.
type File struct {
	// Poll is how often a lease looks at its lock; 0: 100 ms. Set it before anything else
	// is called.
	Poll time.Duration

	fsys   disk.FS
	path   string
	closed chan struct{}
	checks sync.WaitGroup // goroutines that look at a lease's lock

	mu    sync.Mutex // guards lease, and keeps saves apart
	lease *fileLease // nil: this client has none
}

// OpenFile opens the registry in the file at path, which the first Save makes.
// Its lease is the lock of path + ".lock". On a file system without locks (see
// disk.Locker) its user sees to it that there is one client.
func OpenFile(fsys disk.FS, filePath string) (*File, error) {
	if err := fsys.MkdirAll(path.Dir(filePath)); err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	r := &File{fsys: fsys, path: filePath, closed: make(chan struct{})}
	if _, _, err := r.read(); err != nil {
		return nil, err
	}
	return r, nil
}

// read returns what the file holds, and makes it durable: whoever has renamed the file may
// have died before the sync of its folder, and what has been read must not be taken back by a
// power cut.
func (r *File) read() (doc []byte, revision uint64, err error) {
	if doc, revision, err = r.peek(new(bytes.Buffer)); err != nil {
		return nil, 0, err
	}
	if err := r.fsys.SyncDir(path.Dir(r.path)); err != nil {
		return nil, 0, fmt.Errorf("registry: %w", err)
	}
	return doc, revision, nil
}

// peek returns what the file holds, perhaps not durable yet, in the given memory.
func (r *File) peek(memory *bytes.Buffer) (doc []byte, revision uint64, err error) {
	f, err := r.fsys.Open(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("registry: %w", err)
	}
	defer f.Close() // only read
	memory.Reset()
	if _, err := memory.ReadFrom(f); err != nil {
		return nil, 0, fmt.Errorf("registry: %w", err)
	}
	doc, revision, err = decode(memory.Bytes())
	if err != nil {
		return nil, 0, fmt.Errorf("registry: %s: %w", r.path, err)
	}
	return doc, revision, nil
}

// head returns what a file has before its document.
func head(doc []byte, revision uint64) []byte {
	line := fmt.Appendf(nil, "%s%d\n", revisionPrefix, revision)
	return append(disk.SealOf(fileKind, FileVersion, line, doc), line...)
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

// Load implements Registry.
func (r *File) Load(ctx context.Context) ([]byte, uint64, error) {
	if err := usable(ctx, r.closed); err != nil {
		return nil, 0, err
	}
	return r.read()
}

func (r *File) ticker() *time.Ticker {
	if r.Poll > 0 {
		return time.NewTicker(r.Poll)
	}
	return time.NewTicker(defaultPoll)
}

// Close implements Registry.
func (r *File) Close() error {
	r.mu.Lock()
	defer r.checks.Wait()
	defer r.mu.Unlock()
	select {
	case <-r.closed:
		return nil
	default:
	}
	close(r.closed)
	return r.end(r.lease)
}

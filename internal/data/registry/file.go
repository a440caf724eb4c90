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

// FileVersion is the version of the file format that this package writes.
const FileVersion = 1

// A registry file is a sealed document (see disk.Seal) whose body is a line with the revision, followed by the
// registry's document:
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
	// ErrCorrupt is wrapped if the file was truncated or changed.
	ErrCorrupt = disk.ErrCorrupt
	// ErrOtherVersion is wrapped if another version of Perdure wrote the file.
	ErrOtherVersion = disk.ErrOtherVersion
)

// defaultPoll is the interval between lock checks, the same as that of the coordinator's other checks.
const defaultPoll = 100 * time.Millisecond

// File is one client of a registry in a file.
type File struct {
	// Poll is the interval at which a lease checks its lock; 0: 100 ms. Set it before calling any method.
	Poll time.Duration

	fsys       disk.FS
	path       string
	closed     chan struct{}
	lockChecks sync.WaitGroup // goroutines that check a lease's lock

	mu    sync.Mutex // guards lease, and serialises saves
	lease *fileLease // nil: this client has no lease
}

// OpenFile opens the registry in the file at path, which the first Save creates. Its lease is the lock of path +
// ".lock". On a file system without locks (see disk.Locker), the caller must ensure that there is only one client.
func OpenFile(fsys disk.FS, filePath string) (*File, error) {
	if err := fsys.MkdirAll(path.Dir(filePath)); err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	r := &File{fsys: fsys, path: filePath, closed: make(chan struct{})}
	if _, _, err := r.readDurable(); err != nil {
		return nil, err
	}
	return r, nil
}

// readDurable returns the contents of the file and makes them durable. The process that renamed the file may have died
// before it synced the directory, and a power failure must not revert a document that was read.
func (r *File) readDurable() (doc []byte, revision uint64, err error) {
	if doc, revision, err = r.readFile(new(bytes.Buffer)); err != nil {
		return nil, 0, err
	}
	if err := r.fsys.SyncDir(path.Dir(r.path)); err != nil {
		return nil, 0, fmt.Errorf("registry: %w", err)
	}
	return doc, revision, nil
}

// readFile returns the contents of the file, which may not be durable yet. It uses the given memory.
func (r *File) readFile(memory *bytes.Buffer) (doc []byte, revision uint64, err error) {
	f, err := r.fsys.Open(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("registry: %w", err)
	}
	defer f.Close() // opened read-only
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

// head returns the bytes that precede the document in a file.
func head(doc []byte, revision uint64) []byte {
	line := fmt.Appendf(nil, "%s%d\n", revisionPrefix, revision)
	return append(disk.SealHeader(fileKind, FileVersion, line, doc), line...)
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
	if err := checkOpen(ctx, r.closed); err != nil {
		return nil, 0, err
	}
	return r.readDurable()
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
	defer r.lockChecks.Wait()
	defer r.mu.Unlock()
	select {
	case <-r.closed:
		return nil
	default:
	}
	close(r.closed)
	return r.endLeaseLocked(r.lease)
}

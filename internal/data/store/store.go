// Package store provides the object store in which a job's processes share checkpoints and slot states. The store can
// be a directory on a disk or a bucket of a remote object store.
//
// Invariants:
//
//   - An object exists completely or not at all, whenever a process, the machine or the network fails. Once Put has
//     returned without an error, the object is durable.
//   - Each name has one writer and one meaning. Only a writer whose first attempt may have failed puts the name again;
//     this replaces the object atomically.
//   - The store has no rename and no locks: processes coordinate by other means.
//   - List returns every object that exists when the call starts. (This holds for all stores with read-after-write
//     consistency; S3 has had it since 2020.)
//
// Package storetest contains the test that every store must pass. All methods may be called concurrently.
package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/data/disk"
)

// Errors that callers distinguish, in addition to fs.ErrNotExist, which is wrapped when an object does not exist. Each
// message states the fault and the store.
var (
	// ErrCorrupt is wrapped when an object cannot be what was stored.
	ErrCorrupt = disk.ErrCorrupt
	// ErrFull is wrapped when the store has no space left; an operator may free some.
	ErrFull = errors.New("full")
	// ErrDenied is wrapped when the store does not permit the operation.
	ErrDenied = errors.New("not permitted")
	// ErrUnavailable is wrapped when the store does not answer, or answers that it is temporarily unavailable.
	ErrUnavailable = errors.New("not reachable")
	// ErrNoBucket is wrapped when the bucket does not exist.
	ErrNoBucket = errors.New("no such bucket")
)

// Store is an object store. Its String method returns the location as shown to users, without secrets.
type Store interface {
	fmt.Stringer
	// Prepare makes the store ready for writing. It creates the directory of a store on a disk.
	Prepare() error
	// Put creates or replaces the object with the bytes that write writes; it calls write once. After an error the
	// previous object is unchanged, except that an error of the last step may leave the new object, complete.
	Put(name string, write func(io.Writer) error) error
	// PutNew creates an object if none of that name exists; otherwise it returns fs.ErrExist and changes nothing. Of
	// several concurrent calls one succeeds. S3 servers without conditional puts are an exception: several may succeed,
	// and the last one's object remains. A caller whose response was lost may find its own object.
	PutNew(name string, content []byte) error
	// Open opens an object for reading from start to end.
	Open(name string) (Object, error)
	// List returns the objects whose names start with prefix, sorted by name.
	List(prefix string) ([]Entry, error)
	// Unfinished returns the unfinished writes. Their writers may be alive and about to finish.
	Unfinished() ([]Entry, error)
	// Delete deletes objects and unfinished writes by name. A missing name is not an error. The deletion is durable
	// when Delete returns; before that, any of them may be gone.
	Delete(names ...string) error
	// Sync makes objects durable that are visible although their Put has not returned: their writer may have died
	// before finishing.
	Sync() error
}

// Object is an open object.
type Object interface {
	io.ReadCloser
	Size() int64 // of the whole object, in bytes
}

// Entry is an object in a store, or an unfinished write.
type Entry struct {
	Name  string
	Bytes int64 // -1 if unknown; may be 0 for an unfinished write
}

// ParseUnfinished returns the name of the object that an unfinished write would create. ok is false for any other name.
func ParseUnfinished(name string) (final string, ok bool) {
	if final, _, ok := strings.Cut(name, UnfinishedMark); ok {
		return final, true
	}
	return disk.ParseTemporary(name)
}

// UnfinishedMark separates the name of an object from the identifier of an unfinished write, in stores where that is
// not a file. No object's name contains it.
const UnfinishedMark = "?"

// Size returns the size of an object.
func Size(s Store, name string) (int64, error) {
	o, err := s.Open(name)
	if err != nil {
		return 0, err
	}
	n := o.Size()
	return n, o.Close()
}

// WithNames is a store whose listings also contain the given names, if the objects exist, even if the store's own
// listing lacks them.
type WithNames struct {
	Store
	Names []string
}

// List returns the store's listing with the additional names.
func (s WithNames) List(prefix string) ([]Entry, error) {
	all, err := s.Store.List(prefix)
	for _, name := range s.Names {
		there := slices.ContainsFunc(all, func(e Entry) bool { return e.Name == name })
		if err != nil || there || !strings.HasPrefix(name, prefix) {
			continue
		}
		n, bad := Size(s.Store, name)
		if bad == nil {
			all = append(all, Entry{Name: name, Bytes: n})
		} else if !errors.Is(bad, fs.ErrNotExist) {
			err = bad
		}
	}
	return all, err
}

// maxReadBytes is the max size of an object that Read accepts. The manifest of the largest job has a tenth of it.
const maxReadBytes = 1 << 30

// Read returns the content of an object of at most 1 GiB.
func Read(s Store, name string) ([]byte, error) {
	o, err := s.Open(name)
	if err != nil {
		return nil, err
	}
	b, err := []byte(nil), fmt.Errorf("%s/%s: %w: it has more than %d bytes", s, name, ErrCorrupt,
		int64(maxReadBytes))
	if o.Size() <= maxReadBytes {
		b, err = io.ReadAll(o)
	}
	if closeErr := o.Close(); err == nil {
		err = closeErr
	}
	return b, err
}

// Retryable reports whether an error may be temporary, perhaps until an operator frees space, so that a retry is
// worthwhile.
func Retryable(err error) bool {
	return errors.Is(err, ErrFull) || errors.Is(err, ErrUnavailable) || disk.IsFull(err)
}

// WithKind returns an error with err's message that also matches kind.
func WithKind(kind, err error) error {
	if err == nil || kind == nil || errors.Is(err, kind) {
		return err
	}
	return kindError{err, kind}
}

type kindError struct {
	error
	kind error
}

func (k kindError) Unwrap() []error { return []error{k.error, k.kind} }

var validName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,199}$`)

// CheckName returns an error unless name is valid in every store.
func CheckName(name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("store: invalid object name %q: %w", name, fs.ErrInvalid)
	}
	return nil
}

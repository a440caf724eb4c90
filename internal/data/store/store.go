// Package store keeps whole objects under names: what a job's processes share of its checkpoints. An
// object store is all that they need of a disk, and a bucket far away can be one, too.
//
// Invariants:
//
//   - an object is there whole or not at all, whenever a process, the machine or the network stops;
//     what Put has returned without an error stays there;
//   - a name has one writer and one meaning. Putting it again is for the writer whose first try may
//     have come to nothing, and replaces what is there, whole;
//   - nothing is renamed, and nobody locks anything: what there is to be agreed on is agreed on elsewhere;
//   - what is listed is all that is there when the call begins. (All stores that are read after a
//     write as it was written list so, too: S3 does since 2020.)
//
// Package storetest has the test that every store passes. All methods may be called concurrently.
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

// Errors that callers tell apart, beside fs.ErrNotExist, which is wrapped when there is no such
// object. Each message says what is wrong and where.
var (
	// ErrCorrupt is wrapped when what is there cannot be what was put.
	ErrCorrupt = disk.ErrCorrupt
	// ErrFull is wrapped when there is no room: somebody may make some.
	ErrFull = errors.New("full")
	// ErrDenied is wrapped when the store lets this process not do that.
	ErrDenied = errors.New("not permitted")
	// ErrAway is wrapped when the store does not answer, or says that it cannot do so now.
	ErrAway = errors.New("not reachable")
	// ErrNoBucket is wrapped when the place itself is not there.
	ErrNoBucket = errors.New("no such bucket")
)

// Store keeps objects. Its String says where it is, as people are told it, without what is secret.
type Store interface {
	fmt.Stringer
	// Prepare sees to it that objects can be put: it makes the place where that is the store's to do.
	Prepare() error
	// Put makes an object of what write writes, which is called once, or replaces it. After an error
	// the object is as it was; only when the last of it failed may it be there, whole.
	Put(name string, write func(io.Writer) error) error
	// PutNew makes an object where there is none of that name: else it is fs.ErrExist, and what is there
	// stays. Of several who do so at once one succeeds; only with servers of S3 that know no conditional
	// puts several may, and the last one's stays. Whose answer was lost may find his own there.
	PutNew(name string, content []byte) error
	// Open opens an object to be read from its beginning to its end.
	Open(name string) (Object, error)
	// List returns what objects there are whose names begin so, by their names.
	List(prefix string) ([]Entry, error)
	// Begun returns what writers have begun to put. Those that live may be about to end it.
	Begun() ([]Entry, error)
	// Delete deletes objects, and what was begun, by their names. What is not there is no error. It is
	// durable when it returns; before that any of them may be gone.
	Delete(names ...string) error
	// Sync makes durable what is seen though its Put has not returned: whoever was putting it may
	// have died just then.
	Sync() error
}

// Object is an open object.
type Object interface {
	io.ReadCloser
	Size() int64 // in bytes, of all of it
}

// Entry is an object that a store has, or what was begun to become one.
type Entry struct {
	Name  string
	Bytes int64 // -1: it cannot be read; of what was only begun it may be 0
}

// BegunOf returns the name of the object that something was to become which was only begun. It is
// false for any other name.
func BegunOf(name string) (final string, ok bool) {
	if final, _, ok := strings.Cut(name, BegunMark); ok {
		return final, true
	}
	return disk.TemporaryOf(name)
}

// BegunMark stands between the name of an object and what tells beginnings of it apart, where they are no files: no
// name of an object has it.
const BegunMark = "?"

// Size returns the size of an object.
func Size(s Store, name string) (int64, error) {
	o, err := s.Open(name)
	if err != nil {
		return 0, err
	}
	n := o.Size()
	return n, o.Close()
}

// Named is a store whose lists have some names more, of objects that it has, though its own list lacks them.
type Named struct {
	Store
	Names []string
}

// List returns what objects there are.
func (s Named) List(prefix string) ([]Entry, error) {
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

// mostRead is how large an object may be that is read as a whole: a manifest of the largest job has
// a tenth of it.
const mostRead = 1 << 30

// Read returns the content of an object, which has at most 1 GiB.
func Read(s Store, name string) ([]byte, error) {
	o, err := s.Open(name)
	if err != nil {
		return nil, err
	}
	b, err := []byte(nil), fmt.Errorf("%s/%s: %w: it has more than the %d bytes that are read", s, name, ErrCorrupt,
		int64(mostRead))
	if o.Size() <= mostRead {
		b, err = io.ReadAll(o)
	}
	if closeErr := o.Close(); err == nil {
		err = closeErr
	}
	return b, err
}

// Passes reports whether an error may pass by itself, or when somebody makes room, however long it
// takes: then it is worth trying again.
func Passes(err error) bool {
	return errors.Is(err, ErrFull) || errors.Is(err, ErrAway) || disk.Full(err)
}

// Kind returns an error that reads like err, and is kind, too.
func Kind(kind, err error) error {
	if err == nil || kind == nil || errors.Is(err, kind) {
		return err
	}
	return kinded{err, kind}
}

type kinded struct {
	error
	kind error
}

func (k kinded) Unwrap() []error { return []error{k.error, k.kind} }

var named = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,199}$`)

// CheckName reports what no store takes as a name.
func CheckName(name string) error {
	if !named.MatchString(name) {
		return fmt.Errorf("store: %q cannot be the name of an object: %w", name, fs.ErrInvalid)
	}
	return nil
}

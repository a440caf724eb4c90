package registry

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/perdure/perdure"
)

// Catalog is one client's access to a registry of many jobs, each of which has a name and a registry of its own. What
// the documents of a job mean its users know; the catalog keeps apart who may write which. All methods are safe for
// concurrent use. Implementations pass one conformance suite.
type Catalog interface {
	// Create records a job. A name that another job has gives ErrTaken. After an error that is no answer it may be
	// tried again with the same record, and succeeds where it did the first time.
	Create(ctx context.Context, name string, record []byte) error
	// List returns all jobs, in the order of their names, as they were at one moment or, in a folder, one after
	// another.
	List(ctx context.Context) ([]Entry, error)
	// Find returns one job; ErrNoJob: there is none of that name.
	Find(ctx context.Context, name string) (Entry, error)
	// Wish replaces what people want of a job. Anybody may, whoever has the lease. ErrNoJob: the job is no longer the
	// one that has this record.
	Wish(ctx context.Context, name string, record, wish []byte) error
	// Remove takes a job away with all that it has. ErrNoJob: it is no longer the one that has this record; ErrHeld:
	// somebody has its lease.
	Remove(ctx context.Context, name string, record []byte) error
	// Open opens the registry of a job. Whoever has acquired its lease looks with Find whether the job is still
	// there: from then on nobody removes it, as long as the lease lasts.
	Open(ctx context.Context, name string) (Post, error)
	Close() error
}

// Entry is what a catalog says of a job, without the document of its registry.
type Entry struct {
	Name   string
	Record []byte // what was asked for; it never changes
	State  []byte // what its leader has published last; nil: nobody has
	Wish   []byte // what people want; nil: nothing
	Holder string // of the lease, for people (see NameOf); "": nobody has it
	Err    error  // of a list: why this one cannot be read
}

// Post is the registry of a job in a catalog: a place for one leader.
type Post interface {
	Registry
	// Publish replaces what everybody is told of the job. Only who has the lease of this Post may: else it gives
	// ErrLost. What it says is durable when Publish returns, and is never replaced by what was published before.
	Publish(ctx context.Context, state []byte) error
	// Wish returns what people want of the job; nil: nothing.
	Wish(ctx context.Context) ([]byte, error)
}

// Limits of what a catalog keeps of a job beside its registry: all of it is read for a list.
const (
	MostRecord = 64 << 10
	mostName   = 63
)

var (
	// ErrTaken is returned by Create when another job has the name.
	ErrTaken = errors.New("registry: the name is taken")
	// ErrNoJob is returned for a name that no job has, and for a job that is no longer there.
	ErrNoJob = errors.New("registry: there is no such job")
)

var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

// CheckName refuses what can be no name of a job: it is a label as of DNS, so that it can be a part of any other name.
func CheckName(name string) error {
	if len(name) > mostName || !label.MatchString(name) {
		return fmt.Errorf("%w: %q can be no job's name; choose up to %d small letters, digits and dashes, the first "+
			"and the last no dash", perdure.ErrUsage, shortened(name), mostName)
	}
	return nil
}

// shortened is what a message shows of a name.
func shortened(name string) string {
	if len(name) > mostName+1 {
		return name[:mostName] + "…"
	}
	return name
}

// CheckRecord refuses a record that no catalog takes.
func CheckRecord(record []byte) error {
	if len(record) == 0 || len(record) > MostRecord {
		return fmt.Errorf("%w: a job's record has %d bytes; a registry takes 1 to %d", perdure.ErrUsage, len(record),
			MostRecord)
	}
	return nil
}

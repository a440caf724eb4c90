package store

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"

	"github.com/perdure/perdure/internal/data/disk"
)

// Driver opens the stores of one scheme, such as s3. Its package calls Register, and a program that is to have it
// imports that package, as it would a driver of package database/sql.
type Driver struct {
	// Clean checks a location and returns it as it is always written. Its error repeats nothing that may be secret.
	Clean func(text string) (string, error)
	// Open returns the store at a location that Clean has returned. Nothing is asked of it yet. Its calls end with ctx.
	Open func(ctx context.Context, text string) (Store, error)
}

var drivers = map[string]Driver{} // by scheme; complete once the program's packages are initialised

// Register adds the driver of a scheme. Only init functions call it.
func Register(scheme string, d Driver) { drivers[scheme] = d }

// packages are those that programs import to have a driver, by scheme.
var packages = map[string]string{"s3": "github.com/perdure/perdure/store/s3"}

// ErrNoDriver is wrapped when a location is right and the program has no driver for it.
var ErrNoDriver = errors.New("no driver")

// Location is where a store is, as people write it: file:///DIR, or s3://BUCKET/PREFIX.
type Location struct {
	dir  string // "": a driver opens it
	text string
}

const fileScheme = "file"

// IsLocation reports whether somebody has written a location, and not the name of a folder.
func IsLocation(text string) bool {
	scheme, _, found := strings.Cut(text, "://")
	return found && (scheme == fileScheme || packages[scheme] != "")
}

var errForm = errors.New("a store is file:///DIR or s3://BUCKET/PREFIX?endpoint=URL&region=NAME")

// ParseLocation reads a location. Its error says what is wrong, and repeats nothing that may be secret.
func ParseLocation(text string) (Location, error) {
	scheme, _, _ := strings.Cut(text, "://")
	if d, has := drivers[scheme]; has {
		clean, err := d.Clean(text)
		return Location{text: clean}, err
	}
	if from := packages[scheme]; from != "" {
		return Location{}, fmt.Errorf("%w for %s:// stores in this program: import _ %q", ErrNoDriver, scheme, from)
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != fileScheme || u.Host != "" || !path.IsAbs(u.Path) || u.RawQuery != "" ||
		u.Fragment != "" || u.User != nil {
		return Location{}, errForm
	}
	return FolderLocation(u.Path), nil
}

// OpenLocation opens a store that is where a text says.
func OpenLocation(ctx context.Context, where string) (Store, error) {
	l, err := ParseLocation(where)
	if err != nil {
		return nil, err
	}
	return l.Open(ctx)
}

// FolderLocation is the location of a store in a folder, by its path from the root on.
func FolderLocation(dir string) Location {
	dir = path.Clean(dir)
	return Location{dir: dir, text: (&url.URL{Scheme: fileScheme, Path: dir}).String()}
}

// String is the location as ParseLocation reads it.
func (l Location) String() string { return l.text }

// Folder returns the folder that the store is in, if it is in one.
func (l Location) Folder() (dir string, is bool) { return l.dir, l.dir != "" }

// Open returns the store that is there. Nothing is asked of it yet. Its calls end with ctx.
func (l Location) Open(ctx context.Context) (Store, error) {
	if l.dir != "" {
		return Folder(disk.OS(), l.dir), nil
	}
	scheme, _, _ := strings.Cut(l.text, "://")
	return drivers[scheme].Open(ctx, l.text)
}

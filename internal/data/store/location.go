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

// Driver opens the stores of one URL scheme, such as s3. Its package calls Register. A program that needs a driver
// imports the package, as with drivers of package database/sql.
type Driver struct {
	// Clean checks a location and returns it in canonical form. Its error repeats no part that may be secret.
	Clean func(text string) (string, error)
	// Open returns the store at a location that Clean has returned. It sends no request. Requests of the store end with
	// ctx.
	Open func(ctx context.Context, text string) (Store, error)
}

var drivers = map[string]Driver{} // by scheme; complete after package initialisation

// Register adds the driver of a scheme. It may be called only by init functions.
func Register(scheme string, d Driver) { drivers[scheme] = d }

// packages maps a scheme to the package that a program must import for its driver.
var packages = map[string]string{"s3": "github.com/perdure/perdure/store/s3"}

// ErrNoDriver is wrapped when a location is valid but the program has no driver for its scheme.
var ErrNoDriver = errors.New("no driver")

// Location is the URL of a store: file:///DIR, or s3://BUCKET/PREFIX.
type Location struct {
	dir  string // directory; "" if a driver opens the store
	text string
}

const fileScheme = "file"

// IsLocation reports whether text is a location and not a directory name.
func IsLocation(text string) bool {
	scheme, _, found := strings.Cut(text, "://")
	return found && (scheme == fileScheme || packages[scheme] != "")
}

var errForm = errors.New("invalid store location; write file:///DIR or s3://BUCKET/PREFIX?endpoint=URL&region=NAME")

// ParseLocation parses a location. Its error states what is wrong but repeats no part that may be secret.
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
	return DirLocation(u.Path), nil
}

// OpenLocation opens the store at a location given as text.
func OpenLocation(ctx context.Context, where string) (Store, error) {
	l, err := ParseLocation(where)
	if err != nil {
		return nil, err
	}
	return l.Open(ctx)
}

// DirLocation returns the location of a store in a directory, given its absolute path.
func DirLocation(dir string) Location {
	dir = path.Clean(dir)
	return Location{dir: dir, text: (&url.URL{Scheme: fileScheme, Path: dir}).String()}
}

// String returns the location in the form that ParseLocation accepts.
func (l Location) String() string { return l.text }

// Dir returns the store's directory; is reports whether it has one.
func (l Location) Dir() (dir string, is bool) { return l.dir, l.dir != "" }

// Open returns the store at the location. It sends no request. Requests of the store end with ctx.
func (l Location) Open(ctx context.Context) (Store, error) {
	if l.dir != "" {
		return NewDir(disk.OS(), l.dir), nil
	}
	scheme, _, _ := strings.Cut(l.text, "://")
	return drivers[scheme].Open(ctx, l.text)
}

package registry

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
)

// Driver opens the registries of one scheme, such as etcd. Its package calls Register, and a program that is to have it
// imports that package, as it would a driver of package database/sql.
type Driver struct {
	// Parse returns a location as messages have it, and what tells its registry apart from all others. Its error is a
	// perdure.ErrUsage in one line, which repeats nothing that may be secret.
	Parse func(text string) (shown, identity string, err error)
	// Open opens the registry. Nothing is asked of it yet, which may be away.
	Open func(ctx context.Context, text string) (Registry, error)
}

var drivers = map[string]Driver{} // by scheme; complete once the program's packages are initialised

// Register adds the driver of a scheme. Only init functions call it.
func Register(scheme string, d Driver) { drivers[scheme] = d }

// Location is where a registry is, as people write it: the path of a file, or etcd://HOST:PORT,…/PREFIX.
type Location struct {
	text, shown, identity string
	isFile                bool
}

var scheme = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://`)

// ParseLocation reads a location. Its error is a perdure.ErrUsage in one line, which repeats nothing that may be
// secret.
func ParseLocation(text string) (Location, error) {
	begin, _, _ := strings.Cut(text, "://")
	switch d, has := drivers[begin]; {
	case has && scheme.MatchString(text):
		shown, identity, err := d.Parse(text)
		return Location{text: text, shown: shown, identity: identity}, err
	case text == "" || scheme.MatchString(text):
		return Location{}, fmt.Errorf("%w: a registry is the path of a file, or etcd://HOST:PORT,HOST:PORT/PREFIX",
			perdure.ErrUsage)
	}
	return Location{text: text, shown: text, identity: text, isFile: true}, nil
}

// String is the location as messages have it.
func (l Location) String() string { return l.shown }

// File returns the path of the file that the registry is in, if it is in one. Only processes of one machine share that.
func (l Location) File() (path string, is bool) {
	if !l.isFile {
		return "", false
	}
	return l.text, true
}

// Identity is what tells the registry apart from all others: of one in etcd its prefix. Its members are no part of it,
// which some name in another order than others, or in part.
func (l Location) Identity() string { return l.identity }

// Open opens the registry that is there. Of etcd nothing is asked yet, which may be away.
func (l Location) Open(ctx context.Context) (Registry, error) {
	if !l.isFile {
		begin, _, _ := strings.Cut(l.text, "://")
		return drivers[begin].Open(ctx, l.text)
	}
	r, err := OpenFile(disk.OS(), l.text)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// OpenLocation opens the registry at a location, as people write it.
func OpenLocation(ctx context.Context, text string) (Registry, error) {
	l, err := ParseLocation(text)
	if err != nil {
		return nil, err
	}
	return l.Open(ctx)
}

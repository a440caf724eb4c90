package registry

import (
	"context"
	"regexp"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
)

// Driver opens the registries of one URL scheme, such as etcd. Its package calls Register. Programs import that package
// for its side effect, as with drivers of database/sql.
type Driver struct {
	// Parse returns the location for messages, and an identity that distinguishes its registry from all others. The
	// error is a one-line perdure.ErrUsage without secrets.
	Parse func(text string) (shown, identity string, err error)
	// Open opens the registry. It does not contact the service yet, which may be unavailable.
	Open func(ctx context.Context, text string) (Registry, error)
}

var drivers = map[string]Driver{} // by scheme; complete after package initialisation

// Register adds the driver of a scheme. It must be called only from init functions.
func Register(scheme string, d Driver) { drivers[scheme] = d }

// Location is the location of a registry as written by users: the path of a file, or etcd://HOST:PORT,…/PREFIX.
type Location struct {
	text, display, identity string
	isFile                  bool
}

var scheme = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://`)

// ParseLocation parses a location. The error is a one-line perdure.ErrUsage without secrets.
func ParseLocation(text string) (Location, error) {
	start, _, _ := strings.Cut(text, "://")
	switch d, has := drivers[start]; {
	case has && scheme.MatchString(text):
		shown, identity, err := d.Parse(text)
		return Location{text: text, display: shown, identity: identity}, err
	case text == "" || scheme.MatchString(text):
		return Location{},
			perdure.Usagef("invalid registry location; write the path of a file, or etcd://HOST:PORT,HOST:PORT/PREFIX")
	}
	return Location{text: text, display: text, identity: text, isFile: true}, nil
}

// String returns the location for messages.
func (l Location) String() string { return l.display }

// File returns the path of the registry's file, if it is in a file. Only processes on one machine can share it.
func (l Location) File() (path string, is bool) {
	if !l.isFile {
		return "", false
	}
	return l.text, true
}

// Identity distinguishes the registry from all others. For etcd it is the prefix, without the members, because users
// may list these in different orders or incompletely.
func (l Location) Identity() string { return l.identity }

// Open opens the registry. It does not contact etcd yet, so etcd may be unavailable.
func (l Location) Open(ctx context.Context) (Registry, error) {
	if !l.isFile {
		start, _, _ := strings.Cut(l.text, "://")
		return drivers[start].Open(ctx, l.text)
	}
	r, err := OpenFile(disk.OS(), l.text)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// OpenLocation opens the registry at a location as written by users.
func OpenLocation(ctx context.Context, text string) (Registry, error) {
	l, err := ParseLocation(text)
	if err != nil {
		return nil, err
	}
	return l.Open(ctx)
}

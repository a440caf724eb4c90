// Package location says where a registry is, as people write it: the path of a file, or etcd://HOST:PORT,…/PREFIX.
// It is the one package that knows all kinds of registries; whoever has a registry needs none of them.
package location

import (
	"cmp"
	"context"
	"fmt"
	"regexp"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/registry/etcd"
)

// Location is where a registry is.
type Location struct {
	file    string // "": in etcd
	address string
	shown   string
	prefix  string
}

var scheme = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://`)

// Parse reads a location. Its error is a perdure.ErrUsage in one line, which repeats nothing that may be secret.
func Parse(text string) (Location, error) {
	switch {
	case etcd.Is(text):
		a, err := etcd.Parse(text)
		return Location{address: text, shown: a.String(), prefix: a.Prefix()}, err
	case text == "" || scheme.MatchString(text):
		return Location{}, fmt.Errorf("%w: a registry is the path of a file, or etcd://HOST:PORT,HOST:PORT/PREFIX",
			perdure.ErrUsage)
	}
	return Location{file: text, shown: text}, nil
}

// String is the location as messages have it.
func (l Location) String() string { return l.shown }

// File returns the path of the file that the registry is in, if it is in one. Only processes of one machine share that.
func (l Location) File() (path string, is bool) { return l.file, l.file != "" }

// Identity is what tells the registry apart from all others: of one in etcd its prefix. Its members are no part of it,
// which some name in another order than others, or in part.
func (l Location) Identity() string { return cmp.Or(l.file, l.prefix) }

// Open opens the registry that is there. Of etcd nothing is asked yet, which may be away.
func (l Location) Open(ctx context.Context) (registry.Registry, error) {
	if l.file == "" {
		return closable(etcd.Open(ctx, l.address))
	}
	return closable(registry.OpenFile(disk.OS(), l.file))
}

// closable makes no registry of one that was not opened.
func closable[R registry.Registry](r R, err error) (registry.Registry, error) {
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Open opens the registry at a location, as people write it.
func Open(ctx context.Context, text string) (registry.Registry, error) {
	l, err := Parse(text)
	if err != nil {
		return nil, err
	}
	return l.Open(ctx)
}

// Package location says where a store is, as people write it: file:///DIR, or s3://BUCKET/PREFIX. It is the
// one package that knows all kinds of stores; whoever has a store needs none of them.
package location

import (
	"context"
	"errors"
	"net/url"
	"path"
	"strings"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/store/s3"
)

// Location is where a store is.
type Location struct {
	dir    string // "": in a bucket
	bucket s3.Address
}

const fileScheme = "file"

// Is reports whether somebody has written a location, and not the name of a folder.
func Is(text string) bool {
	return strings.HasPrefix(text, fileScheme+"://") || strings.HasPrefix(text, s3.Scheme+"://")
}

var errForm = errors.New("a store is file:///DIR or s3://BUCKET/PREFIX?endpoint=URL&region=NAME")

// Parse reads a location. Its error says what is wrong, and repeats nothing that may be secret.
func Parse(text string) (Location, error) {
	if strings.HasPrefix(text, s3.Scheme+"://") {
		a, err := s3.Parse(text)
		return Location{bucket: a}, err
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != fileScheme || u.Host != "" || !path.IsAbs(u.Path) || u.RawQuery != "" ||
		u.Fragment != "" || u.User != nil {
		return Location{}, errForm
	}
	return Location{dir: path.Clean(u.Path)}, nil
}

// Open opens a store that is where a text says.
func Open(ctx context.Context, where string) (store.Store, error) {
	l, err := Parse(where)
	if err != nil {
		return nil, err
	}
	return l.Open(ctx)
}

// OfFolder is the location of a store in a folder, by its path from the root on.
func OfFolder(dir string) Location { return Location{dir: path.Clean(dir)} }

// String is the location as Parse reads it.
func (l Location) String() string {
	if l.dir == "" {
		return l.bucket.String()
	}
	return (&url.URL{Scheme: fileScheme, Path: l.dir}).String()
}

// Folder returns the folder that the store is in, if it is in one.
func (l Location) Folder() (dir string, is bool) { return l.dir, l.dir != "" }

// Open returns the store that is there. Nothing is asked of it yet. Its calls end with ctx.
func (l Location) Open(ctx context.Context) (store.Store, error) {
	if l.dir == "" {
		return s3.Open(ctx, l.bucket, s3.Options{})
	}
	return store.Folder(disk.OS(), l.dir), nil
}

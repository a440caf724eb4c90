// Package runs lists, shows, compares, exports and deletes runs by their folders, and computes what one costs with
// a list of prices.
//
// A Run is read as it is: one that is damaged or half-written is a line that says so, among the
// others, and none is averaged away. Nothing is changed but by Remove, which deletes ended runs
// only. Nothing here is shared; a Run is not changed once it was read.
package runs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/rundir"
)

// deepest is how many folders below one that is named runs are looked for.
const deepest = 4

// Find reads the runs that are named: each is a run's folder, or has some below it, four folders deep
// at most. They come in the order of the names, and below one by their paths.
func Find(names []string) (all []*Run, err error) {
	for _, name := range names {
		found, err := foldersIn(name, deepest)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("%w: there is no folder %s", perdure.ErrUsage, name)
		case err != nil:
			return nil, fmt.Errorf("%w: cannot look for runs in %s: %w", perdure.ErrUsage, name, cause(err))
		case len(found) == 0:
			return nil, fmt.Errorf("%w: there is no run in %s: a run's folder has a %s", perdure.ErrUsage, name,
				rundir.RunFile)
		}
		for _, folder := range found {
			if !slices.ContainsFunc(all, func(r *Run) bool { return r.Folder == folder }) {
				all = append(all, Read(folder))
			}
		}
	}
	return all, nil
}

// One reads the one run that a folder is.
func One(folder string) (*Run, error) {
	if _, err := os.Stat(filepath.Join(folder, rundir.RunFile)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w: %s is no run's folder: it has no %s", perdure.ErrUsage, folder, rundir.RunFile)
		}
		return nil, fmt.Errorf("%w: %w", perdure.ErrUsage, err)
	}
	return Read(filepath.Clean(folder)), nil
}

// foldersIn returns the runs' folders in one, or itself. What is in a run's folder is that run's.
func foldersIn(folder string, deep int) (found []string, err error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == rundir.RunFile && !e.IsDir() }) {
		return []string{filepath.Clean(folder)}, nil
	}
	for _, e := range entries {
		if !e.IsDir() || deep == 0 {
			continue
		}
		below, err := foldersIn(filepath.Join(folder, e.Name()), deep-1)
		if err != nil {
			return nil, err
		}
		found = append(found, below...)
	}
	return found, nil
}

// cause is what the system said of a file.
func cause(err error) error {
	if at := (*fs.PathError)(nil); errors.As(err, &at) {
		return fmt.Errorf("%s: %w", at.Path, at.Err)
	}
	return err
}

// Package runs lists, shows, exports and deletes runs by their directories, and computes their cost with a
// list of prices.
//
// A damaged or incomplete run is read as far as possible and appears in lists with its problem. Only Remove changes
// files, and it deletes only runs that have ended. The package has no shared state, and a Run does not change after it
// was read.
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

// maxDepth is how many levels below a named directory runs are searched for.
const maxDepth = 4

// Find reads the named runs. Each name is a run's directory, or a directory with runs at most four levels below. The
// runs are in the order of the names, and below one name sorted by path.
func Find(names []string) (all []*Run, err error) {
	for _, name := range names {
		found, err := runDirsIn(name, maxDepth)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, perdure.Usagef("the directory %s does not exist", name)
		case err != nil:
			return nil, perdure.Usagef("cannot look for runs in %s: %w", name, cause(err))
		case len(found) == 0:
			return nil, perdure.Usagef("there is no run in %s: a run's directory has a %s", name, rundir.RunFile)
		}
		for _, dir := range found {
			if !slices.ContainsFunc(all, func(r *Run) bool { return r.Folder == dir }) {
				all = append(all, Read(dir))
			}
		}
	}
	return all, nil
}

// One reads the run in a directory.
func One(dir string) (*Run, error) {
	if _, err := os.Stat(filepath.Join(dir, rundir.RunFile)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, perdure.Usagef("%s is not a run's directory: it has no %s", dir, rundir.RunFile)
		}
		return nil, perdure.Usagef("%w", err)
	}
	return Read(filepath.Clean(dir)), nil
}

// runDirsIn returns the run directories in a directory, or the directory itself. It does not descend into runs.
func runDirsIn(dir string, deep int) (found []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == rundir.RunFile && !e.IsDir() }) {
		return []string{filepath.Clean(dir)}, nil
	}
	for _, e := range entries {
		if !e.IsDir() || deep == 0 {
			continue
		}
		below, err := runDirsIn(filepath.Join(dir, e.Name()), deep-1)
		if err != nil {
			return nil, err
		}
		found = append(found, below...)
	}
	return found, nil
}

// cause returns the operating system's error with the path.
func cause(err error) error {
	if at, is := errors.AsType[*fs.PathError](err); is {
		return fmt.Errorf("%s: %w", at.Path, at.Err)
	}
	return err
}

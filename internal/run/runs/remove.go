package runs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/rundir"
)

// Remove deletes a run that has ended. What somebody else has put into its folder stays, and so does what
// the run has in a store elsewhere: both are said.
func (r *Run) Remove(out io.Writer, dry bool) error {
	bytes := size(r.Folder)
	if dry {
		holder, err := rundir.Alive(r.Folder)
		if errors.Is(err, rundir.ErrAlive) {
			return goesOn(r.Folder, " in "+holder)
		} else if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s would be deleted: %s, %s\n", r.Folder, r.State, sizeText(bytes))
		return nil
	}
	left, holder, err := rundir.Remove(r.Folder)
	switch {
	case errors.Is(err, rundir.ErrAlive):
		return goesOn(r.Folder, " in "+holder)
	case err != nil:
		return err
	}
	fmt.Fprintf(out, "%s is deleted: %s\n", r.Folder, sizeText(bytes-size(r.Folder)))
	if len(left) > 0 {
		fmt.Fprintf(out, "%s stays: it has %s, which no run has written\n", r.Folder, strings.Join(left, ", "))
	}
	if at := r.Settings.Checkpoints.Store; at != "" {
		fmt.Fprintf(out, "its checkpoints stay in %s: delete them there\n", at)
	}
	return nil
}

func goesOn(folder, where string) error {
	return fmt.Errorf("%w: the run in %s goes on%s; end it first: perdure stop --run %s", perdure.ErrUsage, folder,
		where, folder)
}

// size is how many bytes are in a folder.
func size(folder string) (bytes int64) {
	_ = filepath.WalkDir(folder, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil // what cannot be looked at is not counted
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			bytes += info.Size()
		}
		return nil
	})
	return bytes
}

func sizeText(n int64) string {
	if n < 1e6 {
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/1e6)
}

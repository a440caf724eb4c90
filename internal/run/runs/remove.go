package runs

import (
	"errors"
	"io"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/rundir"
)

// removeResult is the result of deleting a run, for programs.
type removeResult struct {
	Folder  string   `json:"folder"`
	State   State    `json:"state"`
	Deleted bool     `json:"deleted"` // false: it was a dry run
	Bytes   int64    `json:"bytes"`
	Left    []string `json:"left"`            // files in its directory that the run has not written
	Store   string   `json:"store,omitempty"` // where its checkpoints remain
}

// Remove deletes runs that have ended, one after another until one cannot be deleted. It keeps files of others in their
// directories, and data in an external store, and reports both.
func Remove(out io.Writer, folders []string, dry, asJSON bool) error {
	tell := humanize.NewPrinter(out, asJSON)
	all := []removeResult{}
	for _, dir := range folders {
		r, err := One(dir)
		if err == nil {
			err = r.checkWritten()
		}
		var what removeResult
		if err == nil {
			what, err = r.remove(tell, dry)
		}
		if err != nil && len(all) > 0 {
			return errors.Join(err, tell.End(all))
		} else if err != nil {
			return err
		}
		all = append(all, what)
	}
	return tell.End(all)
}

// checkWritten returns an error if a run.json may not be a run's, since other files with the names of a run's files may
// not be the run's either.
func (r *Run) checkWritten() error {
	if r.Problem == nil && r.Settings.Job.ID != "" || rundir.HasLock(r.Folder) {
		return nil
	}
	why := errors.New("it has no job")
	if r.Problem != nil {
		why = r.Problem
	}
	return perdure.Usagef("%s was not deleted: its %s does not look like a run's: %w", r.Folder, rundir.RunFile, why)
}

func (r *Run) remove(tell *humanize.Printer, dry bool) (what removeResult, err error) {
	what = removeResult{Folder: r.Folder, State: r.State, Bytes: rundir.Bytes(r.Folder), Left: []string{}}
	what.Store = r.Settings.Checkpoints.Store
	if dry {
		holder, err := rundir.CheckEnded(r.Folder)
		if errors.Is(err, rundir.ErrRunning) {
			return what, stillRunningError(r.Folder, " in "+holder)
		} else if err != nil {
			return what, err
		}
		tell.Line("%s would be deleted: %s, %s", r.Folder, r.State, humanize.Bytes(what.Bytes))
		return what, nil
	}
	left, holder, err := rundir.Remove(r.Folder)
	switch {
	case errors.Is(err, rundir.ErrRunning):
		return what, stillRunningError(r.Folder, " in "+holder)
	case err != nil:
		return what, err
	}
	what.Deleted, what.Left = true, append(what.Left, left...)
	what.Bytes -= rundir.Bytes(r.Folder)
	tell.Line("%s is deleted: %s", r.Folder, humanize.Bytes(what.Bytes))
	if len(left) > 0 {
		tell.Line("%s is kept: it contains %s, which the run did not write", r.Folder, strings.Join(left, ", "))
	}
	if what.Store != "" {
		tell.Line("its checkpoints remain in %s: delete them there", what.Store)
	}
	return what, nil
}

func stillRunningError(dir, where string) error {
	return perdure.Usagef("the run in %s is still running%s; stop it first: perdure stop --run %s", dir, where, dir)
}

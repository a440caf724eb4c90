package runs

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/rundir"
)

// removed is what became of a run that was to be deleted, for programs.
type removed struct {
	Folder  string   `json:"folder"`
	State   State    `json:"state"`
	Deleted bool     `json:"deleted"` // false: it was a dry run
	Bytes   int64    `json:"bytes"`
	Left    []string `json:"left"`            // what stays in its folder, which no run has written
	Store   string   `json:"store,omitempty"` // where its checkpoints stay
}

// Remove deletes runs that have ended, one after another until one cannot be. What somebody else has put into their
// folders stays, and so does what they have in a store elsewhere: both are said.
func Remove(out io.Writer, folders []string, dry, asJSON bool) error {
	tell := plain.Tell(out, asJSON)
	all := []removed{}
	for _, folder := range folders {
		r, err := One(folder)
		if err == nil {
			err = r.written()
		}
		var what removed
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

// written refuses a folder whose run.json is somebody else's: what else has the names of a run's files may be his, too.
func (r *Run) written() error {
	if r.Problem == nil && r.Settings.Job.ID != "" || rundir.Locked(r.Folder) {
		return nil
	}
	why := errors.New("it has no job")
	if r.Problem != nil {
		why = r.Problem
	}
	return fmt.Errorf("%w: %s is not deleted: its %s is not seen to be a run's: %w", perdure.ErrUsage, r.Folder,
		rundir.RunFile, why)
}

func (r *Run) remove(tell *plain.Teller, dry bool) (what removed, err error) {
	what = removed{Folder: r.Folder, State: r.State, Bytes: rundir.Bytes(r.Folder), Left: []string{}}
	what.Store = r.Settings.Checkpoints.Store
	if dry {
		holder, err := rundir.Alive(r.Folder)
		if errors.Is(err, rundir.ErrAlive) {
			return what, goesOn(r.Folder, " in "+holder)
		} else if err != nil {
			return what, err
		}
		tell.Line("%s would be deleted: %s, %s", r.Folder, r.State, sizeText(what.Bytes))
		return what, nil
	}
	left, holder, err := rundir.Remove(r.Folder)
	switch {
	case errors.Is(err, rundir.ErrAlive):
		return what, goesOn(r.Folder, " in "+holder)
	case err != nil:
		return what, err
	}
	what.Deleted, what.Left = true, append(what.Left, left...)
	what.Bytes -= rundir.Bytes(r.Folder)
	tell.Line("%s is deleted: %s", r.Folder, sizeText(what.Bytes))
	if len(left) > 0 {
		tell.Line("%s stays: it has %s, which no run has written", r.Folder, strings.Join(left, ", "))
	}
	if what.Store != "" {
		tell.Line("its checkpoints stay in %s: delete them there", what.Store)
	}
	return what, nil
}

func goesOn(folder, where string) error {
	return fmt.Errorf("%w: the run in %s goes on%s; end it first: perdure stop --run %s", perdure.ErrUsage, folder,
		where, folder)
}

func sizeText(n int64) string {
	if n < 1e6 {
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/1e6)
}

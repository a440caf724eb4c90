// Package checkpoints inspects the checkpoints of a job: it lists, shows and verifies them, exports a model, and
// deletes old ones. It supports checkpoints of one clock and running (partial) checkpoints. For stateless jobs it
// inspects the update log and the snapshots of shards instead. A Location is a directory or store of checkpoints; Open
// finds it by a run's directory, by the directory of checkpoints, or by URL.
//
// Functions print their findings and return an error if something is wrong. All but Prune are read-only and may run
// while the job is running; checkpoints that the job deletes meanwhile are not reported as missing. Prune fails while
// the job is running. It deletes nothing before it has read every byte of the checkpoints that remain. All functions
// are safe for concurrent use, except for concurrent calls of Prune.
package checkpoints

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

// dirName is the name of the directory of checkpoints in a run's directory.
const dirName = "checkpoint"

// Location is a directory or store of checkpoints to inspect.
type Location struct {
	Store   store.Store    // holds the checkpoints
	Run     string         // the run's directory; "": unknown
	Clock   *perdure.Clock // only the checkpoint of this clock; nil: all, or the newest
	Now     time.Time
	Partial bool // Export omits tensors of a state_dict whose values are not in the tables
	Force   bool // Prune continues even if it cannot tell whether the run has ended
}

// Open opens a directory or the URL of a store, either with an optional suffix @CLOCK.
func Open(name string) (*Location, error) {
	f := &Location{Now: time.Now()}
	if store.IsLocation(name) {
		return f, f.openURL(name)
	}
	dir := name
	info, err := os.Stat(dir)
	if at := strings.LastIndexByte(name, '@'); errors.Is(err, fs.ErrNotExist) && at > 0 {
		if dir, f.Clock = cutClock(name); f.Clock == nil {
			return nil, perdure.Usagef("directory %s does not exist; to choose the checkpoint of a clock, use %s@CLOCK",
				name, name[:at])
		}
		info, err = os.Stat(dir)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, perdure.Usagef("directory %s does not exist; specify a run's directory, or its directory of "+
			"checkpoints", dir)
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, perdure.Usagef("%s is a file; specify a run's directory, or its directory of checkpoints", dir)
	}
	return f, f.openDir(dir)
}

// cutClock splits DIR@CLOCK into both parts. Without a valid @CLOCK, it returns name itself and nil.
func cutClock(name string) (place string, clock *perdure.Clock) {
	if at := strings.LastIndexByte(name, '@'); at > 0 {
		if n, err := strconv.ParseInt(name[at+1:], 10, 64); err == nil && n >= 0 {
			return name[:at], new(perdure.Clock(n))
		}
	}
	return name, nil
}

// openURL opens a store by its URL. The URL of a directory may be that of a run. For other stores the run is unknown.
func (f *Location) openURL(name string) error {
	name, f.Clock = cutClock(name)
	l, err := store.ParseLocation(name)
	if err != nil {
		return perdure.Usagef("%w", err)
	}
	if dir, is := l.Dir(); is {
		return f.openDir(filepath.FromSlash(dir))
	}
	f.Store, err = l.Open(context.Background())
	return err
}

// openDir opens the checkpoints of a run's directory, or a directory of checkpoints whose run it tries to find.
func (f *Location) openDir(dir string) (err error) {
	if isRun(dir) {
		f.Run = dir
		run, err := settings.Read(filepath.Join(dir, "run.json"))
		if err != nil { // a run that has just started has none
			run = settings.Run{}
		}
		f.Store, err = run.OpenStore(context.Background(), dir)
		return err
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		real, err = filepath.Abs(real)
		if above := filepath.Dir(real); err == nil && filepath.Base(real) == dirName && isRun(above) {
			f.Run = above
		}
	}
	f.Store = store.NewDir(disk.OS(), filepath.ToSlash(dir))
	return nil
}

// isRun reports whether a directory belongs to a run. A run that has just started has no run.json.
func isRun(dir string) bool {
	return slices.ContainsFunc([]string{"run.json", "lock", "registry"}, func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	})
}

// find lists the checkpoints in f.Store. Without any, it returns an error, with the reason if that is known.
// Checkpoints that belong to a job other than the run's are marked as defective.
func (f *Location) find() (found checkpoint.Listing, err error) {
	if found, err = checkpoint.List(f.Store); err != nil {
		return found, err
	}
	var run settings.Run
	unread := errNoRun
	if f.Run != "" {
		run, unread = settings.Read(filepath.Join(f.Run, "run.json"))
	}
	for i := range found.Checkpoints {
		if k := &found.Checkpoints[i]; k.Err == nil && unread == nil {
			k.Err = k.CheckJob(run.Job.ID)
		}
	}
	addLost(&found, f.Run, f.Store)
	if len(found.Checkpoints) > 0 {
		return found, nil
	}
	why := ""
	switch {
	case unread == nil && recovery.RoundsOf(run.Job.Recovery).Any():
		why = ": no rows have been saved yet"
	case unread == nil && run.Job.Recovery.Kind != "" && !recovery.Of(run.Job.Recovery).Traits().SavesCuts():
		why = fmt.Sprintf(": a run under %s writes none", run.Job.Recovery)
	case len(found.Unreferenced) > 0:
		why = fmt.Sprintf(", only %s of an incomplete one", humanize.Count(len(found.Unreferenced), "file"))
	case f.Run == "" && len(found.Other) > 0:
		why = fmt.Sprintf(", but other files such as %s; specify a run's directory, or its directory of checkpoints",
			found.Other[0])
	}
	return found, fmt.Errorf("%s holds no checkpoint%s", f.Store, why)
}

// addLost adds to found the newest checkpoint that the run recorded, marked as defective, if the store lacks it. It
// adds nothing while the run is live, because the checkpoint may be about to be written.
func addLost(found *checkpoint.Listing, run string, in store.Store) {
	if run == "" {
		return
	}
	if _, err := rundir.CheckEnded(run); err != nil {
		return
	}
	if k := settings.MissingCheckpoint(context.Background(), run, in, found.Checkpoints); k != nil {
		found.Checkpoints = slices.Insert(found.Checkpoints, 0, *k)
	}
}

// errNoRun means that the settings of the job are unknown, because the checkpoints are not in the directory of a run.
var errNoRun = errors.New("it is not in a run's directory")

// selectOne returns the checkpoint of f.Clock, or the newest. Of several checkpoints of a clock it returns the newest
// whole one or, if none is whole, the newest.
func (f *Location) selectOne(found checkpoint.Listing) (*checkpoint.Info, error) {
	if f.Clock == nil {
		return &found.Checkpoints[0], nil
	}
	whole := func(k checkpoint.Info) bool { return k.Cut == *f.Clock && k.IsComplete() }
	i := slices.IndexFunc(found.Checkpoints, whole)
	if i < 0 {
		i = slices.IndexFunc(found.Checkpoints, func(k checkpoint.Info) bool { return k.Cut == *f.Clock })
	}
	if i < 0 {
		return nil, perdure.Usagef("%s holds no checkpoint of clock %d; it holds %s", f.Store, *f.Clock,
			clocks(found.Checkpoints))
	}
	return &found.Checkpoints[i], nil
}

// selected returns all checkpoints and the files that belong to none or, with f.Clock, only the checkpoints of that
// clock. There may be several running checkpoints of a clock.
func (f *Location) selected() (found checkpoint.Listing, err error) {
	found, err = f.find()
	if err != nil || f.Clock == nil {
		return found, err
	}
	one, err := f.selectOne(found)
	if err != nil {
		return checkpoint.Listing{}, err
	}
	kept := []checkpoint.Info{*one}
	for i := range found.Checkpoints {
		if k := &found.Checkpoints[i]; k.Cut == one.Cut && k.Number > 0 && k.Number < one.Number {
			kept = append(kept, *k)
		}
	}
	return checkpoint.Listing{Checkpoints: kept}, nil
}

// olderHint returns a hint to the next older whole checkpoint, judged by names and lengths of files, or "" if there is
// none.
func (f *Location) olderHint(found *checkpoint.Listing, k *checkpoint.Info) string {
	at := slices.IndexFunc(found.Checkpoints, func(other checkpoint.Info) bool { return other.File == k.File })
	for i := at + 1; i < len(found.Checkpoints); i++ {
		if older := &found.Checkpoints[i]; older.IsComplete() && older.Cut != k.Cut {
			return fmt.Sprintf("; the next older complete one is %s@%d", f.Store, older.Cut)
		}
	}
	return ""
}

// tries is the number of attempts to read a checkpoint before its job deletes it.
const tries = 5

// withRetries calls read again if the job deleted the checkpoint meanwhile.
func (f *Location) withRetries(read func() (meanwhile bool, err error)) error {
	for range tries {
		if meanwhile, err := read(); !meanwhile {
			return err
		}
	}
	return fmt.Errorf("%s: the job deletes its checkpoints before they can be read; try again, or wait until it has "+
		"ended",
		f.Store)
}

// isDeleted reports whether the job has deleted checkpoint k since it was listed. A checkpoint that the run's record
// names counts as damaged instead.
func (f *Location) isDeleted(k *checkpoint.Info) bool {
	return !k.Recorded && !checkpoint.Exists(f.Store, k.File)
}

// job returns the job of the newest readable checkpoint.
func job(kept []checkpoint.Info) *perdure.JobSpec {
	for i := range kept {
		if kept[i].Err == nil {
			return &kept[i].Manifest.Job
		}
	}
	return nil
}

// newestWhole returns the index of the newest checkpoint whose files are complete, or -1.
func newestWhole(kept []checkpoint.Info) int {
	return slices.IndexFunc(kept, func(k checkpoint.Info) bool { return k.IsComplete() })
}

// clocks lists the clocks of checkpoints, newest first.
func clocks(kept []checkpoint.Info) string {
	const most = 8
	var words []string
	for i := range kept {
		if word := clockText(kept[i].Cut); len(words) == 0 || words[len(words)-1] != word {
			words = append(words, word)
		}
	}
	text := "those of clocks " + strings.Join(words[:min(len(words), most)], ", ")
	switch {
	case len(words) == 1:
		text = "that of clock " + words[0]
	case len(words) > most:
		text += fmt.Sprintf(" and %d more", len(words)-most)
	}
	return text
}

// Package checkpoints looks into the checkpoints that a job keeps, of one clock or running: it
// lists, shows and verifies them, makes a model of one, and deletes old ones. It does the same for the update
// log and the snapshots that some jobs keep instead. A Folder is where checkpoints
// are; it is found by a run's folder, or by its folder of checkpoints. All that is read of a
// checkpoint goes through it and package checkpoint: whatever else may come to keep checkpoints is
// to be one too.
//
// It prints what it finds, and returns an error if something is wrong. All but Prune only read,
// and may do so while the job goes on: what it deletes meanwhile is not missed. Prune refuses
// beside a job that goes on, and deletes nothing before it has read to the last byte what is to
// stay in its place. All is safe for concurrent use, but for two calls of Prune.
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

	"github.com/perdure/perdure/internal/run/plain"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

// folderName is what the folder of checkpoints is called in a run's.
const folderName = "checkpoint"

// Folder is where checkpoints are that somebody looks into.
type Folder struct {
	Store store.Store    // of the checkpoints
	Run   string         // the run's folder; "": it is in none
	Clock *perdure.Clock // only the checkpoint of this clock; nil: all, or the newest
	Now   time.Time
	Force bool // Prune goes on where nobody can see whether the run has ended
}

// Open finds what somebody has named: DIR or a store's URL, or either with @CLOCK behind it.
func Open(name string) (*Folder, error) {
	f := &Folder{Now: time.Now()}
	if store.IsLocation(name) {
		return f, f.at(name)
	}
	dir := name
	info, err := os.Stat(dir)
	if at := strings.LastIndexByte(name, '@'); errors.Is(err, fs.ErrNotExist) && at > 0 {
		if dir, f.Clock = cutClock(name); f.Clock == nil {
			return nil, fmt.Errorf("%w: there is no folder %s; to name the checkpoint of a clock, write %s@CLOCK",
				perdure.ErrUsage, name, name[:at])
		}
		info, err = os.Stat(dir)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: there is no folder %s; name a run's folder, or its folder of checkpoints",
			perdure.ErrUsage, dir)
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, fmt.Errorf("%w: %s is a file; name a run's folder, or its folder of checkpoints", perdure.ErrUsage,
			dir)
	}
	return f, f.place(dir)
}

// cutClock parts the name of a place and the clock behind it, as in DIR@CLOCK; nil: there is none.
func cutClock(name string) (place string, clock *perdure.Clock) {
	if at := strings.LastIndexByte(name, '@'); at > 0 {
		if n, err := strconv.ParseInt(name[at+1:], 10, 64); err == nil && n >= 0 {
			return name[:at], new(perdure.Clock(n))
		}
	}
	return name, nil
}

// at opens a store by its URL. Of a folder it may be a run's; else nobody knows whose it is, or whether that goes on.
func (f *Folder) at(name string) error {
	name, f.Clock = cutClock(name)
	l, err := store.ParseLocation(name)
	if err != nil {
		return fmt.Errorf("%w: %w", perdure.ErrUsage, err)
	}
	if dir, is := l.Folder(); is {
		return f.place(filepath.FromSlash(dir))
	}
	f.Store, err = l.Open(context.Background())
	return err
}

// place finds the run's folder, and where that says that its checkpoints are.
func (f *Folder) place(dir string) (err error) {
	if isRun(dir) {
		f.Run = dir
		run, err := settings.Read(filepath.Join(dir, "run.json"))
		if err != nil { // a run that has just begun has none
			run = settings.Run{}
		}
		f.Store, err = run.OpenStore(context.Background(), dir)
		return err
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		real, err = filepath.Abs(real)
		if above := filepath.Dir(real); err == nil && filepath.Base(real) == folderName && isRun(above) {
			f.Run = above
		}
	}
	f.Store = store.Folder(disk.OS(), filepath.ToSlash(dir))
	return nil
}

// isRun reports whether a folder is a run's. That of one that has just begun has no run.json.
func isRun(dir string) bool {
	return slices.ContainsFunc([]string{"run.json", "lock", "registry"}, func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	})
}

// look says what the folder has; that it has no checkpoint is an error. One that is of another
// job than its run is of no use.
func (f *Folder) look() (found checkpoint.Found, err error) {
	if found, err = checkpoint.Look(f.Store); err != nil {
		return found, err
	}
	var run settings.Run
	unread := errNoRun
	if f.Run != "" {
		run, unread = settings.Read(filepath.Join(f.Run, "run.json"))
	}
	for i := range found.Kept {
		if k := &found.Kept[i]; k.Err == nil && unread == nil {
			k.Err = k.CheckJob(run.Job.ID)
		}
	}
	addLost(&found, f.Run, f.Store)
	if len(found.Kept) > 0 {
		return found, nil
	}
	why := ""
	switch {
	case unread == nil && recovery.RoundsOf(run.Job.Recovery).Any():
		why = ": no rows have been saved yet"
	case unread == nil && run.Job.Recovery.Kind != "" && !recovery.Of(run.Job.Recovery).Traits().Saves():
		why = fmt.Sprintf(": a run under %s keeps none", run.Job.Recovery)
	case len(found.Loose) > 0:
		why = fmt.Sprintf(", and %s of one that was begun", plain.Count(len(found.Loose), "file"))
	case f.Run == "" && len(found.Other) > 0:
		why = fmt.Sprintf(", but %s, say; name a run's folder, or its folder of checkpoints", found.Other[0])
	}
	return found, fmt.Errorf("%s holds no checkpoint%s", f.Store, why)
}

// addLost adds the checkpoint that a run recorded last, if it is missing. A live run may be about to write it.
func addLost(found *checkpoint.Found, run string, in store.Store) {
	if run == "" {
		return
	}
	if _, err := rundir.Alive(run); err != nil {
		return
	}
	if k := settings.Lost(context.Background(), run, in, found.Kept); k != nil {
		found.Kept = slices.Insert(found.Kept, 0, *k)
	}
}

// errNoRun is why nothing more is known of a folder of checkpoints than it says itself.
var errNoRun = errors.New("no run's folder is around it")

// one returns the checkpoint that is asked for: that of the clock, or the newest one. Of two of a
// clock it is that of the later generation, or the newer, unless that is not whole and another is.
func (f *Folder) one(found checkpoint.Found) (*checkpoint.Kept, error) {
	if f.Clock == nil {
		return &found.Kept[0], nil
	}
	whole := func(k checkpoint.Kept) bool { return k.Cut == *f.Clock && k.Whole() }
	i := slices.IndexFunc(found.Kept, whole)
	if i < 0 {
		i = slices.IndexFunc(found.Kept, func(k checkpoint.Kept) bool { return k.Cut == *f.Clock })
	}
	if i < 0 {
		return nil, fmt.Errorf("%w: %s holds no checkpoint of clock %d; it holds %s", perdure.ErrUsage, f.Store,
			*f.Clock, clocks(found.Kept))
	}
	return &found.Kept[i], nil
}

// asked returns all checkpoints and the files that belong to none, or only the checkpoint of the clock. Running ones
// may be several of a clock: then all of them.
func (f *Folder) asked() (found checkpoint.Found, err error) {
	found, err = f.look()
	if err != nil || f.Clock == nil {
		return found, err
	}
	one, err := f.one(found)
	if err != nil {
		return checkpoint.Found{}, err
	}
	kept := []checkpoint.Kept{*one}
	for i := range found.Kept {
		if k := &found.Kept[i]; k.Cut == one.Cut && k.Number > 0 && k.Number < one.Number {
			kept = append(kept, *k)
		}
	}
	return checkpoint.Found{Kept: kept}, nil
}

// offer names the next older checkpoint that is whole, as names and lengths of files tell, where
// one is not; "": there is none.
func (f *Folder) offer(found *checkpoint.Found, k *checkpoint.Kept) string {
	at := slices.IndexFunc(found.Kept, func(other checkpoint.Kept) bool { return other.File == k.File })
	for i := at + 1; i < len(found.Kept); i++ {
		if older := &found.Kept[i]; older.Whole() && older.Cut != k.Cut {
			return fmt.Sprintf("; the next older one that is whole is %s@%d", f.Store, older.Cut)
		}
	}
	return ""
}

// tries is how often a checkpoint is looked for that its job does not delete while it is read.
const tries = 5

// retried reads a checkpoint, again where its job has deleted it meanwhile.
func (f *Folder) retried(read func() (meanwhile bool, err error)) error {
	for range tries {
		if meanwhile, err := read(); !meanwhile {
			return err
		}
	}
	return fmt.Errorf("%s: the job deletes its checkpoints before they are read; try again, or when it has ended",
		f.Store)
}

// gone reports whether a checkpoint is no more there: its job has deleted it meanwhile.
func (f *Folder) gone(k *checkpoint.Kept) bool {
	return !k.Recorded && !checkpoint.Names(f.Store, k.File)
}

// job is whose the checkpoints are, as the newest one says that can be read.
func job(kept []checkpoint.Kept) *perdure.JobSpec {
	for i := range kept {
		if kept[i].Err == nil {
			return &kept[i].Manifest.Job
		}
	}
	return nil
}

// newestWhole is the index of the newest checkpoint whose files are all there; -1: there is none.
func newestWhole(kept []checkpoint.Kept) int {
	return slices.IndexFunc(kept, func(k checkpoint.Kept) bool { return k.Whole() })
}

// clocks lists the clocks of checkpoints, the newest first.
func clocks(kept []checkpoint.Kept) string {
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

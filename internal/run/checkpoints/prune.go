package checkpoints

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/rundir"
)

// pruneResult is the JSON output of Prune.
type pruneResult struct {
	DryRun      bool           `json:"dry_run"`
	Kept        []verifyResult `json:"kept"` // checkpoints that were read, to count the whole ones
	Checkpoints int            `json:"checkpoints"`
	Files       []string       `json:"files"`
	Bytes       int64          `json:"bytes"`
}

// Prune keeps the given number of the newest whole checkpoints (0: all) and deletes older ones, and
// files that belong to none. It first reads every byte of the checkpoints to keep. A dry run only reports what it would
// delete.
func (f *Location) Prune(out io.Writer, keep int, dry, asJSON bool) error {
	tell := humanize.NewPrinter(out, asJSON)
	switch {
	case keep < 0:
		return perdure.Usagef("invalid --keep %d; choose 1 or more, or 0 to keep all", keep)
	case f.Clock != nil:
		return perdure.Usagef("prune keeps the newest checkpoints; remove @%d", *f.Clock)
	}
	release, err := f.lockEnded(dry)
	if err != nil {
		return err
	}
	defer release()
	found, err := f.find()
	if err != nil {
		return err
	}
	p := pruneResult{DryRun: dry, Kept: []verifyResult{}, Files: []string{}}
	stay, err := f.countToKeep(tell, &found, keep, &p)
	if err != nil {
		return err
	}
	r := found.PlanRemoval(stay, f.Run == "")
	p.Checkpoints, p.Bytes = len(r.Manifests), bytesOf(&found, r)
	p.Files = append(append(p.Files, r.Manifests...), r.Files...)
	did := "deleted"
	switch {
	case len(p.Files) == 0:
		tell.Line("nothing to delete")
		return tell.End(p)
	case dry:
		did = "would delete"
		for _, name := range p.Files {
			tell.Line("would delete %s", name)
		}
	default:
		if err := checkpoint.Remove(f.Store, r); err != nil {
			return err
		}
	}
	tell.Line("%s %s, %s in all, %s", did, humanize.Count(p.Checkpoints, "checkpoint"),
		humanize.Count(len(p.Files), "file"), humanize.Bytes(p.Bytes))
	return tell.End(p)
}

// lockEnded checks that the run has ended, and prevents it from starting again until release is called. It cannot do so
// for a store without the run's directory: there the run counts as ended only if its model exists.
func (f *Location) lockEnded(dry bool) (release func(), err error) {
	if f.Run == "" && (dry || f.Force) {
		return func() {}, nil
	}
	if f.Run == "" {
		return func() {}, f.checkUnclaimed()
	}
	hold, holder, err := rundir.LockEnded(f.Run)
	if errors.Is(err, rundir.ErrRunning) {
		return nil, perdure.Usagef("the run in %s is still running, in %s, and deletes old checkpoints itself; end "+
			"it first with perdure stop --run %s", f.Run, holder, f.Run)
	}
	if err != nil {
		return nil, err
	}
	return func() { _ = hold.Close() }, nil // nothing was written
}

// checkUnclaimed returns an error if a store is claimed and its run may still be running.
func (f *Location) checkUnclaimed() error {
	claimed, err := store.Read(f.Store, claimName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := store.Size(f.Store, rundir.ModelFile); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return perdure.Usagef("%w, which may still be running: specify its run's directory, or add --force to delete "+
		"anyway", takenError(f.Store, claimed))
}

// countToKeep returns how many of the newest checkpoints stay. It reads them completely until it has found keep whole
// ones. If there are fewer, all stay.
func (f *Location) countToKeep(
	tell *humanize.Printer,
	found *checkpoint.Listing,
	keep int,
	p *pruneResult,
) (stay int, err error) {
	for i := range found.Checkpoints {
		if k := &found.Checkpoints[i]; errors.Is(k.Err, checkpoint.ErrOtherVersion) {
			return 0, fmt.Errorf("%s/%s; nothing is deleted", f.Store, k.Defects()[0])
		}
	}
	if keep == 0 {
		return len(found.Checkpoints), nil
	}
	audit := checkpoint.NewAudit(f.Store)
	whole := 0
	for i := range found.Checkpoints {
		line, more, good := f.audit(audit, &found.Checkpoints[i])
		tell.Line("keep %s", line)
		v := newVerifyResult(&found.Checkpoints[i], more, good)
		for _, d := range v.Defects {
			tell.Line("  %s", d)
		}
		p.Kept = append(p.Kept, v)
		if good {
			whole++
		}
		if whole == keep {
			return i + 1, nil
		}
	}
	if whole == 0 {
		return 0, fmt.Errorf("%s holds no complete checkpoint; nothing was deleted", f.Store)
	}
	return len(found.Checkpoints), nil
}

// bytesOf returns the size of the segments to delete.
func bytesOf(found *checkpoint.Listing, r checkpoint.Removal) (bytes int64) {
	sizes := map[string]int64{}
	for i := range found.Checkpoints {
		k := &found.Checkpoints[i]
		for _, file := range k.Files() {
			sizes[file.File] = file.Bytes
		}
		for _, d := range k.Missing {
			sizes[d.File] = 0
		}
	}
	for _, l := range found.Unreferenced {
		sizes[l.File] = l.Bytes
	}
	for _, name := range r.Files {
		bytes += sizes[name]
	}
	return bytes
}

package checkpoints

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/run/rundir"
)

// Prune deletes the checkpoints that are older than the newest whole ones, of which it keeps that
// many (0: all stay), and what belongs to none. What is to stay it reads first, to the last byte. A
// dry run says what it would delete.
func (f *Folder) Prune(out io.Writer, keep int, dry bool) error {
	switch {
	case keep < 0:
		return fmt.Errorf("%w: --keep %d; choose 1 or more, or 0 to keep all", perdure.ErrUsage, keep)
	case f.Clock != nil:
		return fmt.Errorf("%w: prune keeps the newest checkpoints; leave @%d out", perdure.ErrUsage, *f.Clock)
	}
	release, err := f.ended(dry)
	if err != nil {
		return err
	}
	defer release()
	found, err := f.look()
	if err != nil {
		return err
	}
	stay, err := f.chosen(out, &found, keep)
	if err != nil {
		return err
	}
	r := found.Without(stay, f.Run == "")
	did := "deleted"
	switch {
	case len(r.Manifests)+len(r.Files) == 0:
		fmt.Fprintln(out, "there is nothing to delete")
		return nil
	case dry:
		did = "would delete"
		for _, name := range slices.Concat(r.Manifests, r.Files) {
			fmt.Fprintf(out, "would delete %s\n", name)
		}
	default:
		if err := checkpoint.Remove(f.Store, r); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "%s %s, %s in all, %s\n", did, count(len(r.Manifests), "checkpoint"),
		count(len(r.Manifests)+len(r.Files), "file"), size(bytesOf(&found, r)))
	return nil
}

// ended sees that the run has ended, and keeps it so until it is released. Of a store alone nobody can keep it so; its
// run may go on unless its model is there.
func (f *Folder) ended(dry bool) (release func(), err error) {
	if f.Run == "" && (dry || f.Force) {
		return func() {}, nil
	}
	if f.Run == "" {
		return func() {}, f.left()
	}
	hold, holder, err := rundir.HoldEnded(f.Run)
	if errors.Is(err, rundir.ErrAlive) {
		return nil, fmt.Errorf("%w: the run in %s goes on, in %s, and deletes old checkpoints itself; end it first, "+
			"with perdure stop --run %s", perdure.ErrUsage, f.Run, holder, f.Run)
	}
	if err != nil {
		return nil, err
	}
	return func() { _ = hold.Close() }, nil // nothing was written
}

// left refuses a store that somebody has claimed, and whose run is not seen to have ended.
func (f *Folder) left() error {
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
	return fmt.Errorf("%w: %w, which may go on: name its run's folder, or delete all the same with --force",
		perdure.ErrUsage, taken(f.Store, claimed))
}

// chosen returns how many checkpoints stay, the newest. It reads them to the last byte until
// there are as many whole ones as are to be kept; where there are not, all stay.
func (f *Folder) chosen(out io.Writer, found *checkpoint.Found, keep int) (stay int, err error) {
	for i := range found.Kept {
		if k := &found.Kept[i]; errors.Is(k.Err, checkpoint.ErrNewerVersion) {
			return 0, fmt.Errorf("%s/%s; nothing is deleted", f.Store, k.Defects()[0])
		}
	}
	if keep == 0 {
		return len(found.Kept), nil
	}
	audit := checkpoint.NewAudit(f.Store)
	whole := 0
	for i := range found.Kept {
		line, more, good := f.audit(audit, &found.Kept[i])
		fmt.Fprintf(out, "keep %s\n", line)
		for _, d := range more {
			fmt.Fprintf(out, "  %s\n", d)
		}
		if good {
			whole++
		}
		if whole == keep {
			return i + 1, nil
		}
	}
	if whole == 0 {
		return 0, fmt.Errorf("%s holds no checkpoint that is whole; nothing is deleted", f.Store)
	}
	return len(found.Kept), nil
}

// bytesOf returns the bytes of the segments that are deleted.
func bytesOf(found *checkpoint.Found, r checkpoint.Removal) (bytes int64) {
	sizes := map[string]int64{}
	for i := range found.Kept {
		k := &found.Kept[i]
		for _, file := range k.Files() {
			sizes[file.File] = file.Bytes
		}
		for _, d := range k.Lacks {
			sizes[d.File] = 0
		}
	}
	for _, l := range found.Loose {
		sizes[l.File] = l.Bytes
	}
	for _, name := range r.Files {
		bytes += sizes[name]
	}
	return bytes
}

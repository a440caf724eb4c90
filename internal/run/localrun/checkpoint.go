package localrun

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/run/checkpoints"
)

// bringCheckpoint brings the checkpoint that the run goes on from into its folder, where there is one.
func (r *Run) bringCheckpoint() (err error) {
	c := &r.s.Checkpoints
	switch {
	case r.s.Resumed == "":
		return nil
	case c.Fork == nil:
		return copyCheckpoint(filepath.Join(r.s.Resumed, "checkpoint"), r.dir.Checkpoint(), c.From)
	}
	from, err := checkpoints.Open(r.s.Resumed)
	if err != nil {
		return err
	}
	to := &checkpoints.Folder{Store: store.Folder(disk.OS(), filepath.ToSlash(r.dir.Checkpoint()))}
	r.s.Saved, err = from.Fork(c.Fork, to, &r.s.Job)
	return err
}

// copyCheckpoint brings the files of the checkpoint that a run goes on from into its folder.
func copyCheckpoint(from, to string, names []string) error {
	for _, name := range names {
		if err := copyFile(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return fmt.Errorf("resume: %w", err)
		}
	}
	return nil
}

func copyFile(from, to string) error {
	r, err := disk.OpenRegular(from)
	if err != nil {
		return err
	}
	defer r.Close() // only read
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}

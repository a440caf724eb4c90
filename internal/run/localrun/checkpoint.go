package localrun

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/run/settings"
)

// copyCheckpoint brings the checkpoint that a run goes on from into its folder: the one that is
// named, or, of those that are of one clock, all.
func copyCheckpoint(from, to string, saved *settings.Saved) error {
	if saved != nil {
		for _, name := range saved.Names() {
			if err := copyFile(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
				return fmt.Errorf("resume: %w", err)
			}
		}
		return nil
	}
	names, err := os.ReadDir(from)
	if err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	for _, n := range names {
		if !strings.HasSuffix(n.Name(), ".segment") && !strings.HasSuffix(n.Name(), ".manifest") {
			continue
		}
		err := copyFile(filepath.Join(from, n.Name()), filepath.Join(to, n.Name()))
		if err != nil {
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

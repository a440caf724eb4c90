package logserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/updatelog"
)

// copyLog copies the log in dir to a temporary directory, so that a server can open it. It leaves room bytes free on
// that disk. No process may serve dir in the meantime.
//
// All files are copied, because a server that starts truncates damaged files, removes some and writes others. Hard
// links would not protect them, and the directories may be on different disks.
func copyLog(ctx context.Context, dir string, room int64) (to string, err error) {
	need, err := dataBytes(filepath.Join(dir, dataDir))
	if err != nil {
		return "", fmt.Errorf("%w: the log in %s: %w", updatelog.ErrRefused, dir, err)
	}
	noRoom := func() error {
		return fmt.Errorf("%w: inspecting the log in %s requires a copy of %d MiB, but %s does not have enough "+
			"space; free some space, or set TMPDIR to another directory",
			updatelog.ErrRefused, dir, (need+room)>>20, os.TempDir())
	}
	if free, known := disk.FreeBytes(os.TempDir()); known && free < need+room {
		return "", noRoom()
	}
	to, err = os.MkdirTemp("", "perdure-log-")
	if err != nil {
		return "", fmt.Errorf("%w: inspecting the log in %s requires a copy: %w; set TMPDIR to another directory",
			updatelog.ErrRefused, dir, err)
	}
	if err = copyDir(ctx, filepath.Join(dir, dataDir), filepath.Join(to, dataDir)); err == nil {
		return to, nil
	}
	if disk.IsFull(err) {
		err = noRoom()
	} else if ctx.Err() == nil {
		err = fmt.Errorf("%w: cannot copy the log in %s: %w", updatelog.ErrRefused, dir, err)
	}
	return "", errors.Join(err, os.RemoveAll(to))
}

// dataBytes returns the total size of the files in a directory. A missing directory has size 0.
func dataBytes(dir string) (n int64, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		info, err := os.Stat(path)
		if err != nil {
			return 0, err
		}
		if !info.IsDir() {
			n += info.Size()
			continue
		}
		more, err := dataBytes(path)
		if err != nil {
			return 0, err
		}
		n += more
	}
	return n, err
}

// copyDir copies a directory recursively. A missing directory counts as empty.
func copyDir(ctx context.Context, from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	for _, e := range entries {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		from, to := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		info, err := os.Stat(from)
		switch {
		case err != nil:
		case info.IsDir():
			err = copyDir(ctx, from, to)
		case info.Mode().IsRegular():
			err = copyFile(from, to)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copyFile copies a file. On file systems with copy-on-write the copy takes no space.
func copyFile(from, to string) error {
	r, err := disk.OpenRegular(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}

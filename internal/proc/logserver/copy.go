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

// copyLog copies a log's folder into a temporary one, for a server to look into, and leaves room
// bytes free on that disk. Nobody may serve the folder meanwhile. A server that starts cuts off
// what it finds damaged, removes files, and writes others. So all is copied: it may write to any
// of the files, and the folders may be on different disks.
func copyLog(ctx context.Context, dir string, room int64) (to string, err error) {
	need, err := dataBytes(filepath.Join(dir, dataFolder))
	if err != nil {
		return "", fmt.Errorf("%w: the log in %s: %w", updatelog.ErrRefused, dir, err)
	}
	noRoom := func() error {
		return fmt.Errorf("%w: to look into the log in %s a copy of it is made, which takes %d MiB, and %s has no "+
			"room for that; make room, or choose another folder with TMPDIR",
			updatelog.ErrRefused, dir, (need+room)>>20, os.TempDir())
	}
	if free, known := disk.Free(os.TempDir()); known && free < need+room {
		return "", noRoom()
	}
	to, err = os.MkdirTemp("", "perdure-log-")
	if err != nil {
		return "", fmt.Errorf("%w: to look into the log in %s a copy of it is made: %w; choose another folder with "+
			"TMPDIR", updatelog.ErrRefused, dir, err)
	}
	if err = copyFolder(ctx, filepath.Join(dir, dataFolder), filepath.Join(to, dataFolder)); err == nil {
		return to, nil
	}
	if disk.Full(err) {
		err = noRoom()
	} else if ctx.Err() == nil {
		err = fmt.Errorf("%w: the log in %s cannot be copied: %w", updatelog.ErrRefused, dir, err)
	}
	return "", errors.Join(err, os.RemoveAll(to))
}

// dataBytes returns how many bytes the files of a folder have, that need not be there.
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

// copyFolder copies the files of a folder, that need not be there, and of those in it.
func copyFolder(ctx context.Context, from, to string) error {
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
			err = copyFolder(ctx, from, to)
		case info.Mode().IsRegular():
			err = copyFile(from, to)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copyFile copies a file; where the file system shares what is the same, it takes no room.
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

package logserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/updatelog"
)

// InspectDir opens the log in a directory for inspection. If a process serves the log, InspectDir connects to it
// with the credentials in o and waits at most patience for the answer. Otherwise it serves a copy in this process,
// because a server that starts would change the original.
func InspectDir(
	ctx context.Context,
	dir string,
	patience time.Duration,
	o updatelog.DialOptions,
) (*updatelog.Inspector, error) {
	url, err := updatelog.ReadURL(dir)
	starting := errors.Is(err, updatelog.ErrAway)
	if err != nil && !starting {
		return nil, err
	}
	lock, err := disk.LockShared(filepath.Join(dir, lockFile))
	switch {
	case errors.Is(err, disk.ErrLocked) && starting:
		return nil, fmt.Errorf("%w: the log in %s is starting; if it never finishes, write its address into its empty "+
			"file %s again, or restart the log", updatelog.ErrAway, dir, updatelog.URLFile)
	case errors.Is(err, disk.ErrLocked):
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return updatelog.Inspect(ctx, url, o)
	case errors.Is(err, fs.ErrNotExist):
		lock = nil // it was never served in this directory
	case err != nil:
		return nil, fmt.Errorf("%w: %w", updatelog.ErrRefused, err)
	}
	copied := ""
	if starting {
		err = updatelog.NoAddressError(dir)
	} else {
		copied, err = copyLog(ctx, dir, minFree)
	}
	if lock != nil {
		err = errors.Join(err, lock.Close())
	}
	var i *updatelog.Inspector
	if err == nil {
		i, err = inspectCopy(ctx, dir, copied)
	}
	if err != nil && copied != "" {
		err = errors.Join(err, os.RemoveAll(copied))
	}
	return i, err
}

// inspectCopy opens the copy of a log's directory. Closing the inspector removes the copy.
func inspectCopy(ctx context.Context, dir, copied string) (*updatelog.Inspector, error) {
	before, err := readBlocks(dir, copied, updatelog.MaxRecord)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", updatelog.ErrRefused, err)
	}
	lost, err := before.Lost()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", updatelog.ErrRefused, err)
	}
	var has []updatelog.Stream
	for _, s := range streamDirs(copied) {
		has = append(has, updatelog.Stream{Name: s.Name, Job: s.Job, Shard: s.Shard, First: 1, Next: 1})
	}
	s, err := Serve(copied, ServeOptions{private: true})
	if err != nil {
		return nil, err
	}
	maps.Copy(lost, before.Truncated())
	end := func() error { return errors.Join(s.Close(), os.RemoveAll(copied)) }
	return updatelog.InspectLocal(ctx, s.url, s.nats, has, lost, end)
}

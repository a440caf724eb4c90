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

// InspectFolder opens the log of a folder: through the process that serves it, which is given
// so much time to answer, or in this process while none does. It copies the log then: to
// start the server would change what is there. Of o the credentials count, where it is served.
func InspectFolder(
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
	lock, err := disk.Share(filepath.Join(dir, lockFile))
	switch {
	case errors.Is(err, disk.ErrLocked) && starting:
		return nil, fmt.Errorf("%w: the log in %s is just starting; should it stay so, bring the address back in "+
			"its file %s, which is empty, or start it again", updatelog.ErrAway, dir, updatelog.URLFile)
	case errors.Is(err, disk.ErrLocked):
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return updatelog.Inspect(ctx, url, o)
	case errors.Is(err, fs.ErrNotExist):
		lock = nil // nobody has served it where it is
	case err != nil:
		return nil, fmt.Errorf("%w: %w", updatelog.ErrRefused, err)
	}
	copied := ""
	if starting {
		err = updatelog.NoAddress(dir)
	} else {
		copied, err = copyLog(ctx, dir, leastRoom)
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

// inspectCopy looks into the copy of a folder, which is removed in the end.
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
	for _, s := range streamFolders(copied) {
		has = append(has, updatelog.Stream{Name: s.Name, Job: s.Job, Shard: s.Shard, First: 1, Next: 1})
	}
	s, err := Serve(copied, ServeOptions{private: true})
	if err != nil {
		return nil, err
	}
	maps.Copy(lost, before.CutOff())
	end := func() error { return errors.Join(s.Close(), os.RemoveAll(copied)) }
	return updatelog.InspectOwn(ctx, s.url, s.nats, has, lost, end)
}

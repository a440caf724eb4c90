package main

import (
	"context"
	"errors"

	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/run/settings"
)

// logKept returns what the job's streams hold now, and where that is.
func logKept(ctx context.Context, s *settings.Run) (bytes uint64, streams int, where string, err error) {
	i, err := inspectLog(ctx, s)
	if err != nil {
		return 0, 0, "", err
	}
	defer i.Close()
	all, err := i.Streams(ctx)
	for _, one := range streamsOf(all, s.Job.ID) {
		bytes, streams = bytes+one.Bytes, streams+1
	}
	return bytes, streams, i.URL(), err
}

// inspectLog looks into the log that the run's settings name.
func inspectLog(ctx context.Context, s *settings.Run) (*updatelog.Inspector, error) {
	l, addr := s.Log, s.Job.Log
	if s.Job.LogSecret {
		at, err := updatelog.ReadURL(settings.LogFolder(s.Folder))
		if err != nil {
			return nil, err
		}
		addr = at
	}
	return updatelog.Inspect(ctx, addr, updatelog.DialOptions{Credentials: l.Creds, CA: l.CA, Cert: l.Cert, Key: l.Key})
}

// removeLog removes the streams of a job of which no process is left.
func removeLog(s *settings.Run) error {
	ctx, cancel := context.WithTimeout(context.Background(), logPatience)
	defer cancel()
	i, err := inspectLog(ctx, s)
	if err != nil {
		return err
	}
	all, err := i.Streams(ctx)
	if err == nil {
		_, err = i.Remove(ctx, streamsOf(all, s.Job.ID))
	}
	return errors.Join(err, i.Close())
}
